//! Training from tags: the losses, one step, one loop, and a run folder from which it resumes bit for bit.
//!
//! [`train`] is the whole of it; [`TrainConfig`] holds every setting. The step takes a [`TaggedBatch`], which has
//! no mask: weak supervision is guarded by the compiler. [`verify`] trains another network on masks that the first one
//! made, in the same loop.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use vitpcm_data::{Dataset, DrawnScenes, ImageLimits, OpenOptions};
//! use vitpcm_train::{InitialBackbone, Ranks, Start, TrainConfig, TrainData, TrainJob, train};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let (data, out) = (folder.path().join("data"), folder.path().join("run"));
//! DrawnScenes { seed: 1, side: 32 }.write(&data, 8, 4)?; // any data set of tagged images
//! let dataset = Dataset::open(&data, &OpenOptions::default())?;
//! let mut config = TrainConfig::demo();
//! # config.model.grid = 4;
//! # config.validation.grid = 4;
//! # config.model.lstm_units = 8;
//! config.schedule.epochs = 1;
//! let job = TrainJob {
//!     config,
//!     data: TrainData::of(&dataset, ImageLimits::default()),
//!     backbone: InitialBackbone::Scratch,
//!     out: out.clone(),
//!     start: Start::Fresh,
//!     device: vitpcm::Device::Cpu,
//!     precision: vitpcm::Precision::F32,
//!     features: None,
//!     provenance: Default::default(),
//! };
//! let (events, _) = std::sync::mpsc::sync_channel(64); // nobody listens
//! train(&job, &Ranks::Single, &events, &AtomicBool::new(false))?;
//! assert!(out.join("model.safetensors").is_file());
//! # Ok(())
//! # }
//! ```

mod batch;
mod batch_stream;
mod begun_with;
mod checkpoint;
mod config;
pub mod crop_batch;
mod ema;
mod error;
mod events;
pub mod feature_cache;
mod file_record;
mod fingerprint;
#[cfg(all(feature = "mpi", feature = "cuda"))]
mod gpu_group;
#[cfg(any(feature = "mpi", test))]
mod gradient_buckets;
pub mod losses;
mod metrics_csv;
#[cfg(feature = "mpi")]
mod mpi_ranks;
pub mod optimiser;
mod pcm_run;
pub mod pcm_step;
mod presets;
mod ranks;
mod run_files;
mod run_loop;
mod run_start;
mod schedule;
mod setting_bounds;
mod settings;
mod shares;
mod state_file;
mod tensorboard;
mod threshold_sweep;
mod train_data;
mod validation;
mod verify_config;
mod verify_run;
mod verify_score;
pub mod verify_step;

pub use batch::{TaggedBatch, TaggedViews};
pub use checkpoint::check_saved_state;
pub use config::{
    AdamForm, Conditioning, Decay, EtPeak, EtTarget, LoaderConfig, LocalisationKind, LossConfig, ModelConfig,
    Preset, ScheduleConfig, TrainConfig, Unfreeze, ValidationConfig, ViewsConfig,
};
pub use error::{Result, TrainError};
pub use events::{Ending, Event, RunSummary, TrainOutcome};
pub use metrics_csv::MetricsRow;
pub use pcm_run::{TrainJob, train};
pub use ranks::Ranks;
pub use run_files::{check_run, has_run, has_saved_state};
pub use run_start::{InitialBackbone, Start};
pub use schedule::Trained;
pub use settings::{RemovedSetting, Settings};
pub use train_data::{TrainData, read_held_out};
pub use validation::{Validation, ValidationImage};
pub use verify_config::{
    CropsConfig, VerifyConfig, VerifyModelConfig, VerifyScheduleConfig, VerifyValidationConfig,
};
pub use verify_run::{VerifyJob, verify};
pub use verify_score::{ScoreOptions, VerifyScores, score_segmenter};
