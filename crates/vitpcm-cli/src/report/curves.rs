//! The learning curves of a run, from its `metrics.csv`, as charts.

use super::line_chart::{Curve, line_chart};
use anyhow::Context;
use std::path::Path;
use vitpcm_train::losses::{OF_TAGS, TOTAL};

/// Points per curve; more would not be visible.
const CURVE_POINTS: usize = 150;

type Points = Vec<(f64, f64)>;

/// Columns of `metrics.csv` over the steps, averaged to a plottable number of points.
pub(crate) struct Curves {
    /// Every loss that counts, the total last.
    losses: Vec<Curve>,
    rate: Points,
    miou: Points,
    pixel_accuracy: Points,
    tag_f1: Points,
    et_loss: Points,
    last_epoch: usize,
    /// Validated epochs with their scores.
    scores: Vec<(usize, f64)>,
    /// The tag F1 of every validation.
    tag_f1_of_each: Vec<f64>,
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
        let column = |name: &str| place(name).map_or_else(Vec::new, |i| averaged(&columns[i]));
        let parts = headings.iter().filter(|heading| heading.starts_with("loss_"));
        let mut losses: Vec<Curve> =
            parts.map(|name| Curve { name: loss_name(name), points: column(name) }).collect();
        losses.retain(|curve| curve.points.iter().any(|point| point.1 != 0.0));
        losses.push(Curve { name: "total".to_owned(), points: column(TOTAL) });
        Ok(Curves {
            losses,
            rate: column("rate"),
            miou: column("val_miou"),
            pixel_accuracy: column("val_pixel_accuracy"),
            tag_f1: column("val_tag_f1"),
            et_loss: column("val_et_loss"),
            last_epoch,
            scores,
            tag_f1_of_each: place("val_tag_f1")
                .map_or_else(Vec::new, |i| columns[i].iter().map(|at| at.1).collect()),
        })
    }

    /// The epoch of the last step; 0 before the first.
    pub(crate) fn last_epoch(&self) -> usize {
        self.last_epoch
    }

    /// The tag F1 of every validation, in percent.
    pub(crate) fn tag_f1(&self) -> &[f64] {
        &self.tag_f1_of_each
    }

    pub(crate) fn last_validated_epoch(&self) -> Option<usize> {
        self.scores.last().map(|score| score.0)
    }

    /// The best validated epoch and its score.
    pub(crate) fn best(&self) -> Option<(usize, f64)> {
        // The earliest of equals, as in the training loop.
        self.scores.iter().rev().copied().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Charts of the losses, the validation and the learning rate; empty before the first step.
    pub(crate) fn charts(&self) -> String {
        let curve = |name: &str, points: &Points| Curve { name: name.to_owned(), points: points.clone() };
        let charts = [
            line_chart("Loss", "step", &self.losses),
            line_chart(
                "Validation, in percent",
                "step",
                &[
                    curve("mIoU, tags given", &self.miou),
                    curve("tag F1", &self.tag_f1),
                    curve("pixel accuracy", &self.pixel_accuracy),
                ],
            ),
            line_chart(
                "Validation: views agree (L_ET)",
                "step",
                &[curve("equivariance loss", &self.et_loss)],
            ),
            line_chart("Learning rate", "step", &[curve("rate", &self.rate)]),
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
        let names: Vec<&str> = curves.losses.iter().map(|curve| curve.name.as_str()).collect();
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
        assert_eq!(curves.losses[0].points, [(1.0, 2.5), (2.0, 1.5)]);
        assert_eq!(curves.miou, [(2.0, 40.0)]);
        assert_eq!(
            (curves.last_epoch(), curves.best(), curves.last_validated_epoch()),
            (1, Some((1, 40.0)), Some(1))
        );
        assert!(curves.charts().contains("Loss") && curves.rate.is_empty());
        std::fs::write(&path, "").unwrap();
        assert!(Curves::read(&path).is_err());
    }
}
