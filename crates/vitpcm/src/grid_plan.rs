//! Maps an image to the network's grid: whole or, for large images, in overlapping tiles on one common grid.

use vitpcm_masks::resampling::Part;

/// Fraction of a tile that overlaps its neighbour.
const OVERLAP: f64 = 0.25;

/// The grid of the whole image and the tiles that the network sees. All tiles have the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GridPlan {
    /// Width and height of the whole grid, in cells.
    pub(crate) grid: (usize, usize),
    /// The tiles, in cells, in reading order.
    pub(crate) tiles: Vec<Part>,
}

impl GridPlan {
    /// The whole image on one grid of `cells` × `cells`.
    pub(crate) fn whole(cells: usize) -> GridPlan {
        GridPlan { grid: (cells, cells), tiles: vec![Part::whole((cells, cells))] }
    }

    /// Tiles of `cells` × `cells` cells, each about `tile_side` image pixels wide. `None` if the whole grid would have
    /// more than `most_cells`.
    pub(crate) fn tiled(
        cells: usize,
        image_size: (usize, usize),
        tile_side: usize,
        most_cells: usize,
    ) -> Option<GridPlan> {
        let overlap = ((cells as f64 * OVERLAP).round() as usize).min(cells - 1);
        let stride = cells - overlap;
        let starts = |length: usize| -> Vec<usize> {
            // Enough tiles to keep the image's full resolution.
            let cells_wanted = (length as f64 * cells as f64 / tile_side as f64).ceil() as usize;
            let num_tiles = 1 + cells_wanted.saturating_sub(cells).div_ceil(stride);
            (0..num_tiles).map(|i| i * stride).collect()
        };
        let (columns, rows) = (starts(image_size.0), starts(image_size.1));
        let extent = |starts: &[usize]| starts.last().map_or(0, |start| start + cells);
        let grid = (extent(&columns), extent(&rows));
        if grid.0.saturating_mul(grid.1) > most_cells {
            return None;
        }
        let tile = |x: usize, y: usize| Part { x, y, width: cells, height: cells };
        let tiles = rows.iter().flat_map(|&y| columns.iter().map(move |&x| tile(x, y))).collect();
        Some(GridPlan { grid, tiles })
    }
}

/// Weight of cell `i` of a tile `cells` wide: it falls towards the border, so that tiles blend.
pub(crate) fn blend_weight(i: usize, cells: usize) -> f32 {
    (i + 1).min(cells - i) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_grid_and_overlap() {
        for (image_size, expected_tiles) in [((1000, 1000), 1), ((1001, 400), 2), ((2600, 1800), 4 * 3)] {
            let plan = GridPlan::tiled(60, image_size, 1000, usize::MAX).unwrap();
            assert_eq!(plan.tiles.len(), expected_tiles, "{image_size:?}");
            let (width, height) = plan.grid;
            let mut covered = vec![0; width * height];
            for tile in &plan.tiles {
                for y in tile.y..tile.y + tile.height {
                    (tile.x..tile.x + tile.width).for_each(|x| covered[y * width + x] += 1);
                }
            }
            assert!(covered.iter().all(|&count| count >= 1), "{image_size:?}");
            // At least the image's own resolution: 60 cells for 1000 pixels.
            assert!(width * 1000 >= image_size.0 * 60 && height * 1000 >= image_size.1 * 60);
        }
    }

    #[test]
    fn a_grid_beyond_the_limit_is_refused_before_its_tiles_are_listed() {
        assert_eq!(GridPlan::tiled(60, (100_000, 100_000), 60, 1 << 24), None);
    }
}
