//! Model selection without true masks: every candidate is scored by judges on several sources, and all are ranked.
//!
//! A good mask is recognised by every judge on held-out images, both against images without the tag and against the
//! rest of the tagged images. Larger masks are preferred among equally recognisable ones, because the core of an object
//! is as easy to recognise as the whole object.

use std::fmt;

use vitpcm_masks::LabelMap;

use crate::descent::DescentConfig;
use crate::error::{HeadsError, Result};
use crate::features::Source;
use crate::head::{FittedHead, Rule};
use crate::patch_features::PatchFeatures;
use crate::recognisability::{Judge, Recognisability};
use crate::tagged_images::TaggedImages;

/// The rules that are tried on every source.
pub const RULES: [Rule; 11] = [
    // 0.001 of 1024 patches: the best patch.
    Rule::Softmax { share: 0.001, negatives: false },
    Rule::Softmax { share: 0.001, negatives: true },
    Rule::Softmax { share: 0.02, negatives: false },
    Rule::Softmax { share: 0.02, negatives: true },
    Rule::Softmax { share: 0.2, negatives: false },
    Rule::Softmax { share: 0.2, negatives: true },
    Rule::Sigmoid { share: 0.005 },
    Rule::Sigmoid { share: 0.05 },
    Rule::Share { share: 0.01 },
    Rule::Share { share: 0.05 },
    Rule::Share { share: 0.2 },
];

/// The score of a class is areaᵖ · (2a − 1)ʳ · (1 − empty), where `a` is the smallest AUC over all judges. The score of
/// a candidate is the mean over classes. The defaults were chosen by regret and rank correlation on four data sets with
/// known masks (leaf disease, steel, satellite, blood cells).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChoiceConfig {
    /// p: preference for larger masks among equally recognisable ones.
    pub area_power: f32,
    /// Lower limit of the area, as a fraction of the image.
    pub min_area: f32,
    /// r: weight of recognisability relative to area. An AUC of ½ or less scores 0.
    pub recognisability_power: f32,
}

impl Default for ChoiceConfig {
    fn default() -> Self {
        Self { area_power: 0.2, min_area: 1e-4, recognisability_power: 4.0 }
    }
}

/// Where a candidate's masks come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// A linear head.
    Head {
        /// The features it works on.
        source: Source,
        /// How it was fitted.
        rule: Rule,
        /// The head itself.
        head: FittedHead,
    },
    /// Masks from elsewhere, named by the caller.
    Foreign(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Head { source, rule, .. } => write!(f, "{rule}, {source}"),
            Origin::Foreign(name) => f.write_str(name),
        }
    }
}

/// The score of one class's masks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassScore {
    /// 0 to 1; 0 for a class without negatives or without masks.
    pub score: f32,
    /// The smallest AUC over all judges.
    pub auc: f32,
    /// Mean fraction of a tagged image that its mask covers.
    pub area: f32,
    /// Fraction of the tagged images whose masks are empty.
    pub empty: f32,
}

/// Masks of all images, and how they were judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Where the masks come from.
    pub origin: Origin,
    /// One label map per image, on the grid of patches.
    pub masks: Vec<LabelMap>,
    /// The mean score of the classes.
    pub score: f32,
    /// The score of each class.
    pub classes: Vec<ClassScore>,
}

/// Makes and scores candidates.
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    images: &'a TaggedImages,
    judges: Vec<Judge<'a>>,
    config: ChoiceConfig,
}

impl<'a> Choice<'a> {
    /// One judge per set of features, at least one; [`Source::is_judge`] says which sources make good judges. Give
    /// several: a judge always recognises masks that a linear head made from the judge's own features.
    pub fn new(
        judges: impl IntoIterator<Item = &'a PatchFeatures>,
        images: &'a TaggedImages,
        config: ChoiceConfig,
    ) -> Result<Self> {
        let judges = judges.into_iter().map(|features| Judge::new(features, images));
        let judges = judges.collect::<Result<Vec<_>>>()?;
        if judges.is_empty() {
            return Err(HeadsError::BadRequest("masks cannot be chosen without a judge".to_owned()));
        }
        Ok(Self { images, judges, config })
    }

    /// Fits one head per rule to the features of a source and scores its masks.
    pub fn fit_heads(
        &self,
        source: Source,
        features: &PatchFeatures,
        rules: &[Rule],
        config: &DescentConfig,
    ) -> Result<Vec<Candidate>> {
        let heads = FittedHead::fit(rules, features, self.images, config)?;
        let candidate = |(head, &rule): (FittedHead, &Rule)| {
            let masks = head.masks(features, self.images)?;
            self.judged(Origin::Head { source, rule, head }, masks)
        };
        heads.into_iter().zip(rules).map(candidate).collect()
    }

    /// Scores masks made elsewhere: one label map per image, on the grid of patches.
    pub fn judge_masks(&self, name: impl Into<String>, masks: Vec<LabelMap>) -> Result<Candidate> {
        self.judged(Origin::Foreign(name.into()), masks)
    }

    fn judged(&self, origin: Origin, masks: Vec<LabelMap>) -> Result<Candidate> {
        let judgements = self
            .judges
            .iter()
            .map(|judge| judge.of(&masks))
            .collect::<Result<Vec<Vec<Recognisability>>>>()?;
        let classes: Vec<ClassScore> = (0..self.images.num_classes())
            .map(|class| self.config.score(judgements.iter().map(|judgement| judgement[class])))
            .collect();
        let score = classes.iter().map(|class| class.score).sum::<f32>() / classes.len() as f32;
        Ok(Candidate { origin, masks, score, classes })
    }
}

impl ChoiceConfig {
    /// Combines the judges' findings on one class.
    fn score(&self, judgements: impl Iterator<Item = Recognisability>) -> ClassScore {
        let (mut auc, mut area, mut empty) = (1.0f32, 0.0, 1.0);
        for judgement in judgements {
            auc = auc.min(judgement.against_others).min(judgement.against_rest);
            (area, empty) = (judgement.area, judgement.empty);
        }
        let recognisability = (2.0 * auc - 1.0).max(0.0).powf(self.recognisability_power);
        let score = area.max(self.min_area).powf(self.area_power) * recognisability * (1.0 - empty);
        ClassScore { score, auc, area, empty }
    }
}

/// Sorts candidates by score, best first; ties keep their order.
pub fn rank(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judgement(against_others: f32, against_rest: f32, area: f32, empty: f32) -> Recognisability {
        Recognisability { against_others, against_rest, area, empty }
    }

    #[test]
    fn the_least_convinced_judge_decides() {
        let config = ChoiceConfig::default();
        let judgements = [judgement(0.9, 1.0, 0.1, 0.25), judgement(1.0, 0.75, 0.1, 0.25)];
        let class = config.score(judgements.into_iter());
        assert_eq!(class.auc, 0.75);
        // 0.1^0.2 · 0.5⁴ · 0.75
        assert!((class.score - 0.029576).abs() < 1e-5, "{class:?}");
    }

    #[test]
    fn chance_and_empty_masks_score_zero() {
        let score = |judgement| ChoiceConfig::default().score([judgement].into_iter()).score;
        assert_eq!(score(judgement(0.5, 0.5, 0.3, 0.0)), 0.0);
        assert_eq!(score(judgement(0.3, 0.9, 0.3, 0.0)), 0.0);
        assert_eq!(score(judgement(1.0, 1.0, 0.0, 1.0)), 0.0);
    }
}
