//! How far the two rounds of a job agree, class by class: an estimate, without true masks, of how far the masks can be
//! trusted.

use crate::table::{Table, percent};
use anyhow::bail;
use serde::Serialize;
use std::path::Path;
use vitpcm_masks::{Classes, MAX_MASK_PIXELS, MaskPairs, evaluate_pairs};

/// IoU between the masks of the first and of the last round.
#[derive(Serialize)]
pub(crate) struct Agreement {
    /// Mean over the classes, background left out; percent.
    mean: Option<f64>,
    classes: Vec<ClassAgreement>,
}

#[derive(Serialize)]
struct ClassAgreement {
    class: String,
    /// Percent; nothing where neither round found the class.
    agreement: Option<f64>,
}

impl Agreement {
    pub(super) fn between(first: &Path, last: &Path, classes: &Classes) -> anyhow::Result<Agreement> {
        let pairs = MaskPairs::find(first, last, None)?.pairs;
        if pairs.is_empty() {
            bail!("{}: no mask of the first round is left to compare with", first.display());
        }
        let scores = evaluate_pairs(&pairs, classes.len(), MAX_MASK_PIXELS).matrix.scores(classes);
        let classes: Vec<ClassAgreement> = scores.per_class[1..]
            .iter()
            .map(|scores| ClassAgreement { class: scores.name.clone(), agreement: scores.iou })
            .collect();
        let known: Vec<f64> = classes.iter().filter_map(|class| class.agreement).collect();
        let mean = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
        Ok(Agreement { mean, classes })
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new(["class", "agreement of the rounds, %"]);
        for class in &self.classes {
            table.row([class.class.clone(), percent(class.agreement)]);
        }
        table.to_string()
    }
}
