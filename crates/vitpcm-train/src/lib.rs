//! Training from tags: the losses, one step, one loop, and a run folder from which it resumes bit for bit.

pub mod batch;
mod config;
mod error;
pub mod losses;
pub mod optimiser;
pub mod pcm_step;
mod schedule;

pub use batch::{TaggedBatch, TaggedViews};
pub use config::*;
pub use error::{Result, TrainError};
pub use schedule::Trained;
