//! `metrics.csv`: one row a step, validation on the last row of its epoch. Rows are appended as they come; whoever
//! resumes cuts those past the saved state, so that there is neither a gap nor a double.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Result, TrainError};
use crate::pcm_step::StepLosses;
use crate::validation::Validation;

/// The columns of training from tags.
pub(crate) const HEADING: &str = "epoch,step,images,rate,loss,loss_mce,loss_et,loss_masks,loss_l2,images_per_second,val_miou,\
                       val_pixel_accuracy,val_tag_f1,val_et_loss,val_score";

/// What is known of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricsRow {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The step of the whole run, from 1.
    pub step: u64,
    /// Images of the epoch taken so far.
    pub images: usize,
    /// Learning rate.
    pub rate: f64,
    /// `L_MCE`.
    pub loss_mce: f32,
    /// `L_ET`.
    pub loss_et: f32,
    /// `L_PM`; absent in states saved before it came.
    #[serde(default)]
    pub loss_masks: f32,
    /// The penalty on the classifier.
    pub loss_l2: f32,
    /// The weighted sum.
    pub loss: f32,
    /// Images of this step a second.
    pub images_per_second: f64,
}

impl MetricsRow {
    /// The losses of the row.
    pub fn losses(&self) -> StepLosses {
        StepLosses {
            mce: self.loss_mce,
            et: self.loss_et,
            masks: self.loss_masks,
            l2: self.loss_l2,
            total: self.loss,
        }
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct MetricsCsv {
    path: PathBuf,
    file: File,
}

impl MetricsCsv {
    /// Opens the file of a run that has done `last_step` steps: rows beyond it, and a last row that was cut short by
    /// a kill or a full disk, go.
    pub(crate) fn open(path: &Path, heading: &str, last_step: u64) -> Result<Self> {
        let io = || TrainError::io(path);
        let before = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io()(error)),
        };
        let step_of = |line: &str| line.split(',').nth(1).and_then(|step| step.parse::<u64>().ok());
        let is_whole =
            |line: &str| line.ends_with('\n') && line.matches(',').count() == heading.matches(',').count();
        let rows = before.split_inclusive('\n').skip(1);
        let kept = rows.filter(|line| is_whole(line) && step_of(line).is_some_and(|step| step <= last_step));
        let text = std::iter::once(format!("{heading}\n")).chain(kept.map(str::to_owned)).collect::<String>();
        if text != before {
            vitpcm_masks::atomic_file::write(path, |file| file.write_all(text.as_bytes())).map_err(io())?;
        }
        let file = OpenOptions::new().append(true).open(path).map_err(io())?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a row.
    pub(crate) fn append(&mut self, row: &MetricsRow, validation: Option<&Validation>) -> Result<()> {
        let MetricsRow {
            epoch,
            step,
            images,
            rate,
            loss,
            loss_mce,
            loss_et,
            loss_masks,
            loss_l2,
            images_per_second,
        } = row;
        let cell = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
        let of = |get: fn(&Validation) -> Option<f64>| cell(validation.and_then(get));
        let line = format!(
            "{epoch},{step},{images},{rate:e},{loss},{loss_mce},{loss_et},{loss_masks},{loss_l2},{images_per_second:.2},{},{},{},{},{}\n",
            of(|v| v.miou),
            of(|v| v.pixel_accuracy),
            of(|v| Some(v.tag_f1)),
            of(|v| v.et_loss),
            of(|v| Some(v.score)),
        );
        self.append_line(&line)
    }

    /// Appends a row as it is written, with its line's end.
    pub(crate) fn append_line(&mut self, line: &str) -> Result<()> {
        self.file.write_all(line.as_bytes()).map_err(TrainError::io(&self.path))
    }

    /// Returns once everything appended so far is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(TrainError::io(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64) -> MetricsRow {
        let (loss_mce, loss_et, loss_masks, loss_l2, loss) = (0.5, 0.25, 0.0, 0.125, 0.875);
        MetricsRow {
            epoch: 1,
            step,
            images: 8,
            rate: 1e-3,
            loss_mce,
            loss_et,
            loss_masks,
            loss_l2,
            loss,
            images_per_second: 3.0,
        }
    }

    #[test]
    fn resuming_cuts_what_the_state_does_not_know() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let mut metrics = MetricsCsv::open(&path, HEADING, 0).unwrap();
        (1..=5).for_each(|step| metrics.append(&row(step), None).unwrap());
        drop(metrics);
        // A row that a kill cut short.
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "1,6,8,1e-3,0.").unwrap();
        let mut metrics = MetricsCsv::open(&path, HEADING, 3).unwrap();
        (4..=6).for_each(|step| metrics.append(&row(step), None).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        let steps: Vec<&str> = text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
        assert_eq!(steps, ["1", "2", "3", "4", "5", "6"]);
        assert!(text.starts_with(HEADING));
    }
}
