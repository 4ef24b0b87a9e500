//! Errors between features and masks.

use vitpcm_masks::MaskError;
use vitpcm_nets::NetsError;

/// An error while extracting features, fitting heads or judging masks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeadsError {
    /// The network that extracts the features failed.
    #[error(transparent)]
    Network(#[from] NetsError),
    /// A tensor operation or its device failed.
    #[error("tensor computation: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A label map is invalid.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// The lengths of arrays do not match.
    #[error("{what}: found {found}, expected {expected}")]
    WrongLength {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// An impossible request.
    #[error("{0}")]
    BadRequest(String),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, HeadsError>;

/// Fails unless both are equal.
pub(crate) fn check_length(what: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(HeadsError::WrongLength { what, found, expected }) }
}
