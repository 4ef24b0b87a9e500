//! Errors of opening a model and segmenting an image.

use vitpcm_masks::MaskError;
use vitpcm_nets::NetsError;

/// An error while opening a model or segmenting an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// Loading or running the network failed.
    #[error(transparent)]
    Network(#[from] NetsError),
    /// A tensor operation or its device failed.
    #[error("tensor computation: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A score map or label map is invalid.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// The dense CRF refused its input.
    #[error(transparent)]
    Crf(#[from] dense_crf::Error),
    /// The device cannot be used.
    #[error("device {name}: {reason}")]
    Device {
        /// The device as the user names it.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The build has no embedded model.
    #[error("this build has no embedded model; expected a model file")]
    NoEmbeddedModel,
    /// The caller asked to stop.
    #[error("stopped before it was done")]
    Stopped,
    /// The options contradict each other or are out of range.
    #[error("{0}")]
    BadOptions(String),
    /// A picture could not be encoded.
    #[error("picture: {0}")]
    Picture(String),
    /// A tag index that the model does not have.
    #[error("tag {tag} is not a class of the model, which has 1 to {}", num_classes - 1)]
    UnknownTag {
        /// The index given.
        tag: usize,
        /// Number of the model's classes, including background.
        num_classes: usize,
    },
}
