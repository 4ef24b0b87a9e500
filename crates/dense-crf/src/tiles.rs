//! The order in which pixels are stored inside the crate: tile by tile, row-major within a tile.
//!
//! Neighbouring pixels fall on the same lattice vertices, so a tile touches few vertices and its part of the lattice fits
//! the second-level cache. The cut depends on the image size alone, never on the number of threads: results are
//! reproducible bit for bit.

use std::ops::Range;

/// Aimed-at side of a tile in pixels.
const TILE_SIDE: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Tiles {
    width: usize,
    columns: Vec<Range<usize>>,
    rows: Vec<Range<usize>>,
    /// First pixel of each tile in tile order, and the number of pixels at the end.
    starts: Vec<usize>,
}

impl Tiles {
    pub(crate) fn new(width: usize, height: usize) -> Self {
        let columns = even_parts(width);
        let rows = even_parts(height);
        let mut starts = Vec::with_capacity(columns.len() * rows.len() + 1);
        let mut start = 0;
        for row in &rows {
            for column in &columns {
                starts.push(start);
                start += row.len() * column.len();
            }
        }
        starts.push(start);
        Self { width, columns, rows, starts }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn num_pixels(&self) -> usize {
        self.starts[self.len()]
    }

    /// Row-major indices of the pixels of a tile, in tile order, as runs along image rows.
    pub(crate) fn runs(&self, tile: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let column = self.columns[tile % self.columns.len()].clone();
        let rows = self.rows[tile / self.columns.len()].clone();
        rows.map(move |y| y * self.width + column.start..y * self.width + column.end)
    }

    /// Cuts a buffer with `stride` values a pixel, in tile order, into one slice a tile.
    pub(crate) fn split_mut<'a, T>(&self, values: &'a mut [T], stride: usize) -> Vec<&'a mut [T]> {
        split_at_starts(values, &self.starts, stride)
    }

    pub(crate) fn slice<'a, T>(&self, values: &'a [T], stride: usize, tile: usize) -> &'a [T] {
        &values[self.starts[tile] * stride..self.starts[tile + 1] * stride]
    }
}

/// Cuts `values` at `starts[i] * stride`; what lies behind the last start is left out.
pub(crate) fn split_at_starts<'a, T>(
    values: &'a mut [T],
    starts: &[usize],
    stride: usize,
) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(starts.len());
    let mut rest = values;
    for pair in starts.windows(2) {
        let (part, tail) = rest.split_at_mut((pair[1] - pair[0]) * stride);
        parts.push(part);
        rest = tail;
    }
    parts
}

/// Cuts a length into parts of at most [`TILE_SIDE`] that differ by one at most.
fn even_parts(length: usize) -> Vec<Range<usize>> {
    let count = length.div_ceil(TILE_SIDE);
    (0..count).map(|part| part * length / count..(part + 1) * length / count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pixel_belongs_to_exactly_one_tile() {
        for (width, height) in [(1, 1), (64, 64), (65, 3), (500, 375), (1, 200)] {
            let tiles = Tiles::new(width, height);
            let mut seen = vec![0; width * height];
            for tile in 0..tiles.len() {
                let pixels: Vec<usize> = tiles.runs(tile).flatten().collect();
                assert_eq!(pixels.len(), tiles.slice(&seen, 1, tile).len());
                pixels.iter().for_each(|&pixel| seen[pixel] += 1);
            }
            assert!(seen.iter().all(|&count| count == 1), "{width}×{height}");
            assert_eq!(tiles.num_pixels(), width * height);
        }
    }
}
