//! The files of a run folder that grow with the run, `metrics.csv` and TensorBoard's events, and its settings. The state
//! is `checkpoint`'s.

use std::io::Write;
use std::path::Path;

use vitpcm_masks::{FolderLock, LOCK_FILE, atomic_file};

use crate::error::{Result, TrainError};
use crate::metrics_csv::{Columns, MetricsCsv, MetricsRow};
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

/// Takes a run folder, made if need be, for this process alone.
pub(crate) fn lock(out: &Path, command: &str) -> Result<FolderLock> {
    std::fs::create_dir_all(out).map_err(TrainError::io(out))?;
    Ok(FolderLock::take(out, command)?)
}

/// Whether a run began in a folder, with or without a saved state: its settings are the first file that it writes.
pub fn has_run(out: &Path) -> bool {
    out.join(SETTINGS).is_file() || has_saved_state(out)
}

/// Whether a run folder holds a state to resume from.
pub fn has_saved_state(out: &Path) -> bool {
    state_path(out).is_file()
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
    /// Writes the settings and opens the files of a run that has done `last_step` steps.
    pub(crate) fn open(out: &Path, settings: &str, columns: Columns, last_step: u64) -> Result<Self> {
        let path = out.join(SETTINGS);
        atomic_file::write(&path, |file| file.write_all(settings.as_bytes()))
            .map_err(TrainError::io(&path))?;
        let metrics = MetricsCsv::open(&out.join("metrics.csv"), columns, last_step)?;
        Ok(Self { metrics, events: EventFile::create(out, last_step)? })
    }

    pub(crate) fn write_step_events(&mut self, row: &MetricsRow) -> Result<()> {
        let pace = [("rate", row.rate as f32), ("images_per_second", row.images_per_second as f32)];
        let mut scalars = row.losses.columns().chain(pace);
        scalars.try_for_each(|(name, value)| self.events.scalar(&format!("train/{name}"), row.step, value))
    }

    pub(crate) fn write_validation_events(&mut self, step: u64, validated: &Validated) -> Result<()> {
        for (name, value) in validated.validation.measures() {
            if let Some(value) = value {
                self.events.scalar(&format!("val/{name}"), step, value as f32)?;
            }
        }
        let mut strips = validated.strips.iter();
        strips.try_for_each(|(name, strip)| self.events.picture(&format!("val/{name}"), step, strip))
    }
}
