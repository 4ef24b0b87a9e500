//! What a run tells whoever started it, as plain data over a channel. This crate prints nothing.

use vitpcm::Review;

use crate::metrics_csv::MetricsRow;
use crate::validation::Validation;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The run begins or continues.
    Started(RunSummary),
    /// Something worth knowing that changes nothing.
    Note(String),
    /// An input that is left out, said once each.
    Warning(String),
    /// A step was taken.
    Step {
        /// What is known of it.
        row: MetricsRow,
        /// Steps of the whole run.
        num_steps: u64,
        /// Seconds left, judged by this session.
        seconds_left: f64,
    },
    /// An epoch ended.
    Epoch {
        /// The epoch, from 1.
        epoch: usize,
        /// Mean of the epoch's total losses.
        mean_loss: f32,
        /// How well the network does now, where there is something to validate on.
        validation: Option<Validation>,
        /// The images validated on, the least sure first; pictures of the first few.
        reviews: Vec<Review>,
        /// Whether the model was kept: as the newest, or as the best so far.
        is_kept: bool,
    },
    /// The state was saved.
    Saved {
        /// Steps taken so far.
        step: u64,
    },
}

/// A run in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// Steps taken before; 0 for a new run.
    pub steps_before: u64,
    /// Images to train on.
    pub num_images: usize,
    /// Images to validate on.
    pub num_validation_images: usize,
    /// How many of those have masks.
    pub num_validation_masks: usize,
    /// Classes with the background.
    pub num_classes: usize,
    /// Epochs in all.
    pub num_epochs: usize,
    /// Steps an epoch.
    pub steps_per_epoch: u64,
    /// Numbers that the network holds.
    pub num_parameters: usize,
    /// Pixels along a side of a training image.
    pub train_size: usize,
}
