//! Finds the simplex of the permutohedral lattice that encloses a point, its vertices and the point's barycentric
//! coordinates (Adams, Baek and Davis, "Fast high-dimensional filtering using the permutohedral lattice", 2010, section 3).
//!
//! A lattice point in d dimensions has d+1 integer coordinates that sum to zero and are all congruent modulo d+1. So it is
//! stored as one `u64`: its common remainder, and the quotients of the first d coordinates in a mixed radix that covers
//! the bounding box of the features. Walking to another vertex of the simplex, or to a neighbour along a lattice axis, is
//! then one addition.

use crate::Error;
use crate::features::{LANES, Lane, MAX_DIMENSION};

/// Adding and subtracting this rounds an `f32` below 2²² to the nearest integer, ties to even, on any instruction set.
const ROUNDING: f32 = 12_582_912.0;

/// Coordinates beyond this, in lattice cells, would leave too few bits of an `f32` for the barycentric coordinates.
const MAX_CELLS: f64 = 262_144.0;

/// The vertices around a block of points and their barycentric coordinates, by remainder.
#[derive(Default)]
pub(crate) struct Simplices {
    pub(crate) keys: [[u64; MAX_DIMENSION + 1]; LANES],
    pub(crate) weights: [[f32; MAX_DIMENSION + 1]; LANES],
}

pub(crate) struct Embedding {
    dimension: usize,
    /// Diagonal of the map onto the lattice's hyperplane, with the lattice's own standard deviation.
    scale: [f32; MAX_DIMENSION],
    /// Smallest quotient of each coordinate, margin included.
    lowest: [f32; MAX_DIMENSION],
    /// Factor of each coordinate's quotient in a key; zero for the last coordinate, which the others determine.
    strides: [u64; MAX_DIMENSION + 1],
    /// All keys are below this.
    num_keys: u64,
}

impl Embedding {
    /// `bounds` holds an interval for each feature, in units of its standard deviation.
    pub(crate) fn new(bounds: &[[f32; 2]]) -> Result<Self, Error> {
        let dimension = bounds.len();
        let cells = (dimension + 1) as f64;
        let span = bounds.iter().fold(0f32, |span, b| span.max(b[1] - b[0]).max(b[0].abs()).max(b[1].abs()));
        let too_far = Error::FeatureRange { dimension, span };

        // The blur is a [1 2 1]/4 kernel along d+1 axes, a Gaussian of standard deviation sqrt(2/3)·(d+1) (p. 6).
        let mut scale = [0.0; MAX_DIMENSION];
        for (i, scale) in scale.iter_mut().enumerate().take(dimension) {
            *scale = ((2.0f64 / 3.0).sqrt() * cells / (((i + 1) * (i + 2)) as f64).sqrt()) as f32;
        }

        let mut lowest = [0.0; MAX_DIMENSION];
        let mut strides = [0; MAX_DIMENSION + 1];
        let mut num_keys = dimension as u64 + 1;
        for j in 0..dimension {
            // Coordinate j of y = E·f is the sum of the later scaled features less j times its own.
            let mut interval = [0.0f64; 2];
            for i in j.saturating_sub(1)..dimension {
                let factor = f64::from(scale[i]) * if i + 1 == j { -(j as f64) } else { 1.0 };
                let (a, b) = (factor * f64::from(bounds[i][0]), factor * f64::from(bounds[i][1]));
                interval = [interval[0] + a.min(b), interval[1] + a.max(b)];
            }
            // One cell for rounding, one for the simplex, one for the blur's neighbours, one for the errors of f32.
            let (low, high) = ((interval[0] / cells).floor() - 4.0, (interval[1] / cells).ceil() + 4.0);
            if !(low > -MAX_CELLS && high < MAX_CELLS) {
                return Err(too_far);
            }
            lowest[j] = low as f32;
            strides[j] = num_keys;
            num_keys = num_keys.checked_mul((high - low) as u64 + 1).ok_or(too_far.clone())?;
        }
        if num_keys > i64::MAX as u64 {
            return Err(too_far);
        }
        Ok(Self { dimension, scale, lowest, strides, num_keys })
    }

    pub(crate) fn num_keys(&self) -> u64 {
        self.num_keys
    }

    /// The key of the next vertex along a lattice axis: one more in every coordinate, d less in that of the axis.
    pub(crate) fn next_along(&self, axis: usize, key: u64) -> u64 {
        let remainder = key % (self.dimension as u64 + 1);
        if remainder < self.dimension as u64 {
            key + 1 - self.strides[axis]
        } else {
            let all: u64 = self.strides[..self.dimension].iter().sum();
            key - remainder + all - self.strides[axis]
        }
    }

    /// Encloses a block of points. `D` is the number of dimensions if known at compile time, else 0.
    pub(crate) fn enclose<const D: usize>(&self, features: &[Lane; MAX_DIMENSION], simplices: &mut Simplices) {
        let d = if D == 0 { self.dimension } else { D };

        // y = E·f (p. 5)
        let mut elevated = [[0.0; LANES]; MAX_DIMENSION + 1];
        let mut sum = [0.0; LANES];
        for j in (1..=d).rev() {
            for lane in 0..LANES {
                let scaled = features[j - 1][lane] * self.scale[j - 1];
                elevated[j][lane] = sum[lane] - j as f32 * scaled;
                sum[lane] += scaled;
            }
        }
        elevated[0] = sum;

        // The nearest point with remainder 0 in each coordinate; its coordinates need not sum to zero yet.
        let per_cell = 1.0 / (d + 1) as f32;
        let mut quotients = [[0.0; LANES]; MAX_DIMENSION + 1];
        let mut offsets = [[0.0; LANES]; MAX_DIMENSION + 1];
        let mut excess = [0.0; LANES];
        for i in 0..=d {
            for lane in 0..LANES {
                let quotient = (elevated[i][lane] * per_cell + ROUNDING) - ROUNDING;
                quotients[i][lane] = quotient;
                offsets[i][lane] = elevated[i][lane] - quotient * (d + 1) as f32;
                excess[lane] += quotient;
            }
        }

        // Rank of each coordinate by its offset, largest first; shifted by the excess so that the sum becomes zero.
        let mut ranks = [[0.0f32; LANES]; MAX_DIMENSION + 1];
        for i in 0..d {
            for j in i + 1..=d {
                for lane in 0..LANES {
                    let behind = if offsets[i][lane] < offsets[j][lane] { 1.0 } else { 0.0 };
                    ranks[i][lane] += behind;
                    ranks[j][lane] += 1.0 - behind;
                }
            }
        }
        for i in 0..=d {
            for lane in 0..LANES {
                let rank = ranks[i][lane] + excess[lane];
                let wrap = if rank < 0.0 { 1.0 } else { 0.0 } - if rank > d as f32 { 1.0 } else { 0.0 };
                ranks[i][lane] = rank + wrap * (d + 1) as f32;
                quotients[i][lane] += wrap;
                offsets[i][lane] = (elevated[i][lane] - quotients[i][lane] * (d + 1) as f32) * per_cell;
            }
        }

        for lane in 0..LANES {
            let mut offset_by_rank = [0.0; MAX_DIMENSION + 1];
            let mut stride_by_rank = [0; MAX_DIMENSION + 1];
            let mut key = 0;
            for i in 0..=d {
                let rank = (ranks[i][lane] as usize).min(d);
                offset_by_rank[rank] = offsets[i][lane];
                stride_by_rank[rank] = self.strides[i];
                if i < d {
                    key += (quotients[i][lane] - self.lowest[i]) as u64 * self.strides[i];
                }
            }
            // Barycentric coordinates (p. 10): differences of neighbouring offsets.
            let (keys, weights) = (&mut simplices.keys[lane], &mut simplices.weights[lane]);
            keys[0] = key;
            weights[0] = 1.0 + offset_by_rank[d] - offset_by_rank[0];
            for remainder in 1..=d {
                key = (key + 1).wrapping_sub(stride_by_rank[d + 1 - remainder]);
                keys[remainder] = key;
                weights[remainder] = offset_by_rank[d - remainder] - offset_by_rank[d + 1 - remainder];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(points: &[[f32; 3]; LANES]) -> [Lane; MAX_DIMENSION] {
        std::array::from_fn(|i| std::array::from_fn(|lane| points[lane].get(i).copied().unwrap_or(0.0)))
    }

    #[test]
    fn barycentric_coordinates_are_a_partition_of_unity() {
        let embedding = Embedding::new(&[[-9.0, 9.0]; 3]).unwrap();
        let mut simplices = Simplices::default();
        let points = std::array::from_fn(|i| [i as f32 * 0.37 - 1.0, -(i as f32) * 1.3, 8.5 - i as f32 * 2.1]);
        embedding.enclose::<0>(&block(&points), &mut simplices);
        for weights in &simplices.weights {
            let sum: f32 = weights[..4].iter().sum();
            assert!((sum - 1.0).abs() < 1e-5, "{weights:?}");
            assert!(weights[..4].iter().all(|&w| (-1e-5..=1.0 + 1e-5).contains(&w)), "{weights:?}");
        }
    }

    #[test]
    fn a_walk_along_all_axes_returns_to_its_start() {
        let embedding = Embedding::new(&[[-9.0, 9.0]; 3]).unwrap();
        let mut simplices = Simplices::default();
        embedding.enclose::<3>(&block(&[[1.0, -2.0, 3.0]; LANES]), &mut simplices);
        for &start in &simplices.keys[0][..4] {
            let end = (0..4).fold(start, |key, axis| embedding.next_along(axis, key));
            assert_eq!(end, start);
        }
    }

    #[test]
    fn features_beyond_the_keys_are_refused() {
        assert!(matches!(Embedding::new(&[[0.0, 1e9]; 2]), Err(Error::FeatureRange { dimension: 2, .. })));
        assert!(matches!(Embedding::new(&[[0.0, 1e4]; 15]), Err(Error::FeatureRange { dimension: 15, .. })));
        assert!(matches!(Embedding::new(&[[f32::MIN, f32::MAX]; 1]), Err(Error::FeatureRange { .. })));
    }
}
