//! Ridge regression on patch labels. Self-training with a fixed fraction of patches alternates it with relabelling the
//! highest-scoring fraction of each tagged image; masks give the labels at once. Cross-fitted: each fold is scored by the
//! regression on the others.
//!
//! A patch's weight depends only on the class and on whether the patch is *chosen* (in the mask, or among the best of a tagged image),
//! *left over* (elsewhere in a tagged image) or *without* (in an image without the tag). So Gram matrices of all patches
//! are computed once, and only those of the chosen patches in each iteration.

use rayon::prelude::*;
use vitpcm_masks::LabelMap;

use crate::cholesky::Cholesky;
use crate::gram::{Gram, in_order, products};
use crate::head::LinearHead;
use crate::patch_features::PatchFeatures;
use crate::pooled_loss::{nth_largest, pooled_count};
use crate::tagged_images::{NUM_FOLDS, TaggedImages};

/// Iterations after the first regression, in which every patch inherits its image's tags.
const NUM_ITERATIONS: usize = 3;
/// Ridge, as a fraction of the mean of the diagonal.
const RIDGE: f64 = 1e-3;
/// Lower limit of the fraction of images with or without a tag when weights are computed.
const MIN_SHARE: f64 = 1e-3;
/// From a regression on ±1 to log-odds: a patch has the class if twice its value exceeds 0.3.
const LOG_ODDS_SCALE: f64 = 2.0;
const LOG_ODDS_THRESHOLD: f64 = 0.3;

/// Regression weights of the patches for one class.
struct PatchWeights {
    chosen: f64,
    left_over: f64,
    without: f64,
}

/// Fits one head per fold.
pub(crate) fn fit_share(share: f32, features: &PatchFeatures, images: &TaggedImages) -> Vec<LinearHead> {
    let sums = Sums::of(features, images);
    let num_images = images.num_images() as f64;
    let first = |class: usize| {
        let tagged = images.num_tagged(class) as f64 / num_images;
        PatchWeights {
            chosen: 0.5 / tagged.max(MIN_SHARE),
            left_over: 0.0,
            without: 0.5 / (1.0 - tagged).max(MIN_SHARE),
        }
    };
    let mut weights = regress(&sums.tagged, &sums, first);
    for _ in 0..NUM_ITERATIONS {
        let chosen = sums_of_best(share, &weights, features, images);
        weights = regress_balanced(&chosen, &sums);
    }
    heads_of(weights, features.width())
}

/// Fits one head per fold to masks, one per image on the grid of patches.
pub(crate) fn fit_masks(
    masks: &[LabelMap],
    features: &PatchFeatures,
    images: &TaggedImages,
) -> Vec<LinearHead> {
    let is_chosen = |image: usize, class: usize, patch: usize| {
        usize::from(masks[image].labels()[patch]) == class + 1 && images.has(image, class)
    };
    let chosen = sums_of_chosen(features, images, |image| {
        let patches =
            |class| (0..features.num_patches()).filter(|&patch| is_chosen(image, class, patch)).collect();
        (0..images.num_classes()).map(|class| (class, patches(class))).collect()
    });
    heads_of(regress_balanced(&chosen, &Sums::of(features, images)), features.width())
}

/// Weights `[folds, classes, width + 1]` as heads.
fn heads_of(weights: Vec<Vec<Vec<f64>>>, width: usize) -> Vec<LinearHead> {
    weights
        .into_iter()
        .map(|classes| LinearHead::new(width, log_odds_weights(classes, width)))
        .map(|head| head.expect("a regression has whole rows of weights"))
        .collect()
}

/// A regression in which chosen patches weigh as much as all others, and of those the tagged images' as much as the rest.
fn regress_balanced(chosen: &[Vec<Gram>], sums: &Sums) -> Vec<Vec<Vec<f64>>> {
    let num_patches: f64 = sums.all.iter().map(Gram::count).sum();
    regress(chosen, sums, |class| {
        let count = |sums: &[Vec<Gram>]| sums.iter().map(|fold| fold[class].count()).sum::<f64>();
        let (num_chosen, num_tagged) = (count(chosen), count(&sums.tagged));
        PatchWeights {
            chosen: num_patches / num_chosen.max(1.0),
            left_over: 0.5 * num_patches / (num_tagged - num_chosen).max(1.0),
            without: 0.5 * num_patches / (num_patches - num_tagged).max(1.0),
        }
    })
}

fn log_odds_weights(classes: Vec<Vec<f64>>, width: usize) -> Vec<f32> {
    let log_odds = |(i, weight): (usize, f64)| match i == width {
        true => (LOG_ODDS_SCALE * weight - LOG_ODDS_THRESHOLD) as f32,
        false => (LOG_ODDS_SCALE * weight) as f32,
    };
    classes.into_iter().flat_map(|class| class.into_iter().enumerate().map(log_odds)).collect()
}

/// Products of patches, by fold.
struct Sums {
    all: Vec<Gram>,
    /// Of tagged images, by fold and class.
    tagged: Vec<Vec<Gram>>,
}

impl Sums {
    fn of(features: &PatchFeatures, images: &TaggedImages) -> Self {
        let width = features.width();
        let zero = Gram::zero(width);
        let mut all = vec![zero.clone(); NUM_FOLDS];
        let mut tagged = vec![vec![zero; images.num_classes()]; NUM_FOLDS];
        let every: Vec<usize> = (0..images.num_images()).collect();
        in_order(
            &every,
            |widened, &image| products(features.image(image).chunks_exact(width), width, widened),
            |&image, products| {
                let fold = images.fold(image);
                all[fold].add_products(&products);
                for class in (0..images.num_classes()).filter(|&class| images.has(image, class)) {
                    tagged[fold][class].add_products(&products);
                }
            },
        );
        Self { all, tagged }
    }
}

/// Products of the best patches of each tagged image, by fold and class; `weights` are those of the fold's regression.
fn sums_of_best(
    share: f32,
    weights: &[Vec<Vec<f64>>],
    features: &PatchFeatures,
    images: &TaggedImages,
) -> Vec<Vec<Gram>> {
    let (width, num_patches) = (features.width(), features.num_patches());
    let count = pooled_count(share, num_patches);
    let heads: Vec<Vec<f32>> =
        weights.iter().map(|fold| fold.iter().flatten().map(|&w| w as f32).collect()).collect();
    let heads: Vec<LinearHead> = heads
        .into_iter()
        .map(|weights| LinearHead::new(width, weights).expect("a regression has whole rows of weights"))
        .collect();
    sums_of_chosen(features, images, |image| {
        let scores = heads[images.fold(image)].log_odds(features.image(image));
        let planes = scores.chunks_exact(num_patches).enumerate();
        let best = planes.filter(|(class, _)| images.has(image, *class)).map(|(class, plane)| {
            let last = nth_largest(plane, count, &mut Vec::new());
            (class, (0..num_patches).filter(|&patch| plane[patch] >= last).collect())
        });
        best.collect()
    })
}

/// Products of chosen patches, by fold and class; `chosen` names those of an image, class by class.
fn sums_of_chosen(
    features: &PatchFeatures,
    images: &TaggedImages,
    chosen: impl Fn(usize) -> Vec<(usize, Vec<usize>)> + Sync,
) -> Vec<Vec<Gram>> {
    let width = features.width();
    let mut sums = vec![vec![Gram::zero(width); images.num_classes()]; NUM_FOLDS];
    let every: Vec<usize> = (0..images.num_images()).collect();
    in_order(
        &every,
        |widened, &image| {
            let of_class = |(class, patches): (usize, Vec<usize>)| {
                let patches = patches.into_iter().map(|patch| features.patch(image, patch));
                (class, products(patches, width, widened))
            };
            chosen(image).into_iter().map(of_class).collect::<Vec<_>>()
        },
        |&image, of_classes| {
            let fold = &mut sums[images.fold(image)];
            of_classes.iter().for_each(|(class, products)| fold[*class].add_products(products));
        },
    );
    sums
}

/// The regression for each fold and class, on all other folds: `width + 1` weights, the last one the bias.
fn regress(chosen: &[Vec<Gram>], sums: &Sums, weights: impl Fn(usize) -> PatchWeights) -> Vec<Vec<Vec<f64>>> {
    let num_classes = chosen[0].len();
    let weights: Vec<PatchWeights> = (0..num_classes).map(weights).collect();
    let solve = |fold: usize, class: usize| {
        let size = sums.all[0].size;
        let mut matrix = Gram::zero(size - 1);
        let mut target = vec![0.0; size];
        let mut add = |gram: &Gram, weight: f64, label: f64| {
            matrix.add(gram, weight);
            target.iter_mut().zip(gram.sum()).for_each(|(target, sum)| *target += weight * label * sum);
        };
        let PatchWeights { chosen: with, left_over, without } = weights[class];
        for other in (0..NUM_FOLDS).filter(|&other| other != fold) {
            add(&chosen[other][class], with, 1.0);
            // Left over are the tagged images' patches without the chosen ones.
            add(&sums.tagged[other][class], left_over, -1.0);
            add(&chosen[other][class], -left_over, -1.0);
            add(&sums.all[other], without, -1.0);
            add(&sums.tagged[other][class], -without, -1.0);
        }
        let ridge = RIDGE * (0..size).map(|i| matrix.values[i * size + i]).sum::<f64>() / size as f64;
        (0..size).for_each(|i| matrix.values[i * size + i] += ridge);
        // Without any patch in the other folds, which happens with very few images, no patch gets the class.
        Cholesky::of(matrix.values, size).map_or(vec![0.0; size], |cholesky| cholesky.solve(&target))
    };
    (0..NUM_FOLDS)
        .map(|fold| (0..num_classes).into_par_iter().map(|class| solve(fold, class)).collect())
        .collect()
}
