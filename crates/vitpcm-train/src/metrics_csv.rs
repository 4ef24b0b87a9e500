//! `metrics.csv`: one row a step, validation on the last row of its epoch. Rows are appended as they come; whoever
//! resumes cuts those past the saved state, so that there is neither a gap nor a double.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Result, TrainError};
use crate::losses::{LossName, Losses, TOTAL};
use crate::validation::Validation;

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
    /// The losses, by their columns.
    #[serde(flatten)]
    pub losses: Losses,
    /// Images of this step a second.
    pub images_per_second: f64,
}

/// What the rows of a kind of run say beside the common columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    pub(crate) losses: &'static [LossName],
    /// Of the validation, by their names in [`Validation::measures`].
    pub(crate) measures: &'static [&'static str],
}

impl Columns {
    fn heading(self) -> String {
        let losses: String = self.losses.iter().map(|loss| format!(",{}", loss.column)).collect();
        let measures: String = self.measures.iter().map(|name| format!(",val_{name}")).collect();
        format!("epoch,step,images,rate,{TOTAL}{losses},images_per_second{measures}")
    }

    /// A loss that was not computed, and a validation that was not made, leave their cells empty.
    fn line(self, row: &MetricsRow, validation: Option<&Validation>) -> String {
        let MetricsRow { epoch, step, images, rate, losses: Losses { total, parts }, images_per_second } =
            row;
        let loss = |name: &LossName| parts.iter().find(|(other, _)| other == name).map(|(_, loss)| loss);
        let losses =
            self.losses.iter().map(|name| loss(name).map_or(",".to_owned(), |loss| format!(",{loss}")));
        let measures: String = self
            .measures
            .iter()
            .map(|name| {
                let value = validation.and_then(|validation| validation.measure(name));
                value.map_or(",".to_owned(), |value| format!(",{value:.4}"))
            })
            .collect();
        let losses: String = losses.collect();
        format!("{epoch},{step},{images},{rate:e},{total}{losses},{images_per_second:.2}{measures}\n")
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct MetricsCsv {
    path: PathBuf,
    file: File,
    columns: Columns,
}

impl MetricsCsv {
    /// Opens the file of a run that has done `last_step` steps: rows beyond it, and a last row that was cut short by
    /// a kill or a full disk, go.
    pub(crate) fn open(path: &Path, columns: Columns, last_step: u64) -> Result<Self> {
        let heading = columns.heading();
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
        Ok(Self { path: path.to_owned(), file, columns })
    }

    /// Appends a row.
    pub(crate) fn append(&mut self, row: &MetricsRow, validation: Option<&Validation>) -> Result<()> {
        let line = self.columns.line(row, validation);
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
    use crate::losses::{ET, L2, MASKS, MCE, OF_TAGS};

    const COLUMNS: Columns = Columns { losses: &[MCE, ET, MASKS, L2], measures: &["miou", "score"] };
    const HEADING: &str = "epoch,step,images,rate,loss,loss_mce,loss_et,loss_masks,loss_l2,images_per_second,val_miou,val_score";

    fn row(step: u64) -> MetricsRow {
        let parts = OF_TAGS.into_iter().zip([0.5, 0.25, 0.0, 0.125]).collect();
        let losses = Losses { total: 0.875, parts };
        MetricsRow { epoch: 1, step, images: 8, rate: 1e-3, losses, images_per_second: 3.0 }
    }

    #[test]
    fn resuming_cuts_what_the_state_does_not_know() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let mut metrics = MetricsCsv::open(&path, COLUMNS, 0).unwrap();
        (1..=5).for_each(|step| metrics.append(&row(step), None).unwrap());
        drop(metrics);
        // A row that a kill cut short.
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "1,6,8,1e-3,0.").unwrap();
        let mut metrics = MetricsCsv::open(&path, COLUMNS, 3).unwrap();
        (4..=6).for_each(|step| metrics.append(&row(step), None).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        let steps: Vec<&str> = text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
        assert_eq!(steps, ["1", "2", "3", "4", "5", "6"]);
        assert!(text.starts_with(HEADING));
        let validation = Validation { miou: Some(40.0), ..Validation::default() };
        metrics.append(&row(7), Some(&validation)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().last(), Some("1,7,8,1e-3,0.875,0.5,0.25,0,0.125,3.00,40.0000,"));
    }
}
