//! Finds the simplex of the permutohedral lattice that encloses a point, its vertices and the point's barycentric
//! coordinates (Adams, Baek and Davis, "Fast high-dimensional filtering using the permutohedral lattice", 2010, section 3).
//!
//! A lattice point in d dimensions has d+1 integer coordinates that sum to zero and are all congruent modulo d+1. So it is
//! stored as one `u64`: its common remainder, and the quotients of the first d coordinates by d+1 in a mixed radix that
//! covers the bounding box of the features. The key is linear in the quotients: walking to another vertex of the simplex,
//! or to a neighbour along a lattice axis, is one addition, and a walk along an axis keeps the order of keys.

use crate::Error;
use crate::features::{LANES, Lane, MAX_DIMENSION};

/// Adding and subtracting this rounds an `f32` below 2²² to the nearest integer, ties to even, on any instruction set.
const ROUNDING: f32 = 12_582_912.0;

/// Limit on coordinates, in lattice cells: beyond it an `f32` has too few bits for the barycentric coordinates.
const MAX_CELLS: f64 = 262_144.0;

/// The vertices around a block of points and their barycentric coordinates, by remainder.
#[derive(Default)]
pub(crate) struct Simplices {
    pub(crate) keys: [[u64; MAX_DIMENSION + 1]; LANES],
    pub(crate) weights: [[f32; MAX_DIMENSION + 1]; LANES],
}

/// Axes from this one on lead to vertices at the same place.
pub(crate) const PLACE_AXES: usize = 3;

pub(crate) struct Embedding {
    dimension: usize,
    /// Diagonal of the map onto the lattice's hyperplane, with the lattice's own standard deviation.
    scale: [f32; MAX_DIMENSION],
    /// Increment of the key per quotient of each coordinate; zero for the last coordinate, which the others determine.
    strides: [i64; MAX_DIMENSION + 1],
    /// Increment of the key per remainder.
    remainder_stride: i64,
    /// The place digits are multiples of this.
    place_stride: i64,
    /// Added to every key so that none is negative.
    bias: i64,
}

/// A digit of a key: a sum of quotients and the remainder with small factors.
struct Digit {
    factors: [i64; MAX_DIMENSION],
    remainder: i64,
}

impl Digit {
    /// The digits of a key, least significant first.
    ///
    /// The two most significant are multiples of the first two features, the image coordinates of the usual kernels, so
    /// that vertices sorted by key are near each other where the pixels are: with `y = E·f` and scales s,
    /// `y₀ − y₁ = 2·s₀·f₀`, and `y₀ + y₁ − 2·y₂ = 6·s₁·f₁` or, in two dimensions, `y₀ + y₁ = 2·s₁·f₁`.
    fn all(dimension: usize) -> Vec<Self> {
        let digit = |pairs: &[(usize, i64)], remainder: i64| {
            let mut factors = [0; MAX_DIMENSION];
            pairs.iter().for_each(|&(coordinate, factor)| factors[coordinate] = factor);
            Self { factors, remainder }
        };
        let mut digits: Vec<Self> =
            (2..dimension).rev().map(|coordinate| digit(&[(coordinate, 1)], 0)).collect();
        match dimension {
            1 => digits.push(digit(&[(0, 1)], 0)),
            2 => digits.extend([digit(&[(0, 1), (1, -1)], 0), digit(&[(0, 3), (1, 3)], 2)]),
            _ => digits.extend([digit(&[(0, 1), (1, -1)], 0), digit(&[(0, 1), (1, 1), (2, -2)], 0)]),
        }
        digits
    }
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

        let mut strides = [0i64; MAX_DIMENSION + 1];
        let (mut bias, mut remainder_stride) = (0i64, 1i64);
        let mut stride = (dimension as i64 + 1).unsigned_abs().next_power_of_two() as i64;
        let mut place_stride = stride;
        let digits = Digit::all(dimension);
        let num_digits = digits.len();
        for (i, digit) in digits.into_iter().enumerate() {
            if i + 2 == num_digits {
                place_stride = stride;
            }
            // The interval of the digit for points, plus 4 cells for each quotient: rounding, the vertices of a simplex,
            // their neighbours, and the errors of f32.
            let margin = 4.0 * digit.factors.iter().map(|factor| factor.abs() as f64).sum::<f64>();
            let mut interval = [-margin, margin];
            for (i, bound) in bounds.iter().enumerate() {
                let factor = feature_factor(&digit, i) * f64::from(scale[i]) / cells;
                let (a, b) = (factor * f64::from(bound[0]), factor * f64::from(bound[1]));
                interval = [interval[0] + a.min(b), interval[1] + a.max(b)];
            }
            let (low, high) = (interval[0].floor(), interval[1].ceil());
            if !(low > -MAX_CELLS && high < MAX_CELLS) {
                return Err(too_far);
            }
            for (total, factor) in strides.iter_mut().zip(digit.factors) {
                *total += stride * factor;
            }
            remainder_stride += stride * digit.remainder;
            bias -= stride * low as i64;
            // Two bits to spare, so that sums of strides cannot overflow.
            let radix = (high - low) as i64 + 1;
            stride =
                stride.checked_mul(radix).filter(|&stride| stride < i64::MAX / 64).ok_or(too_far.clone())?;
        }
        Ok(Self { dimension, scale, strides, remainder_stride, place_stride, bias })
    }

    /// The two most significant digits of a key: the vertex's place in the image.
    pub(crate) fn place(&self, key: u64) -> u64 {
        key / self.place_stride as u64
    }

    /// The key of the next vertex along a lattice axis, and whether the remainder wrapped around. Next means one more
    /// in every coordinate and d+1 less in that of the axis. For keys that wrap alike, the result ascends with the key.
    pub(crate) fn behind(&self, axis: usize, key: u64) -> (u64, bool) {
        let last = self.dimension as u64;
        let remainder = key & ((last + 1).next_power_of_two() - 1);
        let wraps = remainder == last;
        let across = if wraps {
            self.strides[..self.dimension].iter().sum::<i64>() - last as i64 * self.remainder_stride
        } else {
            self.remainder_stride
        };
        (key.wrapping_add_signed(across - self.strides[axis]), wraps)
    }

    #[cfg(test)]
    pub(crate) fn key_of_origin(&self) -> u64 {
        self.bias as u64
    }

    /// Encloses a block of points. `D` is the number of dimensions if known at compile time, else 0.
    pub(crate) fn enclose<const D: usize>(
        &self,
        features: &[Lane; MAX_DIMENSION],
        simplices: &mut Simplices,
    ) {
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
            let mut key = self.bias;
            for i in 0..=d {
                let rank = (ranks[i][lane] as usize).min(d);
                offset_by_rank[rank] = offsets[i][lane];
                stride_by_rank[rank] = self.strides[i];
                if i < d {
                    key += quotients[i][lane] as i64 * self.strides[i];
                }
            }
            // Barycentric coordinates (p. 10): differences of neighbouring offsets.
            let (keys, weights) = (&mut simplices.keys[lane], &mut simplices.weights[lane]);
            keys[0] = key as u64;
            weights[0] = 1.0 + offset_by_rank[d] - offset_by_rank[0];
            for remainder in 1..=d {
                key += self.remainder_stride - stride_by_rank[d + 1 - remainder];
                keys[remainder] = key as u64;
                weights[remainder] = offset_by_rank[d - remainder] - offset_by_rank[d + 1 - remainder];
            }
        }
    }
}

/// A digit's increment per unit of a scaled feature: coordinate j of `y = E·f` is the sum of the features from j on,
/// minus j times feature j−1.
fn feature_factor(digit: &Digit, feature: usize) -> f64 {
    let coordinates = digit.factors.iter().enumerate();
    let terms = coordinates.map(|(j, &factor)| match feature + 1 {
        k if k > j => factor as f64,
        k if k == j => -(j as f64) * factor as f64,
        _ => 0.0,
    });
    terms.sum()
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
        let points =
            std::array::from_fn(|i| [i as f32 * 0.37 - 1.0, -(i as f32) * 1.3, 8.5 - i as f32 * 2.1]);
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
            let end = (0..4).fold(start, |key, axis| embedding.behind(axis, key).0);
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
