//! What can stop a training run; every message names the file or the setting and what was expected.

use std::path::{Path, PathBuf};

use vitpcm::SegmentError;
use vitpcm_data::DataError;
use vitpcm_masks::{FolderLockError, MaskError};
use vitpcm_nets::NetsError;

use crate::losses::Losses;

/// An error of a training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A setting that is unknown or impossible.
    #[error("configuration: {0}")]
    Config(String),
    /// A file of the run folder could not be read or written. What was saved before is intact.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A run folder that is not what was asked for: not empty, or nothing to resume in it.
    #[error("{}: {reason}", path.display())]
    RunFolder {
        /// The folder or file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// Another process writes into the run folder.
    #[error(transparent)]
    Locked(FolderLockError),
    /// The ranks were started in a way that cannot work, or no longer agree.
    #[error("{0}")]
    Ranks(String),
    /// There is nothing to train on.
    #[error("no image to train on: {0}")]
    NoImages(String),
    /// The loss is no longer a number. The last saved state is from before this step.
    #[error(
        "the loss is not finite ({losses}) at step {step} of epoch {epoch}; the batch was {}; the last saved state is from \
         before it (a smaller schedule.rate may help)",
        names.join(", ")
    )]
    NotFinite {
        /// The epoch, from 1.
        epoch: usize,
        /// The step of the whole run, from 1.
        step: u64,
        /// The losses.
        losses: Losses,
        /// The images of the batch.
        names: Vec<String>,
    },
    /// The data set or one of its files.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A saved state that is not what was saved.
    #[error("{0}. The run cannot continue from it; without a copy, start it again in another folder")]
    DamagedState(#[source] NetsError),
    /// The network or its weights.
    #[error(transparent)]
    Nets(#[from] NetsError),
    /// Segmentation of validation images.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Masks of validation images.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// The tensor framework failed (shapes, devices, memory).
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl From<FolderLockError> for TrainError {
    fn from(error: FolderLockError) -> Self {
        match error {
            FolderLockError::Io { path, source } => TrainError::Io { path, source },
            held @ FolderLockError::Held { .. } => TrainError::Locked(held),
        }
    }
}

impl TrainError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| TrainError::Io { path, source }
    }
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, TrainError>;
