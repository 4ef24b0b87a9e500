//! A judge of masks that needs no true masks: how well are the masked patches recognised on held-out images?
//!
//! For each class, linear discriminant analysis separates the mask's patches from patches of images without the tag and
//! from the tagged images' patches outside the mask. A mask that fits its object is separable from both. A mask of
//! something that all images contain is not separable from the first; an arbitrary part of a tagged image is not
//! separable from the second. Discriminants are cross-fitted: each fold is scored by the one fitted to the others.

use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use vitpcm_masks::LabelMap;
use vitpcm_nets::Stream;

use crate::cholesky::Cholesky;
use crate::error::{HeadsError, Result, check_length};
use crate::gram::{Gram, in_order, products};
use crate::patch_features::PatchFeatures;
use crate::tagged_images::{NUM_FOLDS, TaggedImages};

/// Added to every variance of the discriminant's covariance; whitened features have about 1.
const SHRINKAGE: f64 = 0.05;
/// Classes with fewer masked patches in all images are not judged.
const MIN_PATCHES: usize = 5;
/// Patches sampled from each set for the AUC, which is exact for smaller sets.
const MAX_COMPARED: usize = 20_000;

/// How recognisable the masks of one class are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recognisability {
    /// AUC of the masks' patches against patches of images without the tag; ½ if undefined.
    pub against_others: f32,
    /// AUC of the masks' patches against the tagged images' other patches; ½ if undefined.
    pub against_rest: f32,
    /// Mean fraction of a tagged image that its mask covers.
    pub area: f32,
    /// Fraction of the tagged images whose masks are empty.
    pub empty: f32,
}

/// Judges masks by the features of one source.
#[derive(Debug, Clone)]
pub struct Judge<'a> {
    features: &'a PatchFeatures,
    images: &'a TaggedImages,
    covariance: Cholesky,
    /// Sums of each image's patches, `[images, width]`.
    totals: Vec<f64>,
}

/// A patch: image, index on the grid.
type Place = (usize, usize);

impl<'a> Judge<'a> {
    /// A judge of masks of these images.
    pub fn new(features: &'a PatchFeatures, images: &'a TaggedImages) -> Result<Self> {
        features.check_fits(images)?;
        let width = features.width();
        let mut gram = Gram::zero(width);
        let mut totals = Vec::with_capacity(images.num_images() * width);
        let every: Vec<usize> = (0..images.num_images()).collect();
        in_order(
            &every,
            |widened, &image| products(features.image(image).chunks_exact(width), width, widened),
            |_, products| {
                gram.add_products(&products);
                totals.extend(products[width * (width + 1)..][..width].iter().map(|&sum| f64::from(sum)));
            },
        );
        let (_, mut covariance) = gram.moments();
        (0..width).for_each(|i| covariance[i * width + i] += SHRINKAGE);
        let covariance = Cholesky::of(covariance, width).ok_or_else(|| {
            HeadsError::BadRequest("features that are not finite cannot be judged by".to_owned())
        })?;
        Ok(Self { features, images, covariance, totals })
    }

    /// Judges the masks of all images, class by class. Labels of absent classes count as background.
    pub fn of(&self, masks: &[LabelMap]) -> Result<Vec<Recognisability>> {
        check_length("masks", masks.len(), self.images.num_images())?;
        let grid = self.features.grid();
        for mask in masks {
            check_length("columns of a mask", mask.width(), grid.columns)?;
            check_length("rows of a mask", mask.height(), grid.rows)?;
        }
        (0..self.images.num_classes()).into_par_iter().map(|class| Ok(self.of_class(class, masks))).collect()
    }

    fn of_class(&self, class: usize, masks: &[LabelMap]) -> Recognisability {
        let (images, num_patches) = (self.images, self.features.num_patches());
        let (tagged, others): (Vec<usize>, Vec<usize>) =
            (0..images.num_images()).partition(|&image| images.has(image, class));
        let (mut inside, mut rest): (Vec<Place>, Vec<Place>) = (Vec::new(), Vec::new());
        let mut num_empty = 0;
        for &image in &tagged {
            let before = inside.len();
            for (patch, &label) in masks[image].labels().iter().enumerate() {
                let side = if usize::from(label) == class + 1 { &mut inside } else { &mut rest };
                side.push((image, patch));
            }
            num_empty += usize::from(inside.len() == before);
        }
        let num_tagged = tagged.len().max(1);
        let unknown = Recognisability {
            against_others: 0.5,
            against_rest: 0.5,
            area: inside.len() as f32 / (num_tagged * num_patches) as f32,
            empty: if tagged.is_empty() { 1.0 } else { num_empty as f32 / num_tagged as f32 },
        };
        if inside.len() < MIN_PATCHES || others.is_empty() {
            return unknown;
        }

        let discriminants = self.discriminants(&inside, &tagged, &others);
        let stream = Stream::named(class as u64, "judge");
        let score = |(image, patch): Place| self.score(&discriminants[images.fold(image)], image, patch);
        let scores = |places: &[Place], position: u64| -> Vec<f32> {
            sample(places.len(), stream, position).map(|index| score(places[index])).collect()
        };
        let inside_scores = scores(&inside, 0);
        let mut rest_scores = scores(&rest, 1 << 32);
        let mut other_scores: Vec<f32> = sample(others.len() * num_patches, stream, 2 << 32)
            .map(|index| score((others[index / num_patches], index % num_patches)))
            .collect();
        Recognisability {
            against_others: auc(&inside_scores, &mut other_scores),
            against_rest: auc(&inside_scores, &mut rest_scores),
            ..unknown
        }
    }

    /// For each fold, the discriminant fitted to the other folds. An empty set gets the mean of all patches, which is 0.
    fn discriminants(&self, inside: &[Place], tagged: &[usize], others: &[usize]) -> Vec<Vec<f32>> {
        let (width, num_patches) = (self.features.width(), self.features.num_patches());
        let total = |image: usize| &self.totals[image * width..][..width];
        let fold_of = |image: usize| self.images.fold(image);
        let mut sums = vec![[Mean::zero(width), Mean::zero(width), Mean::zero(width)]; NUM_FOLDS];
        let mut row = vec![0.0; width];
        for &(image, patch) in inside {
            self.features.patch(image, patch).convert_to_f32_slice(&mut row);
            let [inside, rest, _] = &mut sums[fold_of(image)];
            for ((inside, rest), &x) in inside.sum.iter_mut().zip(&mut rest.sum).zip(&row) {
                *inside += f64::from(x);
                *rest -= f64::from(x);
            }
            inside.count += 1.0;
            rest.count -= 1.0;
        }
        tagged.iter().for_each(|&image| sums[fold_of(image)][1].add(total(image), num_patches as f64));
        others.iter().for_each(|&image| sums[fold_of(image)][2].add(total(image), num_patches as f64));

        let discriminant = |fold: usize| {
            let mut parts = [Mean::zero(width), Mean::zero(width), Mean::zero(width)];
            for other in (0..NUM_FOLDS).filter(|&other| other != fold) {
                parts.iter_mut().zip(&sums[other]).for_each(|(part, sum)| part.add(&sum.sum, sum.count));
            }
            let [inside, rest, without] = parts.map(Mean::value);
            let difference: Vec<f64> =
                (0..width).map(|i| inside[i] - 0.5 * rest[i] - 0.5 * without[i]).collect();
            self.covariance.solve(&difference).into_iter().map(|weight| weight as f32).collect()
        };
        (0..NUM_FOLDS).map(discriminant).collect()
    }

    fn score(&self, discriminant: &[f32], image: usize, patch: usize) -> f32 {
        let patch = self.features.patch(image, patch);
        patch.iter().zip(discriminant).map(|(x, weight)| x.to_f32() * weight).sum()
    }
}

/// Accumulates a mean.
#[derive(Debug, Clone)]
struct Mean {
    sum: Vec<f64>,
    count: f64,
}

impl Mean {
    fn zero(width: usize) -> Self {
        Self { sum: vec![0.0; width], count: 0.0 }
    }

    fn add(&mut self, values: &[f64], count: f64) {
        self.sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        self.count += count;
    }

    fn value(self) -> Vec<f64> {
        // The sum of an empty set may contain rounding errors.
        let factor = if self.count > 0.0 { 1.0 / self.count } else { 0.0 };
        self.sum.into_iter().map(|sum| factor * sum).collect()
    }
}

/// Stratified sample of at most [`MAX_COMPARED`] indices below `length`, ascending.
fn sample(length: usize, stream: Stream, position: u64) -> impl Iterator<Item = usize> {
    let count = length.min(MAX_COMPARED);
    (0..count).map(move |i| {
        if count == length {
            return i;
        }
        let (start, end) = (i * length / count, (i + 1) * length / count);
        start + stream.below(position + i as u64, end - start)
    })
}

/// Area under the ROC curve: the probability that a positive scores higher than a negative, ties counted half; ½ if
/// either is empty. Sorts the negatives.
fn auc(positives: &[f32], negatives: &mut [f32]) -> f32 {
    if negatives.is_empty() || positives.is_empty() {
        return 0.5;
    }
    negatives.sort_unstable_by(f32::total_cmp);
    let below = |score: f32| {
        let smaller = negatives.partition_point(|&negative| negative < score);
        let no_larger = negatives.partition_point(|&negative| negative <= score);
        (smaller + no_larger) as f64 / 2.0
    };
    let sum: f64 = positives.iter().map(|&score| below(score)).sum();
    (sum / (positives.len() * negatives.len()) as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auc_by_hand() {
        assert_eq!(auc(&[1.0, 2.0], &mut [0.0, -1.0]), 1.0);
        assert_eq!(auc(&[1.0], &mut [2.0, 1.0, 0.0, 1.0]), 0.5);
        assert_eq!(auc(&[3.0, 0.0], &mut [1.0, 2.0]), 0.5);
        assert_eq!(auc(&[3.0], &mut []), 0.5);
    }

    #[test]
    fn a_sample_is_everything_or_spread_over_everything() {
        let stream = Stream::named(1, "sample");
        assert!(sample(100, stream, 0).eq(0..100));
        let indices: Vec<usize> = sample(3 * MAX_COMPARED + 7, stream, 0).collect();
        assert_eq!(indices.len(), MAX_COMPARED);
        assert!(indices.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(indices[MAX_COMPARED - 1] >= 3 * MAX_COMPARED);
    }
}
