//! A Gaussian with a standard deviation of one pixel as a direct 7×7 filter.
//!
//! Its lattice would have more vertices than the image has pixels. What such a lattice does to an image is a fixed
//! linear map of small reach: lattice columns are √3/2 pixels apart and lattice rows exactly one, so the taps differ
//! between image columns but, away from the top and bottom, not between rows. They are measured as the impulse response
//! of the lattice of a few rows, so the result equals the lattice's.

use crate::Error;
use crate::features::Features;
use crate::lattice::Lattice;
use crate::pairwise::Normalization;
use crate::tiles::Tiles;

/// The standard deviation in pixels that this filter is for.
pub(crate) const SIGMA: f32 = 1.0;

/// How far a pixel reaches. A pixel's simplex and the blur each reach less than 2 pixels.
pub(crate) const RADIUS: usize = 3;

/// Taps in a row and in a column.
pub(crate) const SIDE: usize = 2 * RADIUS + 1;

const TAPS: usize = SIDE * SIDE;

/// Taps padded to whole vectors.
const LANES: usize = TAPS.next_multiple_of(8);

/// Rows with their own weights at the top and bottom: those that reach pixels whose norm the border changes.
const BORDER: usize = 2 * RADIUS;

pub(crate) struct Stencil {
    width: usize,
    height: usize,
    /// For each row of a strip (the borders and one between) and each image column, the weights of the surrounding
    /// pixels, including normalisation.
    weights: Vec<[f32; TAPS]>,
}

impl Stencil {
    pub(crate) fn new(width: usize, height: usize, normalization: Normalization) -> Result<Self, Error> {
        let strip_height = height.min(2 * BORDER + 1);
        let tiles = Tiles::new(width, strip_height);
        let lattice = Lattice::build(&Features::position(width, strip_height, [SIGMA; 2])?, &tiles)?;
        // One lane per pixel of a SIDE×SIDE cell: pixels of the same lane are too far apart to interact.
        let lane = |x: usize, y: usize| y % SIDE * SIDE + x % SIDE;
        let values = lattice.filter::<LANES>(&tiles, |pixel| {
            let mut value = [0.0; LANES];
            value[lane(pixel % width, pixel / width)] = 1.0;
            value
        });
        let mut responses = vec![[0.0; LANES]; values.len()];
        for (pixel, response) in tiles.pixels().zip(values) {
            responses[pixel] = response;
        }
        let factors: Vec<f32> =
            responses.iter().map(|response| normalization.factor(response.iter().sum())).collect();

        let mut weights = vec![[0.0; TAPS]; width * strip_height];
        for (pixel, (weights, response)) in weights.iter_mut().zip(&responses).enumerate() {
            let (x, y) = (pixel % width, pixel / width);
            let after = if normalization.applies_after() { factors[pixel] } else { 1.0 };
            for (tap, weight) in weights.iter_mut().enumerate() {
                let other = ((x + tap % SIDE).checked_sub(RADIUS), (y + tap / SIDE).checked_sub(RADIUS));
                let (Some(other_x), Some(other_y)) = other else { continue };
                if other_x < width && other_y < strip_height {
                    let before =
                        if normalization.applies_before() { factors[other_y * width + other_x] } else { 1.0 };
                    *weight = after * before * response[lane(other_x, other_y)];
                }
            }
        }
        Ok(Self { width, height, weights })
    }

    /// The weights of the pixels around each pixel of an image row.
    pub(crate) fn weights_of_row(&self, y: usize) -> &[[f32; TAPS]] {
        // Rows from the top, from the bottom, and one for all between.
        let from_bottom = self.height - 1 - y;
        let last = self.weights.len() / self.width - 1;
        let strip_y = if from_bottom < BORDER { last - from_bottom.min(last) } else { y.min(BORDER) };
        &self.weights[strip_y * self.width..][..self.width]
    }
}

/// Pixel positions in an image with a zero border: after each row, which is also before the next, and above and below.
#[derive(Clone, Copy)]
pub(crate) struct Bordered {
    /// Values from one row to the next.
    pub(crate) pitch: usize,
    lanes: usize,
    height: usize,
}

impl Bordered {
    pub(crate) fn new(width: usize, height: usize, lanes: usize) -> Self {
        Self { pitch: (width + RADIUS) * lanes, lanes, height }
    }

    pub(crate) fn len(&self) -> usize {
        (self.height + 2 * RADIUS) * self.pitch + RADIUS * self.lanes
    }

    /// The first value of the pixel [`RADIUS`] to the left of and above another.
    pub(crate) fn corner_of(&self, x: usize, y: usize) -> usize {
        y * self.pitch + x * self.lanes
    }

    /// The values from the first pixel on.
    pub(crate) fn inner<'a>(&self, values: &'a mut [f32]) -> &'a mut [f32] {
        &mut values[self.corner_of(RADIUS, RADIUS)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stencil_does_what_the_lattice_does() {
        for (width, height) in [(1, 1), (2, 9), (9, 5), (40, 13), (13, 14), (70, 40)] {
            let value = |pixel: usize| (pixel * 37 % 101) as f32 / 101.0;
            let tiles = Tiles::new(width, height);
            let features = Features::position(width, height, [SIGMA; 2]).unwrap();
            let lattice = Lattice::build(&features, &tiles).unwrap();
            let expected = lattice.filter(&tiles, |pixel| [value(pixel)]);

            let stencil = Stencil::new(width, height, Normalization::None).unwrap();
            let bordered = Bordered::new(width, height, 1);
            let mut image = vec![0.0; bordered.len()];
            for (y, row) in bordered.inner(&mut image).chunks_mut(bordered.pitch).take(height).enumerate() {
                (0..width).for_each(|x| row[x] = value(y * width + x));
            }
            for (pixel, [expected]) in tiles.pixels().zip(expected) {
                let (x, y) = (pixel % width, pixel / width);
                let taps = stencil.weights_of_row(y)[x].iter().enumerate();
                let got: f32 = taps
                    .map(|(tap, weight)| {
                        weight * image[bordered.corner_of(x, y) + tap / SIDE * bordered.pitch + tap % SIDE]
                    })
                    .sum();
                assert!((got - expected).abs() < 1e-4, "{width}×{height}, ({x}, {y}): {got} not {expected}");
            }
        }
    }
}
