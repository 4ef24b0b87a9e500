//! The Gaussian of one pixel's standard deviation as a direct filter of 7×7 taps.
//!
//! Its lattice would have more vertices than the image has pixels. What such a lattice does to an image is a fixed linear
//! map of small reach: lattice columns are √3/2 pixels apart and lattice rows exactly one, so the taps differ from image
//! column to column but, away from the top and the bottom, not from row to row. They are read off the lattice of a few
//! rows: its answer to single bright pixels. So the result is that of the lattice, for a third of the work.

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

/// Rows that have weights of their own at the top and at the bottom: those that reach pixels whose norm the border changes.
const BORDER: usize = 2 * RADIUS;

pub(crate) struct Stencil {
    width: usize,
    height: usize,
    /// For each row of a strip, that is of the borders and one between, and each column of the image, the weights of the pixels around, normalisation included.
    weights: Vec<[f32; TAPS]>,
}

impl Stencil {
    pub(crate) fn new(width: usize, height: usize, normalization: Normalization) -> Result<Self, Error> {
        let strip_height = height.min(2 * BORDER + 1);
        let tiles = Tiles::new(width, strip_height);
        let lattice = Lattice::build(&Features::position(width, strip_height, [SIGMA; 2])?, &tiles)?;
        // One lane for each pixel of a SIDE×SIDE cell: pixels of the same lane are too far apart to meet.
        let lane = |x: usize, y: usize| y % SIDE * SIDE + x % SIDE;
        let num_lanes = TAPS.next_multiple_of(8);
        let values =
            lattice.filter(&tiles, num_lanes, |pixel, row| row[lane(pixel % width, pixel / width)] = 1.0);
        let mut responses: Vec<&[f32]> = vec![&[]; width * strip_height];
        for (pixel, response) in tiles.pixels().zip(values.chunks_exact(num_lanes)) {
            responses[pixel] = response;
        }
        let responses = |x: usize, y: usize| responses[y * width + x];
        let factors = |x: usize, y: usize| normalization.factors(responses(x, y).iter().sum());

        let mut weights = vec![[0.0; TAPS]; width * strip_height];
        for (index, weights) in weights.iter_mut().enumerate() {
            let (x, y) = (index % width, index / width);
            let [_, after] = factors(x, y);
            for (tap, weight) in weights.iter_mut().enumerate() {
                let (other_x, other_y) = (x + tap % SIDE, y + tap / SIDE);
                let inside = (RADIUS..width + RADIUS).contains(&other_x)
                    && (RADIUS..strip_height + RADIUS).contains(&other_y);
                if inside {
                    let (other_x, other_y) = (other_x - RADIUS, other_y - RADIUS);
                    let [before, _] = factors(other_x, other_y);
                    *weight = after * before * responses(x, y)[lane(other_x, other_y)];
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

/// Where pixels lie in an image with a border of zeros: behind each row, which is also before the next, and above and below.
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
