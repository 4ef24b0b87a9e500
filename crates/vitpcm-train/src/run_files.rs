//! The files of a run folder that grow with the run, `metrics.csv` and TensorBoard's events, and its settings. The state
//! is `checkpoint`'s.

use std::io::Write;
use std::path::Path;

use vitpcm_masks::{FolderLock, LOCK_FILE, atomic_file};

use crate::config::TrainConfig;
use crate::error::{Result, TrainError};
use crate::metrics_csv::{HEADING, MetricsCsv, MetricsRow};
use crate::state_file::state_path;
use crate::tensorboard::EventFile;
use crate::validation::Validated;

/// The name of a run's settings.
const SETTINGS: &str = "config.toml";

/// The open files.
pub(crate) struct RunFiles {
    pub(crate) metrics: MetricsCsv,
    events: EventFile,
}

/// Writes `config.toml`, whole or not at all.
pub(crate) fn write_settings(out: &Path, text: &str) -> Result<()> {
    let path = out.join(SETTINGS);
    atomic_file::write(&path, |file| file.write_all(text.as_bytes())).map_err(TrainError::io(&path))
}

/// Takes a run folder, made if need be, for this process alone.
pub(crate) fn lock(out: &Path, command: &str) -> Result<FolderLock> {
    std::fs::create_dir_all(out).map_err(TrainError::io(out))?;
    Ok(FolderLock::take(out, command)?)
}

/// Whether a run began in a folder, with or without a saved state: its settings are the first file that it writes.
pub fn has_run(out: &Path) -> bool {
    out.join(SETTINGS).is_file() || state_path(out).is_file()
}

/// Refuses to resume in a folder in which no run began.
pub fn check_run(out: &Path) -> Result<()> {
    if has_run(out) {
        return Ok(());
    }
    let reason = "there is no run to resume; the same command without --resume starts one".to_owned();
    Err(TrainError::RunFolder { path: out.to_owned(), reason })
}

/// Refuses a folder with anything in it but the lock: a new run wants one for itself.
pub(crate) fn check_empty(out: &Path) -> Result<()> {
    for entry in std::fs::read_dir(out).map_err(TrainError::io(out))? {
        if entry.map_err(TrainError::io(out))?.file_name() != LOCK_FILE {
            let reason = match has_run(out) {
                true => {
                    "the folder is not empty; --resume continues its run, another folder starts a new one"
                }
                false => "the folder is not empty; expected a new or an empty one",
            };
            return Err(TrainError::RunFolder { path: out.to_owned(), reason: reason.to_owned() });
        }
    }
    Ok(())
}

impl RunFiles {
    /// Opens the files of a run that has done `last_step` steps.
    pub(crate) fn open(out: &Path, config: &TrainConfig, last_step: u64) -> Result<Self> {
        write_settings(out, &config.to_toml()?)?;
        let metrics = MetricsCsv::open(&out.join("metrics.csv"), HEADING, last_step)?;
        Ok(Self { metrics, events: EventFile::create(out, last_step)? })
    }

    pub(crate) fn write_step_events(&mut self, row: &MetricsRow) -> Result<()> {
        let scalars = [
            ("train/loss", row.loss),
            ("train/loss_mce", row.loss_mce),
            ("train/loss_et", row.loss_et),
            ("train/loss_masks", row.loss_masks),
            ("train/loss_l2", row.loss_l2),
            ("train/rate", row.rate as f32),
            ("train/images_per_second", row.images_per_second as f32),
        ];
        scalars.into_iter().try_for_each(|(tag, value)| self.events.scalar(tag, row.step, value))
    }

    pub(crate) fn write_validation_events(&mut self, step: u64, validated: &Validated) -> Result<()> {
        let validation = &validated.validation;
        let scalars = [
            ("val/miou", validation.miou),
            ("val/pixel_accuracy", validation.pixel_accuracy),
            ("val/tag_f1", Some(validation.tag_f1)),
            ("val/et_loss", validation.et_loss),
        ];
        for (tag, value) in scalars {
            if let Some(value) = value {
                self.events.scalar(tag, step, value as f32)?;
            }
        }
        validated
            .strips
            .iter()
            .try_for_each(|(name, strip)| self.events.picture(&format!("val/{name}"), step, strip))
    }
}
