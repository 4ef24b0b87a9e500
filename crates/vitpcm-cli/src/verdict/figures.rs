//! The verdict as `train --json` writes it.

use super::{Measured, MeasuredOn, Verdict};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct VerdictFigures {
    sentence: String,
    /// `held-out` or `validation` images; `None` if nothing was measured.
    measured_on: Option<&'static str>,
    /// Number of these images.
    images: usize,
    classes: Vec<ClassFigures>,
}

#[derive(Serialize)]
struct ClassFigures {
    class: String,
    /// Numbers of training images with it, and of those that it was measured on.
    learned_from: usize,
    measured_on: usize,
    /// Pairs ranked right, in percent; chance is 50.
    ranked_right: Option<f64>,
    finding: &'static str,
    is_recognised: bool,
}

impl Verdict {
    pub(crate) fn figures(&self) -> VerdictFigures {
        let sentence = self.sentence();
        match self {
            Verdict::NotMeasured(_) => {
                VerdictFigures { sentence, measured_on: None, images: 0, classes: Vec::new() }
            }
            Verdict::Measured(measured) => VerdictFigures {
                sentence,
                measured_on: Some(match measured.on {
                    MeasuredOn::HeldOut => "held-out",
                    MeasuredOn::ValidationSplit => "validation",
                }),
                images: measured.num_images,
                classes: measured.class_figures(),
            },
        }
    }
}

impl Measured {
    fn class_figures(&self) -> Vec<ClassFigures> {
        let figures = self.classes.iter().map(|class| ClassFigures {
            class: class.name.clone(),
            learned_from: class.num_learned,
            measured_on: class.num_measured,
            ranked_right: class.ranked_right.map(|share| 100.0 * share),
            finding: class.finding.words(),
            is_recognised: class.finding.is_recognised(),
        });
        figures.collect()
    }
}
