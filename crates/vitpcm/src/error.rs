//! What can go wrong between an image and its mask.

use vitpcm_masks::MaskError;
use vitpcm_nets::NetsError;

/// An error while opening a model or segmenting an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The model, or the network while it ran.
    #[error(transparent)]
    Network(#[from] NetsError),
    /// Tensors, or the device they are on.
    #[error("tensor computation: {0}")]
    Tensor(#[from] candle_core::Error),
    /// Score maps and label maps.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// The dense CRF.
    #[error(transparent)]
    Crf(#[from] dense_crf::Error),
    /// A device that cannot be used.
    #[error("device {name}: {reason}")]
    Device {
        /// As it would be asked for.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The build has no embedded model.
    #[error("this build has no embedded model; expected a model file")]
    NoEmbeddedModel,
    /// The caller asked to stop.
    #[error("stopped before it was done")]
    Stopped,
    /// Options that no image can satisfy.
    #[error("{0}")]
    BadOptions(String),
    /// A picture for people that could not be made.
    #[error("picture: {0}")]
    Picture(String),
    /// A tag that is none of the model's classes.
    #[error("tag {tag} is not a class of the model, which has 1 to {}", num_classes - 1)]
    UnknownTag {
        /// The index given.
        tag: usize,
        /// Number of the model's classes, background included.
        num_classes: usize,
    },
}
