//! Fitting heads to pooled losses: Adam on batches of whole images.

use rayon::prelude::*;
use vitpcm_nets::Stream;

use crate::head::LinearHead;
use crate::patch_features::{PatchFeatures, widen};
use crate::pooled_loss::{BatchImage, PooledLoss, balanced_weights};
use crate::product::Matrix;
use crate::tagged_images::{TaggedImages, draw};

/// Settings of the minimisation of pooled losses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DescentConfig {
    /// Number of steps.
    pub steps: usize,
    /// Initial learning rate; decays linearly to zero.
    pub rate: f32,
    /// Batch size, in images.
    pub batch: usize,
    /// Seed of the initial weights and of the batches.
    pub seed: u64,
}

impl Default for DescentConfig {
    fn default() -> Self {
        Self { steps: 180, rate: 0.02, batch: 96, seed: 0 }
    }
}

/// The head that minimises each loss. All are fitted side by side to the same batches, so that patches are widened and
/// multiplied once for all of them.
pub(crate) fn descend(
    losses: &[PooledLoss],
    features: &PatchFeatures,
    images: &TaggedImages,
    config: &DescentConfig,
) -> Vec<LinearHead> {
    if losses.is_empty() {
        return Vec::new();
    }
    let width = features.width();
    let tag_weights = balanced_weights(images);
    let stream = Stream::named(config.seed, "head batches");
    let initial = |loss: &PooledLoss| loss.initial_weights(images.num_classes(), width, config.seed);
    let mut weights: Vec<f32> = losses.iter().flat_map(initial).collect();
    let mut adam = Adam::new(weights.len());
    for step in 0..config.steps {
        let position = (step * config.batch) as u64;
        let batch = draw(config.batch, images.num_images(), stream, position);
        let gradient = batch_gradient(losses, &weights, features, images, &tag_weights, &batch);
        let rate = config.rate * (1.0 - step as f32 / config.steps as f32);
        adam.step(&mut weights, &gradient.by_weights, rate);
    }
    let mut rest = &weights[..];
    let head = |loss: &PooledLoss| {
        let own = rest.split_off(..loss.num_rows(images.num_classes()) * (width + 1));
        let weights = loss.log_odds_weights(own.expect("every loss has its rows"), width);
        LinearHead::new(width, weights).expect("a loss has whole rows of weights")
    };
    losses.iter().map(head).collect()
}

/// The sum of several losses, and its gradient with respect to all their parameters.
#[derive(Debug, Clone)]
pub(crate) struct Gradient {
    pub(crate) loss: f64,
    pub(crate) by_weights: Vec<f32>,
}

/// The losses of a batch with their penalties; `weights` holds the rows of one loss after those of another. `tag_weights`
/// cover all images.
pub(crate) fn batch_gradient(
    losses: &[PooledLoss],
    weights: &[f32],
    features: &PatchFeatures,
    images: &TaggedImages,
    tag_weights: &[f32],
    batch: &[usize],
) -> Gradient {
    let (width, num_classes, num_patches) = (features.width(), images.num_classes(), features.num_patches());
    let gradients: Vec<Gradient> = batch
        .par_iter()
        .map_init(Vec::new, |widened, &image| {
            widen(features.image(image).chunks_exact(width), width, widened);
            let patches = Matrix::rows_of(widened, width + 1);
            let mut scores = Matrix::rows_of(weights, width + 1).times(patches.transposed()); // [rows, patches]
            let image = BatchImage {
                num_patches,
                tags: images.tags(image),
                tag_weights: &tag_weights[image * num_classes..][..num_classes],
                batch: batch.len(),
            };
            let mut rest = &mut scores[..];
            let of_loss = |loss: &PooledLoss| {
                let own = rest.split_off_mut(..loss.num_rows(num_classes) * num_patches);
                loss.of_image(own.expect("every loss has its rows"), image)
            };
            let loss = losses.iter().map(of_loss).sum();
            // `scores` now holds the gradient with respect to them.
            Gradient { loss, by_weights: Matrix::rows_of(&scores, num_patches).times(patches) }
        })
        .collect();

    let mut sum = Gradient { loss: 0.0, by_weights: vec![0.0; weights.len()] };
    for gradient in gradients {
        sum.loss += gradient.loss;
        sum.by_weights.iter_mut().zip(&gradient.by_weights).for_each(|(sum, value)| *sum += value);
    }
    let penalties =
        losses.iter().flat_map(|loss| std::iter::repeat_n(loss.weight_penalty(), loss.num_rows(num_classes)));
    let rows = weights.chunks_exact(width + 1).zip(sum.by_weights.chunks_exact_mut(width + 1));
    for ((row, gradient), penalty) in rows.zip(penalties) {
        for (&weight, gradient) in row[..width].iter().zip(gradient) {
            sum.loss += f64::from(penalty * weight * weight);
            *gradient += 2.0 * penalty * weight;
        }
    }
    sum
}

/// Adam with the usual decay rates, over a slice.
struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
    num_steps: i32,
}

impl Adam {
    const DECAYS: (f32, f32) = (0.9, 0.999);
    const EPSILON: f32 = 1e-8;

    fn new(length: usize) -> Self {
        Self { mean: vec![0.0; length], square: vec![0.0; length], num_steps: 0 }
    }

    fn step(&mut self, weights: &mut [f32], gradient: &[f32], rate: f32) {
        let (first, second) = Self::DECAYS;
        self.num_steps += 1;
        let mean_share = 1.0 - first.powi(self.num_steps);
        let square_share = 1.0 - second.powi(self.num_steps);
        for (i, &slope) in gradient.iter().enumerate() {
            self.mean[i] += (1.0 - first) * (slope - self.mean[i]);
            self.square[i] += (1.0 - second) * (slope * slope - self.square[i]);
            let deviation = (self.square[i] / square_share).sqrt() + Self::EPSILON;
            weights[i] -= rate * self.mean[i] / mean_share / deviation;
        }
    }
}
