//! The two augmented views of an image and their geometry (docs/reference/method.md, "Views"): a first view of the
//! whole image, and a smaller second one, four of which are merged into one picture. The geometry maps every grid cell
//! of the second view to the cells below it in the first view's map, which is all that the equivariance loss needs.

use crate::class_shares::ClassShares;
use crate::colour::ColourChange;
use crate::random::Random;
use serde::{Deserialize, Serialize};
use vitpcm_masks::Symmetry;
use vitpcm_masks::resampling::{Alignment, Axis, resize_plane};

/// Distribution of crop positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CropStarts {
    /// Uniform over all positions inside the image.
    #[default]
    Uniform,
    /// As in the released code: drawn over the whole side and clamped, so that 36 % are at the far edge.
    Clamped,
}

/// Settings of the views. Lengths are in grid cells (patches); the second view has half the first one's side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewMaker {
    /// Grid cells per side of the first view; even.
    pub grid: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Probability that the second view is a crop rather than the whole image (0.3 for VOC, 0 for COCO).
    pub crop_probability: f32,
    /// Side of a crop, in cells (8 of 24: 128 of 384 pixels).
    pub crop_side: usize,
    /// Where crops may start.
    pub crop_starts: CropStarts,
    /// Alignment used to scale the second view and its target.
    pub alignment: Alignment,
    /// Colour jitter, drawn for each view.
    pub colour: ColourChange,
}

/// A square part of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Square {
    /// First column, in cells.
    pub column: usize,
    /// First row, in cells.
    pub row: usize,
    /// Side, in cells.
    pub side: usize,
}

/// How the two views of an image were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewGeometry {
    /// Symmetry of the first view.
    pub first_symmetry: Symmetry,
    /// The part of the image that the second view shows.
    pub second_part: Square,
    /// Symmetry of the second view, after it was scaled.
    pub second_symmetry: Symmetry,
}

/// Two views of one image: three planes (red, green, blue) each, of 0..=255.
#[derive(Clone, Debug, PartialEq)]
pub struct Views {
    /// The whole image, `grid` cells per side.
    pub first: Vec<f32>,
    /// The second view, half as many cells per side.
    pub second: Vec<f32>,
    /// How they were made.
    pub geometry: ViewGeometry,
    /// The image's pseudo-mask on the first view's grid, in a second training round.
    pub pseudo_mask: Option<ClassShares>,
}

impl ViewMaker {
    /// Side of the first view in pixels.
    pub fn first_side(&self) -> usize {
        self.grid * self.patch
    }

    /// Side of the second view in pixels.
    pub fn second_side(&self) -> usize {
        self.first_side() / 2
    }

    /// Two views of an image that is already scaled to the first view's size (three planes).
    pub fn make(&self, image: &[f32], random: &mut Random) -> Views {
        let side = self.first_side();
        assert_eq!(image.len(), 3 * side * side, "three planes of the first view's size");
        let geometry = self.draw_geometry(random);

        let mut first = image.to_vec();
        self.colour.apply(&mut first, random);
        let first = geometry.first_symmetry.apply(&first, (side, side));

        let mut second = self.scaled_part(image, geometry.second_part);
        self.colour.apply(&mut second, random);
        let second = geometry.second_symmetry.apply(&second, (self.second_side(), self.second_side()));
        Views { first, second, geometry, pseudo_mask: None }
    }

    fn draw_geometry(&self, random: &mut Random) -> ViewGeometry {
        let first_symmetry = Symmetry::ALL[random.below(8)];
        let second_symmetry = Symmetry::ALL[random.below(8)];
        let is_crop = random.chance(self.crop_probability);
        let (column, row) = (self.draw_start(random), self.draw_start(random));
        let whole = Square { column: 0, row: 0, side: self.grid };
        let crop = Square { column, row, side: self.crop_side };
        ViewGeometry { first_symmetry, second_part: if is_crop { crop } else { whole }, second_symmetry }
    }

    fn draw_start(&self, random: &mut Random) -> usize {
        let last = self.grid - self.crop_side;
        match self.crop_starts {
            CropStarts::Uniform => random.below(last + 1),
            CropStarts::Clamped => random.below(self.grid + 1).min(last),
        }
    }

    /// A part of the image, scaled to the second view's size.
    fn scaled_part(&self, image: &[f32], part: Square) -> Vec<f32> {
        let side = self.first_side();
        let [column, row, length] = [part.column, part.row, part.side].map(|cells| cells * self.patch);
        let to = (self.second_side(), self.second_side());
        let mut scaled = Vec::with_capacity(3 * to.0 * to.1);
        let mut part = Vec::with_capacity(length * length);
        for plane in image.chunks_exact(side * side) {
            part.clear();
            for row in plane.chunks_exact(side).skip(row).take(length) {
                part.extend_from_slice(&row[column..column + length]);
            }
            scaled.extend_from_slice(&resize_plane(&part, (length, length), to, self.alignment));
        }
        scaled
    }

    /// The matrix from the first view's map to the second view: `weights[(y * half + x) * grid² + cell]` is the weight
    /// of `cell` of the first view's map in cell (x, y) of the second's. Rows sum to 1.
    ///
    /// Inverts the first view's symmetry, takes the part, scales it to half the grid, and applies the second view's
    /// symmetry.
    pub fn second_from_first(&self, geometry: &ViewGeometry) -> Vec<f32> {
        let (grid, half) = (self.grid, self.grid / 2);
        let part = geometry.second_part;
        let axis = Axis::bilinear(part.side, half, self.alignment);
        let place_in_first = geometry.first_symmetry.inverse();
        let mut weights = vec![0.0; half * half * grid * grid];
        for (cell, row_of_weights) in weights.chunks_exact_mut(grid * grid).enumerate() {
            let (x, y) = geometry.second_symmetry.source((cell % half, cell / half), (half, half));
            let (first_column, column_weights) = axis.taps(x);
            let (first_row, row_weights) = axis.taps(y);
            for (i, &row_weight) in row_weights.iter().enumerate() {
                for (j, &column_weight) in column_weights.iter().enumerate() {
                    let in_image = (part.column + first_column + j, part.row + first_row + i);
                    let (column, row) = place_in_first.source(in_image, (grid, grid));
                    row_of_weights[row * grid + column] += row_weight * column_weight;
                }
            }
        }
        weights
    }
}

/// Four second views as one picture of twice their side, in row-major order; three planes each.
pub fn merged(views: [&[f32]; 4], side: usize) -> Vec<f32> {
    let mut picture = vec![0.0; 4 * views[0].len()];
    for (i, view) in views.into_iter().enumerate() {
        let (column, row) = (i % 2 * side, i / 2 * side);
        for (j, line) in view.chunks_exact(side).enumerate() {
            let (plane, y) = (j / side, j % side);
            let start = (plane * 2 * side + row + y) * 2 * side + column;
            picture[start..start + side].copy_from_slice(line);
        }
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(alignment: Alignment) -> ViewMaker {
        let colour = ColourChange {
            brightness: 0.0,
            contrast: (1.0, 1.0),
            saturation: (1.0, 1.0),
            hue: 0.0,
            grey_probability: 0.0,
            ..ColourChange::default()
        };
        let crop_starts = CropStarts::Uniform;
        ViewMaker { grid: 6, patch: 4, crop_probability: 0.5, crop_side: 2, crop_starts, alignment, colour }
    }

    /// Weight of input sample `i` in output sample `o`, directly from the definition, for enlarging and for halving.
    fn brute_weight(i: usize, o: usize, from: usize, to: usize, alignment: Alignment) -> f64 {
        let ratio = from as f64 / to as f64;
        let (position, width) = match alignment {
            Alignment::HalfPixel => ((o as f64 + 0.5) * ratio - 0.5, ratio.max(1.0)),
            Alignment::AlignCorners => (o as f64 * (from - 1) as f64 / (to - 1) as f64, 1.0),
        };
        // Enlarging clamps at the border; shrinking truncates the triangle there and renormalises.
        if ratio <= 1.0 || alignment == Alignment::AlignCorners {
            let position = position.clamp(0.0, (from - 1) as f64);
            return (1.0 - (position - i as f64).abs()).max(0.0);
        }
        let triangle = |j: usize| (1.0 - ((j as f64 - position) / width).abs()).max(0.0);
        triangle(i) / (0..from).map(triangle).sum::<f64>()
    }

    #[test]
    fn the_target_of_every_symmetry_and_crop_equals_a_brute_force_sampling() {
        let (grid, half) = (6, 3);
        let map: Vec<f32> = (0..grid * grid).map(|i| ((i * 37) % 41) as f32 / 41.0).collect();
        let squares = (0..=4).flat_map(|column| (0..=4).map(move |row| Square { column, row, side: 2 }));
        let parts: Vec<Square> = squares.chain([Square { column: 0, row: 0, side: 6 }]).collect();
        for alignment in [Alignment::HalfPixel, Alignment::AlignCorners] {
            let maker = maker(alignment);
            for (first_symmetry, second_symmetry) in
                Symmetry::ALL.into_iter().flat_map(|a| Symmetry::ALL.map(|b| (a, b)))
            {
                for &second_part in &parts {
                    let geometry = ViewGeometry { first_symmetry, second_part, second_symmetry };
                    let weights = maker.second_from_first(&geometry);
                    // The first view's map, as the network would see it, and the matrix's result.
                    let seen = first_symmetry.apply(&map, (grid, grid));
                    let ours: Vec<f32> = weights
                        .chunks_exact(grid * grid)
                        .map(|row| row.iter().zip(&seen).map(|(w, v)| w * v).sum())
                        .collect();
                    // By brute force: the part of the upright map, sampled, then flipped as a picture.
                    let side = second_part.side;
                    let sampled: Vec<f32> = (0..half * half)
                        .map(|cell| {
                            let cells = (0..side).flat_map(|y| (0..side).map(move |x| (x, y)));
                            let sum: f64 = cells
                                .map(|(x, y)| {
                                    brute_weight(x, cell % half, side, half, alignment)
                                        * brute_weight(y, cell / half, side, half, alignment)
                                        * f64::from(
                                            map[(second_part.row + y) * grid + second_part.column + x],
                                        )
                                })
                                .sum();
                            sum as f32
                        })
                        .collect();
                    let expected = second_symmetry.apply(&sampled, (half, half));
                    for (a, b) in ours.iter().zip(&expected) {
                        assert!((a - b).abs() < 1e-6, "{alignment:?} {geometry:?}: {ours:?} {expected:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn undoing_the_first_view_returns_the_grid_exactly() {
        let map: Vec<f32> = (0..36).map(|i| i as f32).collect();
        for symmetry in Symmetry::ALL {
            assert_eq!(symmetry.inverse().apply(&symmetry.apply(&map, (6, 6)), (6, 6)), map);
        }
    }

    #[test]
    fn the_second_view_shows_the_part_its_geometry_names() {
        let maker = maker(Alignment::HalfPixel);
        let side = maker.first_side();
        // A picture whose value is constant over each cell: the second view of a part must show that part's cells.
        let plane = (0..side * side).map(|i| ((i / side / 4) * 6 + (i % side) / 4) as f32 * 7.0);
        let plane: Vec<f32> = plane.collect();
        let image = [plane.clone(), plane.clone(), plane].concat();
        let mut random = Random::new(&[1]);
        let (mut num_crops, mut num_views) = (0, 0);
        while num_crops < 10 {
            let views = maker.make(&image, &mut random);
            num_views += 1;
            let part = views.geometry.second_part;
            if part.side != 2 {
                continue;
            }
            num_crops += 1;
            let upright = views.geometry.second_symmetry.inverse().apply(&views.second, (12, 12));
            let corner = ((part.row * 6 + part.column) as f32) * 7.0;
            assert_eq!((upright[0], upright[11]), (corner, corner + 7.0));
            assert_eq!(upright[143], corner + 49.0);
        }
        assert!((10..60).contains(&num_views), "{num_views} views for 10 crops at probability 0.5");
    }

    #[test]
    fn clamped_starts_stick_to_the_far_edge() {
        let clamped = ViewMaker {
            grid: 24,
            crop_side: 8,
            crop_starts: CropStarts::Clamped,
            ..maker(Alignment::HalfPixel)
        };
        let mut random = Random::new(&[2]);
        let at_edge = (0..10_000).filter(|_| clamped.draw_start(&mut random) == 16).count();
        assert!((3_400..=3_800).contains(&at_edge), "{at_edge}: docs/reference/method.md says 36 %");
        let uniform = ViewMaker { crop_starts: CropStarts::Uniform, ..clamped };
        let at_edge = (0..10_000).filter(|_| uniform.draw_start(&mut random) == 16).count();
        assert!((480..=700).contains(&at_edge), "{at_edge}: 1 in 17");
    }

    #[test]
    fn four_views_merge_in_reading_order() {
        let view = |value: f32| (0..12).map(|i| value + (i / 4) as f32 * 10.0).collect::<Vec<f32>>();
        let views: Vec<Vec<f32>> = (0..4).map(|i| view(i as f32)).collect();
        let picture = merged([&views[0], &views[1], &views[2], &views[3]], 2);
        let first_plane = [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3].map(|v| v as f32);
        assert_eq!(picture[..16], first_plane);
        assert_eq!(picture[16..32], first_plane.map(|value| value + 10.0));
    }
}
