//! What a run tells whoever started it, as plain data over a channel. This crate prints nothing.

use std::collections::HashSet;
use std::sync::mpsc::SyncSender;

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
        /// Seconds left, judged by this session.
        seconds_left: f64,
    },
    /// A point at which the network is validated: the end of an epoch from tags, so many steps on masks.
    Validated {
        /// The epoch, from 1.
        epoch: usize,
        /// Steps taken so far.
        step: u64,
        /// Mean of the epoch's total losses so far.
        mean_loss: f32,
        /// How well the network does now, where there is something to validate on.
        validation: Option<Validation>,
        /// The images validated on, the least sure first; pictures of the first few.
        reviews: Vec<Review>,
        /// Whether the model was kept: as the newest, or as the best so far.
        is_kept: bool,
    },
}

/// A run in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// Steps taken before; 0 for a new run.
    pub steps_before: u64,
    /// Steps in all.
    pub num_steps: u64,
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

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainOutcome {
    /// Why.
    pub ending: Ending,
    /// Steps taken in all.
    pub steps: u64,
    /// The best epoch, from 1, and its score, where validation chose one.
    pub best: Option<(usize, f64)>,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All epochs or steps are done.
    Finished,
    /// Validation did not get better for `schedule.patience` epochs.
    OutOfPatience,
    /// It was asked to stop; the state is saved.
    Interrupted,
}

/// Tells events. A run does not depend on being heard.
pub(crate) struct Teller<'a> {
    events: &'a SyncSender<Event>,
    /// The other ranks tell of inputs left out only.
    is_first: bool,
    warned: HashSet<String>,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(events: &'a SyncSender<Event>, is_first: bool) -> Self {
        Self { events, is_first, warned: HashSet::new() }
    }

    pub(crate) fn tell(&self, event: Event) {
        match event {
            // Those are left out that nobody has time for.
            Event::Step { .. } if self.is_first => drop(self.events.try_send(event)),
            event if self.is_first => drop(self.events.send(event)),
            _ => {}
        }
    }

    /// Says each text once.
    pub(crate) fn warn(&mut self, text: String) {
        if self.warned.insert(text.clone()) {
            drop(self.events.send(Event::Warning(text)));
        }
    }
}
