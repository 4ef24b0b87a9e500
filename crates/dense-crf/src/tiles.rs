//! The order in which pixels are stored inside the crate: tile by tile, row-major within a tile.
//!
//! Neighbouring pixels touch the same lattice vertices, so a tile touches few and its part of the lattice fits the
//! second-level cache. The tiling depends on the image size only, never on the number of threads: results are
//! reproducible bit for bit.

use std::ops::Range;

/// Target side of a tile in pixels.
pub(crate) const TILE_SIDE: usize = 64;

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

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn height(&self) -> usize {
        self.rows.last().map_or(0, |rows| rows.end)
    }

    pub(crate) fn num_pixels(&self) -> usize {
        self.starts[self.len()]
    }

    /// Row-major indices of the pixels of a tile, in tile order, as runs along image rows.
    pub(crate) fn runs(&self, tile: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let [column, rows] = self.area(tile);
        rows.map(move |y| y * self.width + column.start..y * self.width + column.end)
    }

    /// The columns and rows of the image that a tile covers.
    pub(crate) fn area(&self, tile: usize) -> [Range<usize>; 2] {
        let (row, column) = (tile / self.columns.len(), tile % self.columns.len());
        [self.columns[column].clone(), self.rows[row].clone()]
    }

    /// Row-major indices of all pixels, in tile order.
    pub(crate) fn pixels(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).flat_map(|tile| self.runs(tile)).flatten()
    }

    /// Splits an image with `stride` values per pixel and `pitch` values from row to row into the runs of each tile.
    pub(crate) fn split_runs_mut<'a, T>(
        &self,
        values: &'a mut [T],
        pitch: usize,
        stride: usize,
    ) -> Vec<Vec<&'a mut [T]>> {
        let mut runs: Vec<Vec<&mut [T]>> = (0..self.len()).map(|_| Vec::new()).collect();
        let mut image_rows = values.chunks_mut(pitch);
        for (rows, runs) in self.rows.iter().zip(runs.chunks_mut(self.columns.len())) {
            for mut rest in image_rows.by_ref().take(rows.len()) {
                for (column, runs) in self.columns.iter().zip(&mut *runs) {
                    let (run, tail) = rest.split_at_mut(column.len() * stride);
                    runs.push(run);
                    rest = tail;
                }
            }
        }
        runs
    }

    /// Splits a buffer with `stride` values per pixel, in tile order, into one slice per tile.
    pub(crate) fn split_mut<'a, T>(&self, values: &'a mut [T], stride: usize) -> Vec<&'a mut [T]> {
        split_at_starts(values, &self.starts, stride)
    }

    pub(crate) fn slice<'a, T>(&self, values: &'a [T], stride: usize, tile: usize) -> &'a [T] {
        &values[self.starts[tile] * stride..self.starts[tile + 1] * stride]
    }
}

/// Splits `values` at `starts[i] * stride`; the rest after the last start is left out.
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

/// Splits a length into parts of at most [`TILE_SIDE`] that differ by at most one.
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
