//! Training from tags: the losses, one step, one loop, and a run folder from which it resumes bit for bit.
//!
//! [`train`] is the whole of it; [`TrainConfig`] holds every setting. The step takes a [`TaggedBatch`], which has
//! no mask: weak supervision is guarded by the compiler. [`verify`] trains another network on masks that the first one
//! made.
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
mod pcm_loop;
pub mod pcm_step;
mod presets;
mod ranks;
mod run_files;
mod run_start;
mod saved_state;
mod schedule;
mod setting_bounds;
mod settings;
pub mod sgd;
mod shares;
mod state_file;
mod tensorboard;
mod threshold_sweep;
mod train_data;
mod validation;
mod verify_config;
mod verify_loop;
mod verify_score;
mod verify_state;
pub mod verify_step;

pub use batch::{TaggedBatch, TaggedViews};
pub use config::{
    AdamForm, Conditioning, Decay, EtPeak, EtTarget, LoaderConfig, LocalisationKind, LossConfig, ModelConfig,
    Preset, ScheduleConfig, TrainConfig, Unfreeze, ValidationConfig, ViewsConfig,
};
pub use error::{Result, TrainError};
pub use events::{Event, RunSummary};
pub use metrics_csv::MetricsRow;
pub use pcm_loop::{Ending, InitialBackbone, Start, TrainJob, TrainOutcome, has_saved_state, train};
pub use ranks::Ranks;
pub use run_files::{check_run, has_run};
pub use saved_state::check_saved_state;
pub use schedule::Trained;
pub use train_data::{TrainData, read_held_out};
pub use validation::{Validation, ValidationImage};
pub use verify_config::{
    CropsConfig, VerifyConfig, VerifyModelConfig, VerifyScheduleConfig, VerifyValidationConfig,
};
pub use verify_loop::{VerifyBackbone, VerifyEvent, VerifyJob, VerifyOutcome, VerifyRow, verify};
pub use verify_score::{ScoreOptions, VerifyScores, score_segmenter};
