//! Linear heads: how they are fitted to tags ([`Rule`]), and the masks they make.
//!
//! A head gives every patch a log-odds of each class against the background. A patch belongs to the class with the
//! largest log-odds among its image's tags, if that is above 0, and to the background otherwise.

use std::fmt;

use half::f16;
use rayon::prelude::*;
use vitpcm_masks::LabelMap;
use vitpcm_nets::Grid;

use crate::descent::{DescentConfig, descend};
use crate::error::{Result, check_length};
use crate::patch_features::{PatchFeatures, widen};
use crate::pooled_loss::PooledLoss;
use crate::product::Matrix;
use crate::projection::Projection;
use crate::ridge::{fit_masks, fit_share};
use crate::tagged_images::TaggedImages;

/// How a head learns from tags. `share` is the fraction of an image's patches that a tag refers to, at least one patch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Softmax over background and classes; the mean probability of a class's best patches must agree with the tag.
    Softmax {
        /// Fraction of patches in that mean.
        share: f32,
        /// Whether every patch that claims a class its image is not tagged with is penalised.
        negatives: bool,
    },
    /// Each class by its own logistic regression on the mean score of its best patches; claims of absent classes are
    /// penalised.
    Sigmoid {
        /// Fraction of patches in that mean.
        share: f32,
    },
    /// Self-training by cross-fitted ridge regression, in which the highest-scoring patches of a tagged image are
    /// relabelled as the class in each iteration.
    Share {
        /// Fraction of a tagged image's patches that have the class.
        share: f32,
    },
}

impl Rule {
    /// The loss that is minimised, if it is learned so.
    fn pooled_loss(self) -> Option<PooledLoss> {
        match self {
            Rule::Softmax { share, negatives } => Some(PooledLoss::Softmax { share, negatives }),
            Rule::Sigmoid { share } => Some(PooledLoss::Sigmoid { share }),
            Rule::Share { .. } => None,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Softmax { share, negatives: false } => write!(f, "softmax {share}"),
            Rule::Softmax { share, negatives: true } => write!(f, "softmax {share} with negatives"),
            Rule::Sigmoid { share } => write!(f, "sigmoid {share}"),
            Rule::Share { share } => write!(f, "share {share}"),
        }
    }
}

/// Log-odds of classes against the background, linear in a patch's features.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearHead {
    /// Features per patch.
    width: usize,
    /// `[classes, width + 1]`; the last weight of a class is its bias.
    weights: Vec<f32>,
}

impl LinearHead {
    /// From weights `[classes, width + 1]`; the last weight of each class is its bias.
    pub fn new(width: usize, weights: Vec<f32>) -> Result<Self> {
        check_length("weights of whole classes", weights.len(), weights.len() / (width + 1) * (width + 1))?;
        Ok(Self { width, weights })
    }

    /// Log-odds `[classes, patches]` of patches `[patches, width]`.
    pub fn log_odds(&self, patches: &[f16]) -> Vec<f32> {
        let mut widened = Vec::new();
        widen(patches.chunks_exact(self.width), self.width, &mut widened);
        let patches = Matrix::rows_of(&widened, self.width + 1);
        Matrix::rows_of(&self.weights, self.width + 1).times(patches.transposed())
    }

    pub(crate) fn num_classes(&self) -> usize {
        self.weights.len() / (self.width + 1)
    }

    /// The weights of each class, its bias last.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.weights.chunks_exact(self.width + 1)
    }

    /// The head on features before a projection that equals this one on projected features.
    pub(crate) fn before(&self, projection: &Projection) -> Result<LinearHead> {
        check_length("features of a head", self.width, projection.num_directions())?;
        let mut weights = Vec::new();
        for row in self.rows() {
            let (of_directions, bias) = (&row[..self.width], row[self.width]);
            let mut of_features = vec![0.0f32; projection.width()];
            for (weight, direction) in of_directions.iter().zip(projection.directions()) {
                of_features.iter_mut().zip(direction).for_each(|(sum, x)| *sum += weight * x);
            }
            let at_mean: f32 =
                of_features.iter().zip(projection.mean()).map(|(weight, mean)| weight * mean).sum();
            weights.extend(of_features);
            weights.push(bias - at_mean);
        }
        LinearHead::new(projection.width(), weights)
    }

    /// The mask of one image with known tags.
    pub fn label_map(&self, patches: &[f16], grid: Grid, tags: &[bool]) -> Result<LabelMap> {
        label_map(&self.log_odds(patches), grid, tags)
    }
}

/// The mask of an image with known tags, from its log-odds `[classes, patches]`.
pub fn label_map(log_odds: &[f32], grid: Grid, tags: &[bool]) -> Result<LabelMap> {
    let num_patches = grid.num_cells();
    check_length("log-odds of an image", log_odds.len(), tags.len() * num_patches)?;
    let mut labels = vec![0; num_patches];
    let mut best = vec![0.0; num_patches];
    for (class, plane) in log_odds.chunks_exact(num_patches).enumerate().filter(|(class, _)| tags[*class]) {
        for ((label, best), &value) in labels.iter_mut().zip(&mut best).zip(plane) {
            if value > *best {
                (*label, *best) = (class as u8 + 1, value);
            }
        }
    }
    Ok(LabelMap::new(grid.columns, grid.rows, labels)?)
}

/// The result of a rule: one head, or one per fold of images, fitted to the other folds.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedHead {
    by_fold: Vec<LinearHead>,
}

impl FittedHead {
    /// Fits a head to the tags of images by each rule.
    pub fn fit(
        rules: &[Rule],
        features: &PatchFeatures,
        images: &TaggedImages,
        config: &DescentConfig,
    ) -> Result<Vec<Self>> {
        features.check_fits(images)?;
        let losses: Vec<PooledLoss> = rules.iter().filter_map(|rule| rule.pooled_loss()).collect();
        let mut descended = descend(&losses, features, images, config).into_iter();
        let by_fold = |rule: &Rule| match *rule {
            Rule::Share { share } => fit_share(share, features, images),
            Rule::Softmax { .. } | Rule::Sigmoid { .. } => descended.by_ref().take(1).collect(),
        };
        Ok(rules.iter().map(by_fold).map(|by_fold| Self { by_fold }).collect())
    }

    /// Fits a head to masks of images, one label map per image on the grid of patches.
    pub fn fit_masks(masks: &[LabelMap], features: &PatchFeatures, images: &TaggedImages) -> Result<Self> {
        features.check_fits(images)?;
        check_length("masks", masks.len(), images.num_images())?;
        for mask in masks {
            check_length("patches of a mask", mask.labels().len(), features.num_patches())?;
        }
        Ok(Self { by_fold: fit_masks(masks, features, images) })
    }

    /// The head for an image of the set it was fitted to.
    pub fn of_image(&self, image: usize, images: &TaggedImages) -> &LinearHead {
        &self.by_fold[images.fold(image) % self.by_fold.len()]
    }

    /// The head for other images: the mean of all folds' heads.
    pub fn for_new_images(&self) -> LinearHead {
        let mut mean = self.by_fold[0].clone();
        for (i, weight) in mean.weights.iter_mut().enumerate() {
            let sum: f32 = self.by_fold.iter().map(|head| head.weights[i]).sum();
            *weight = sum / self.by_fold.len() as f32;
        }
        mean
    }

    /// The masks of all images it was fitted to.
    pub fn masks(&self, features: &PatchFeatures, images: &TaggedImages) -> Result<Vec<LabelMap>> {
        features.check_fits(images)?;
        let mask = |image| {
            let head = self.of_image(image, images);
            head.label_map(features.image(image), features.grid(), images.tags(image))
        };
        (0..images.num_images()).into_par_iter().map(mask).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_takes_the_best_tag_above_zero() {
        let grid = Grid { rows: 1, columns: 4 };
        let log_odds = [
            0.5, -1.0, 2.0, 0.0, // the first class
            1.0, -2.0, 1.0, 0.0, // the second
            9.0, 9.0, 9.0, 9.0, // a class the image is not tagged with
        ];
        let map = label_map(&log_odds, grid, &[true, true, false]).unwrap();
        assert_eq!(map.labels(), [2, 0, 1, 0]);
    }
}
