//! Errors in the input of a dense CRF. Everything is checked on construction, so inference itself cannot fail.

/// Why a CRF, a pairwise term or a parameter set was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The image has no pixels or there are no classes.
    #[error(
        "a CRF needs at least one pixel and one class, got {width}×{height} pixels and {num_classes} classes"
    )]
    Empty {
        /// Image width in pixels.
        width: usize,
        /// Image height in pixels.
        height: usize,
        /// Number of classes.
        num_classes: usize,
    },
    /// More pixels or classes than the 32-bit tables of the lattice can address.
    #[error("{what} is too large: {got}, at most {limit} is supported")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The number found.
        got: usize,
        /// The largest supported value.
        limit: usize,
    },
    /// An array does not have the length that the given sizes require.
    #[error("{what} has {got} values, expected {expected} ({shape})")]
    Length {
        /// Which array.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length required.
        expected: usize,
        /// The formula of the required length, for example `classes × height × width`.
        shape: &'static str,
    },
    /// A value that must be a number is NaN or infinite.
    #[error("{what} must be finite, value {index} is {value}")]
    NotFinite {
        /// Which array or parameter.
        what: &'static str,
        /// Position in that array.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// A standard deviation or probability floor that is zero, negative or not a number.
    #[error("{what} must be positive and finite, got {value}")]
    NotPositive {
        /// Which parameter.
        what: &'static str,
        /// The value found.
        value: f32,
    },
    /// Every class has infinite energy at a pixel: no labelling is possible there.
    #[error("pixel {pixel} (row-major index) has infinite energy for every class")]
    NoPossibleClass {
        /// Row-major pixel index.
        pixel: usize,
    },
    /// A covariance matrix that is not symmetric positive definite.
    #[error("the covariance matrix of size {dimension}×{dimension} is not positive definite")]
    NotPositiveDefinite {
        /// Number of rows and columns.
        dimension: usize,
    },
    /// The features, in units of their standard deviations, span more lattice cells than keys can address.
    #[error(
        "features span {span:.3e} standard deviations, too far for a lattice in {dimension} dimensions: raise sigma"
    )]
    FeatureRange {
        /// Number of feature dimensions.
        dimension: usize,
        /// Largest extent of a feature after division by sigma.
        span: f32,
    },
}
