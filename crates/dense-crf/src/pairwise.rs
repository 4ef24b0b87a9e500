//! A pairwise term: a Gaussian kernel over features with its normalisation, and the label compatibility. A
//! permutohedral lattice filters the kernel; the iterations are left to `mean_field`.

use rayon::prelude::*;

use crate::Error;
use crate::features::Features;
use crate::lattice::{Lattice, WEIGHT_ONE};
use crate::stencil::Stencil;
use crate::tiles::Tiles;

/// How the features of two pixels are compared: the kernel is `exp(-½ |A (fᵢ − fⱼ)|²)`.
///
/// pydensecrf's `DIAG_KERNEL` and `FULL_KERNEL` start with A = identity and differ from `CONST_KERNEL` only in learning,
/// which it does not expose; here the map can be given.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Kernel {
    /// A is the identity: features are used as they are.
    #[default]
    Const,
    /// A is diagonal: one factor per feature, the inverse of its standard deviation.
    Diagonal(Vec<f32>),
    /// A is any square matrix, row-major: the kernel's inverse covariance is `AᵀA`.
    Full(Vec<f32>),
}

impl Kernel {
    /// The kernel with a given covariance matrix (row-major, symmetric, positive definite).
    ///
    /// # Errors
    /// If the matrix is not square of that dimension or not positive definite.
    pub fn from_covariance(dimension: usize, covariance: &[f32]) -> Result<Self, Error> {
        check_square("covariance", covariance, dimension)?;
        // Cholesky: covariance = L·Lᵀ, so A = L⁻¹ gives AᵀA = covariance⁻¹.
        let at = |row: usize, column: usize| row * dimension + column;
        let mut lower = vec![0.0f64; dimension * dimension];
        for row in 0..dimension {
            for column in 0..=row {
                let dot: f64 = (0..column).map(|k| lower[at(row, k)] * lower[at(column, k)]).sum();
                let rest = f64::from(covariance[at(row, column)]) - dot;
                if row > column {
                    lower[at(row, column)] = rest / lower[at(column, column)];
                } else if rest > 0.0 && rest.is_finite() {
                    lower[at(row, row)] = rest.sqrt();
                } else {
                    return Err(Error::NotPositiveDefinite { dimension });
                }
                let asymmetry = (covariance[at(row, column)] - covariance[at(column, row)]).abs();
                if asymmetry > 1e-5 * covariance[at(row, row)].max(covariance[at(column, column)]) {
                    return Err(Error::NotPositiveDefinite { dimension });
                }
            }
        }
        let mut inverse = vec![0.0f64; dimension * dimension];
        for column in 0..dimension {
            for row in column..dimension {
                let unit = if row == column { 1.0 } else { 0.0 };
                let dot: f64 = (column..row).map(|k| lower[at(row, k)] * inverse[at(k, column)]).sum();
                inverse[at(row, column)] = (unit - dot) / lower[at(row, row)];
            }
        }
        Ok(Self::Full(inverse.into_iter().map(|value| value as f32).collect()))
    }

    /// The map as a row-major matrix, unless it is the identity.
    fn matrix(&self, dimension: usize) -> Result<Option<Vec<f32>>, Error> {
        match self {
            Self::Const => Ok(None),
            Self::Diagonal(factors) => {
                check_values("kernel diagonal", factors, dimension, "one factor for each feature")?;
                let mut matrix = vec![0.0; dimension * dimension];
                for (i, &factor) in factors.iter().enumerate() {
                    matrix[i * dimension + i] = factor;
                }
                Ok(Some(matrix))
            }
            Self::Full(matrix) => {
                check_square("kernel matrix", matrix, dimension)?;
                Ok(Some(matrix.clone()))
            }
        }
    }
}

/// The cost of giving two pixels the classes a and b, as a factor on the kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Compatibility {
    /// Equal classes are rewarded with this weight, others cost nothing. The usual choice; positive.
    Potts(f32),
    /// The cost of equal classes, one per class; negative values are rewards. (In pydensecrf, too, the sign differs
    /// from Potts.)
    Diagonal(Vec<f32>),
    /// The cost of each pair of classes, row-major; its symmetric part is used, as in pydensecrf.
    Matrix(Vec<f32>),
}

impl Compatibility {
    pub(crate) fn check(&self, num_classes: usize) -> Result<(), Error> {
        match self {
            Self::Potts(weight) => check_values("Potts weight", &[*weight], 1, "one weight"),
            Self::Diagonal(costs) => {
                check_values("diagonal compatibility", costs, num_classes, "one cost a class")
            }
            Self::Matrix(costs) => check_square("compatibility matrix", costs, num_classes),
        }
    }
}

/// How a kernel is normalised by n, its total weight at a pixel (the kernel applied to an image of ones).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Normalization {
    /// Not at all.
    None,
    /// Values are divided by n before filtering.
    Before,
    /// Values are divided by n after filtering: a weighted mean.
    After,
    /// Values are divided by √n before and after. The default, as in pydensecrf.
    #[default]
    Symmetric,
}

impl Normalization {
    /// The factor of a pixel where the normalisation applies, given its total weight.
    pub(crate) fn factor(self, n: f32) -> f32 {
        match self {
            Self::None => 1.0,
            Self::Before | Self::After => 1.0 / n,
            Self::Symmetric => 1.0 / n.sqrt(),
        }
    }

    /// Whether values are scaled before filtering.
    pub(crate) fn applies_before(self) -> bool {
        matches!(self, Self::Before | Self::Symmetric)
    }

    /// Whether values are scaled after filtering.
    pub(crate) fn applies_after(self) -> bool {
        matches!(self, Self::After | Self::Symmetric)
    }
}

/// A pairwise term ready for inference.
pub(crate) struct Term {
    pub(crate) filter: Filter,
    pub(crate) compatibility: Compatibility,
}

/// What applies a kernel to an image.
pub(crate) enum Filter {
    Lattice(LatticeFilter),
    Stencil(Stencil),
}

/// A lattice with the normalisation of its kernel.
pub(crate) struct LatticeFilter {
    pub(crate) lattice: Lattice,
    normalization: Normalization,
    /// Factor of each pixel in tile order; empty without normalisation.
    norm: Vec<f32>,
}

impl LatticeFilter {
    pub(crate) fn new(
        features: Features<'_>,
        kernel: &Kernel,
        normalization: Normalization,
        tiles: &Tiles,
    ) -> Result<Self, Error> {
        let features = match kernel.matrix(features.dimension())? {
            Some(matrix) => features.mapped(matrix),
            None => features,
        };
        let lattice = Lattice::build(&features, tiles)?;
        let mut norm = Vec::new();
        if normalization != Normalization::None {
            let ones = lattice.filter(tiles, |_| [1.0]);
            norm = ones.into_par_iter().map(|[n]| normalization.factor(n)).collect();
        }
        Ok(Self { lattice, normalization, norm })
    }

    /// Factors of one tile's pixels before filtering, including the scale of the 16-bit weights.
    pub(crate) fn scale_before(&self, tiles: &Tiles, tile: usize) -> impl Fn(usize) -> f32 + '_ {
        self.scale(self.normalization.applies_before(), 1.0 / WEIGHT_ONE, tiles, tile)
    }

    /// Factors of one tile's pixels after filtering.
    pub(crate) fn scale_after(&self, tiles: &Tiles, tile: usize) -> impl Fn(usize) -> f32 + '_ {
        self.scale(self.normalization.applies_after(), self.lattice.alpha() / WEIGHT_ONE, tiles, tile)
    }

    fn scale(&self, applies: bool, constant: f32, tiles: &Tiles, tile: usize) -> impl Fn(usize) -> f32 + '_ {
        let norm = if applies { tiles.slice(&self.norm, 1, tile) } else { &[] };
        move |pixel| norm.get(pixel).map_or(constant, |n| n * constant)
    }
}

fn check_square(what: &'static str, values: &[f32], dimension: usize) -> Result<(), Error> {
    check_values(what, values, dimension * dimension, "a square matrix, row-major")
}

fn check_values(
    what: &'static str,
    values: &[f32],
    expected: usize,
    shape: &'static str,
) -> Result<(), Error> {
    if values.len() != expected {
        return Err(Error::Length { what, got: values.len(), expected, shape });
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Error::NotFinite { what, index, value: values[index] }),
        None => Ok(()),
    }
}
