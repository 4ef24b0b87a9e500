//! Model selection without true masks: every candidate is scored by judges on several sources, and all are ranked. What
//! the best of them agree on is one more candidate.
//!
//! A good mask is recognised by every judge on held-out images, both against images without the tag and against the
//! rest of the tagged images. Larger masks are preferred among equally recognisable ones, because the core of an object
//! is as easy to recognise as the whole object.

use std::fmt;

use rayon::prelude::*;
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

/// Candidates that vote on a class: those with the best scores for it.
const VOTERS: usize = 5;

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

/// What a linear head was fitted to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FittedTo {
    /// Tags.
    Tags(Rule),
    /// The masks on which the best heads of each class agree.
    Agreement,
}

impl fmt::Display for FittedTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FittedTo::Tags(rule) => rule.fmt(f),
            FittedTo::Agreement => write!(f, "agreement of {VOTERS} heads"),
        }
    }
}

/// Where a candidate's masks come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// A linear head.
    Head {
        /// The features it works on.
        source: Source,
        /// What it was fitted to.
        fitted_to: FittedTo,
        /// The head itself.
        head: FittedHead,
    },
    /// Masks from elsewhere, named by the caller.
    Foreign(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Head { source, fitted_to, .. } => write!(f, "{fitted_to}, {source}"),
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
            self.judged_head(source, FittedTo::Tags(rule), head, features)
        };
        heads.into_iter().zip(rules).map(candidate).collect()
    }

    /// Fits a head to the [`agreement`] of other candidates on the features of a source, and scores its masks.
    pub fn fit_agreed(
        &self,
        source: Source,
        features: &PatchFeatures,
        agreed: &[LabelMap],
    ) -> Result<Candidate> {
        let head = FittedHead::fit_masks(agreed, features, self.images)?;
        self.judged_head(source, FittedTo::Agreement, head, features)
    }

    fn judged_head(
        &self,
        source: Source,
        fitted_to: FittedTo,
        head: FittedHead,
        features: &PatchFeatures,
    ) -> Result<Candidate> {
        let masks = head.masks(features, self.images)?;
        self.judged(Origin::Head { source, fitted_to, head }, masks)
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

/// The masks on which most of the candidates agree that have the best scores for a class, class by class: which rule and
/// block finds a class differs from class to class.
pub fn agreement(candidates: &[Candidate], images: &TaggedImages) -> Result<Vec<LabelMap>> {
    let Some(first) = candidates.first() else {
        return Err(HeadsError::BadRequest("there are no candidates to agree".to_owned()));
    };
    let voters = |class: usize| {
        let mut ranked: Vec<&Candidate> = candidates.iter().collect();
        ranked.sort_by(|a, b| b.classes[class].score.total_cmp(&a.classes[class].score));
        ranked.truncate(VOTERS);
        ranked
    };
    let voters: Vec<Vec<&Candidate>> = (0..images.num_classes()).map(voters).collect();
    let mask = |image: usize| {
        let (width, height) = first.masks[image].size();
        let mut labels = vec![0; width * height];
        let mut most = vec![candidates.len().min(VOTERS) / 2; width * height];
        for (class, voters) in voters.iter().enumerate().filter(|(class, _)| images.has(image, *class)) {
            let class = class as u8 + 1;
            for (patch, (label, most)) in labels.iter_mut().zip(&mut most).enumerate() {
                let votes = voters.iter().filter(|voter| voter.masks[image].labels()[patch] == class).count();
                if votes > *most {
                    (*label, *most) = (class, votes);
                }
            }
        }
        Ok(LabelMap::new(width, height, labels)?)
    };
    (0..images.num_images()).into_par_iter().map(mask).collect()
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
    fn most_of_the_voters_with_the_best_scores_for_a_class_decide() {
        let candidate = |scores: [f32; 2], labels: [u8; 4]| {
            let class = |score| ClassScore { score, auc: 1.0, area: 0.5, empty: 0.0 };
            let masks = vec![LabelMap::new(2, 2, labels.to_vec()).unwrap()];
            Candidate {
                origin: Origin::Foreign(String::new()),
                masks,
                score: 0.0,
                classes: scores.map(class).to_vec(),
            }
        };
        // The last two have no vote on the first class, the first two none on the second.
        let candidates = [
            candidate([0.9, 0.1], [1, 1, 1, 2]),
            candidate([0.9, 0.1], [1, 1, 0, 2]),
            candidate([0.8, 0.8], [1, 0, 1, 2]),
            candidate([0.8, 0.8], [0, 0, 2, 2]),
            candidate([0.7, 0.7], [0, 1, 2, 0]),
            candidate([0.1, 0.9], [2, 2, 2, 0]),
            candidate([0.1, 0.9], [2, 2, 2, 0]),
        ];
        let agreed = |tags| {
            let images = TaggedImages::new(2, Vec::from(tags), 0).unwrap();
            agreement(&candidates, &images).unwrap().remove(0).into_labels()
        };
        assert_eq!(agreed([true, true]), [1, 1, 2, 0]);
        assert_eq!(agreed([true, false]), [1, 1, 0, 0], "an absent class has no votes");
        assert!(agreement(&[], &TaggedImages::new(1, vec![true], 0).unwrap()).is_err());
    }

    #[test]
    fn chance_and_empty_masks_score_zero() {
        let score = |judgement| ChoiceConfig::default().score([judgement].into_iter()).score;
        assert_eq!(score(judgement(0.5, 0.5, 0.3, 0.0)), 0.0);
        assert_eq!(score(judgement(0.3, 0.9, 0.3, 0.0)), 0.0);
        assert_eq!(score(judgement(1.0, 1.0, 0.0, 1.0)), 0.0);
    }
}
