//! Fitting a head to a pooled loss: Adam on batches of whole images.

use rayon::prelude::*;
use vitpcm_nets::Stream;

use crate::head::LinearHead;
use crate::patch_features::{PatchFeatures, widen};
use crate::pooled_loss::{BatchImage, Gradient, PooledLoss, balanced_weights};
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

/// The head that minimises a loss.
pub(crate) fn descend(
    loss: PooledLoss,
    features: &PatchFeatures,
    images: &TaggedImages,
    config: &DescentConfig,
) -> LinearHead {
    let width = features.width();
    let tag_weights = balanced_weights(images);
    let stream = Stream::named(config.seed, "head batches");
    let mut weights = loss.initial_weights(images.num_classes(), width, config.seed);
    let mut adam = Adam::new(weights.len());
    for step in 0..config.steps {
        let position = (step * config.batch) as u64;
        let batch = draw(config.batch, images.num_images(), stream, position);
        let gradient = batch_gradient(loss, &weights, features, images, &tag_weights, &batch);
        adam.step(
            &mut weights,
            &gradient.by_weights,
            config.rate * (1.0 - step as f32 / config.steps as f32),
        );
    }
    let weights = loss.log_odds_weights(&weights, width);
    LinearHead::new(width, weights).expect("a loss has whole rows of weights")
}

/// The loss of a batch with its penalty. `tag_weights` cover all images.
pub(crate) fn batch_gradient(
    loss: PooledLoss,
    weights: &[f32],
    features: &PatchFeatures,
    images: &TaggedImages,
    tag_weights: &[f32],
    batch: &[usize],
) -> Gradient {
    let (width, num_classes) = (features.width(), images.num_classes());
    let gradients: Vec<Gradient> = batch
        .par_iter()
        .map_init(Vec::new, |widened, &image| {
            widen(features.image(image).chunks_exact(width), width, widened);
            let image = BatchImage {
                patches: widened,
                tags: images.tags(image),
                tag_weights: &tag_weights[image * num_classes..][..num_classes],
                batch: batch.len(),
            };
            loss.of_image(weights, image)
        })
        .collect();

    let mut sum = Gradient { loss: 0.0, by_weights: vec![0.0; weights.len()] };
    for gradient in gradients {
        sum.loss += gradient.loss;
        sum.by_weights.iter_mut().zip(&gradient.by_weights).for_each(|(sum, value)| *sum += value);
    }
    let penalty = loss.weight_penalty();
    for (row, gradient) in weights.chunks_exact(width + 1).zip(sum.by_weights.chunks_exact_mut(width + 1)) {
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
