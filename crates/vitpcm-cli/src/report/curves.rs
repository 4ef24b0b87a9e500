//! The learning curves of a run, from its `metrics.csv`, as charts.

use super::line_chart::{Curve, line_chart};
use anyhow::Context;
use std::path::Path;
use vitpcm_train::losses::{OF_TAGS, TOTAL};

/// Points per curve; more would not be visible.
const CURVE_POINTS: usize = 150;

type Points = Vec<(f64, f64)>;

/// Columns of `metrics.csv` over the steps.
pub(crate) struct Curves {
    headings: Vec<String>,
    columns: Vec<Points>,
    last_epoch: usize,
    /// Validated epochs with their scores.
    scores: Vec<(usize, f64)>,
}

impl Curves {
    /// Reads a run's `metrics.csv`. An incomplete last row is ignored.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Curves> {
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_path(path)
            .with_context(|| format!("{}", path.display()))?;
        let headings = reader.headers().with_context(|| format!("{}", path.display()))?.clone();
        let mut columns: Vec<Points> = vec![Vec::new(); headings.len()];
        let place = |name: &str| headings.iter().position(|heading| heading == name);
        let step_column =
            place("step").with_context(|| format!("{}: there is no column `step`", path.display()))?;
        let (mut last_epoch, mut scores) = (0, Vec::new());
        for record in reader.records() {
            let record = record.with_context(|| format!("{}", path.display()))?;
            let value = |i: usize| record.get(i).and_then(|text| text.parse::<f64>().ok());
            let Some(step) = value(step_column).filter(|_| record.len() == headings.len()) else { continue };
            let epoch = place("epoch").and_then(value).unwrap_or(0.0) as usize;
            last_epoch = last_epoch.max(epoch);
            scores.extend(place("val_score").and_then(value).map(|score| (epoch, score)));
            for (i, column) in columns.iter_mut().enumerate() {
                column.extend(value(i).map(|y| (step, y)));
            }
        }
        let headings = headings.iter().map(str::to_owned).collect();
        Ok(Curves { headings, columns, last_epoch, scores })
    }

    fn column(&self, name: &str) -> &[(f64, f64)] {
        self.headings.iter().position(|heading| heading == name).map_or(&[], |i| &self.columns[i])
    }

    /// The epoch of the last step; 0 before the first.
    pub(crate) fn last_epoch(&self) -> usize {
        self.last_epoch
    }

    /// The tag F1 of every validation, in percent.
    pub(crate) fn tag_f1(&self) -> Vec<f64> {
        self.column("val_tag_f1").iter().map(|at| at.1).collect()
    }

    pub(crate) fn last_validated_epoch(&self) -> Option<usize> {
        self.scores.last().map(|score| score.0)
    }

    /// The best validated epoch and its score.
    pub(crate) fn best(&self) -> Option<(usize, f64)> {
        // The earliest of equals, as in the training loop.
        self.scores.iter().rev().copied().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Every loss that counts, the total last.
    fn losses(&self) -> Vec<Curve> {
        let counts = |name: &&String| self.column(name).iter().any(|point| point.1 != 0.0);
        let parts = self.headings.iter().filter(|name| name.starts_with("loss_")).filter(counts);
        parts.map(|name| self.curve(&loss_name(name), name)).chain([self.curve("total", TOTAL)]).collect()
    }

    /// A column, averaged to as many points as can be seen.
    fn curve(&self, name: &str, column: &str) -> Curve {
        Curve { name: name.to_owned(), points: averaged(self.column(column)) }
    }

    /// Charts of the losses, the validation and the learning rate; empty before the first step.
    pub(crate) fn charts(&self) -> String {
        let percent = [
            ("mIoU, tags given", "val_miou"),
            ("tag F1", "val_tag_f1"),
            ("pixel accuracy", "val_pixel_accuracy"),
        ];
        let agreement = self.curve("equivariance loss", "val_et_loss");
        let charts = [
            line_chart("Loss", "step", &self.losses()),
            line_chart(
                "Validation, in percent",
                "step",
                &percent.map(|(name, column)| self.curve(name, column)),
            ),
            line_chart("Validation: views agree (L_ET)", "step", &[agreement]),
            line_chart("Learning rate", "step", &[self.curve("rate", "rate")]),
        ]
        .concat();
        if charts.is_empty() { charts } else { format!("<div class=\"charts\">\n{charts}</div>\n") }
    }
}

/// A loss's column for people.
fn loss_name(column: &str) -> String {
    match OF_TAGS.iter().find(|name| name.column == column) {
        Some(name) => format!("{} ({})", name.about, name.symbol),
        None => column.to_owned(),
    }
}

fn averaged(points: &[(f64, f64)]) -> Points {
    let group = points.len().div_ceil(CURVE_POINTS).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        (points.iter().map(|p| p.0).sum::<f64>() / count, points.iter().map(|p| p.1).sum::<f64>() / count)
    };
    points.chunks(group).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_that_counts_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let heading = "epoch,step,loss,loss_mce,loss_et,loss_masks,loss_l2,loss_new";
        std::fs::write(&path, format!("{heading}\n1,1,2.5,1,0,0.5,0.25,0.75\n1,2,2.5,1,0,0.5,0.25,0.75\n"))
            .unwrap();
        let curves = Curves::read(&path).unwrap();
        let losses = curves.losses();
        let names: Vec<&str> = losses.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["tags (L_MCE)", "masks (L_PM)", "penalty (L2)", "loss_new", "total"]);
        assert!(curves.charts().contains("masks (L_PM): 0.5 now"));
    }

    #[test]
    fn a_row_cut_short_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        std::fs::write(&path, "epoch,step,loss,val_miou,val_score\n1,1,2.5,,\n1,2,1.5,40,40\n2,3,0.")
            .unwrap();
        let curves = Curves::read(&path).unwrap();
        assert_eq!(curves.losses()[0].points, [(1.0, 2.5), (2.0, 1.5)]);
        assert_eq!(curves.column("val_miou"), [(2.0, 40.0)]);
        assert_eq!(
            (curves.last_epoch(), curves.best(), curves.last_validated_epoch()),
            (1, Some((1, 40.0)), Some(1))
        );
        assert!(curves.charts().contains("Loss") && curves.column("rate").is_empty());
        std::fs::write(&path, "").unwrap();
        assert!(Curves::read(&path).is_err());
    }
}
