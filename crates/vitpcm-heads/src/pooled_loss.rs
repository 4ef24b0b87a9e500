//! Multiple-instance losses, which compare an image's tags with a pooled score of its patches, and their gradients.
//!
//! Parameters are rows of `width + 1` weights, the last one a bias: background and classes for the softmax, classes only
//! for the sigmoid. Patches are rows of `width + 1` numbers, the last one 1.

use vitpcm_nets::Stream;

use crate::tagged_images::TaggedImages;

/// Pooled probabilities are kept this far from 0 and 1.
const PROBABILITY_MARGIN: f32 = 1e-5;
/// Upper limit of the probability of absent classes in the logarithm.
const MAX_ABSENT: f32 = 0.999;
/// Initial bias of the sigmoid: most patches have no class.
const SIGMOID_BIAS: f32 = -2.0;
/// Standard deviation of the softmax's initial weights.
const SOFTMAX_DEVIATION: f32 = 0.01;

/// A loss over whole images.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PooledLoss {
    Softmax { share: f32, negatives: bool },
    Sigmoid { share: f32 },
}

/// An image of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchImage<'a> {
    pub(crate) num_patches: usize,
    pub(crate) tags: &'a [bool],
    /// Loss weight of each tag, present or absent.
    pub(crate) tag_weights: &'a [f32],
    /// Batch size. The loss of a batch is the sum over its images.
    pub(crate) batch: usize,
}

impl PooledLoss {
    /// Rows of parameters, and of scores.
    pub(crate) fn num_rows(self, num_classes: usize) -> usize {
        match self {
            PooledLoss::Softmax { .. } => num_classes + 1,
            PooledLoss::Sigmoid { .. } => num_classes,
        }
    }

    /// Factor of Σ w² (without biases) in the loss.
    pub(crate) fn weight_penalty(self) -> f32 {
        match self {
            PooledLoss::Softmax { .. } => 1e-4,
            PooledLoss::Sigmoid { .. } => 2e-4,
        }
    }

    /// Initial parameters.
    pub(crate) fn initial_weights(self, num_classes: usize, width: usize, seed: u64) -> Vec<f32> {
        let stream = Stream::named(seed, "head weights");
        let rows = self.num_rows(num_classes);
        let weight = |i: usize| match (self, i % (width + 1) == width) {
            (PooledLoss::Softmax { .. }, true) => 0.0,
            (PooledLoss::Softmax { .. }, false) => SOFTMAX_DEVIATION * stream.normal(i as u64),
            (PooledLoss::Sigmoid { .. }, true) => SIGMOID_BIAS,
            (PooledLoss::Sigmoid { .. }, false) => 0.0,
        };
        (0..rows * (width + 1)).map(weight).collect()
    }

    /// Weights of log-odds against the background, `[classes, width + 1]`.
    pub(crate) fn log_odds_weights(self, weights: &[f32], width: usize) -> Vec<f32> {
        match self {
            PooledLoss::Sigmoid { .. } => weights.to_vec(),
            PooledLoss::Softmax { .. } => {
                let (background, classes) = weights.split_at(width + 1);
                classes.iter().zip(background.iter().cycle()).map(|(class, base)| class - base).collect()
            }
        }
    }

    /// One image's contribution to the loss of its batch, without the weight penalty. Overwrites the scores of its patches,
    /// `[rows, patches]`, with their gradient.
    pub(crate) fn of_image(self, scores: &mut [f32], image: BatchImage<'_>) -> f64 {
        match self {
            PooledLoss::Softmax { share, negatives } => {
                softmax_loss(scores, image, pooled_count(share, image.num_patches), negatives)
            }
            PooledLoss::Sigmoid { share } => {
                sigmoid_loss(scores, image, pooled_count(share, image.num_patches))
            }
        }
    }
}

/// Number of patches for a fraction of an image.
pub(crate) fn pooled_count(share: f32, num_patches: usize) -> usize {
    ((f64::from(share) * num_patches as f64) as usize).clamp(1, num_patches)
}

/// Loss weights `[images, classes]` that balance the images with and without each tag.
pub(crate) fn balanced_weights(images: &TaggedImages) -> Vec<f32> {
    let shares: Vec<f32> = (0..images.num_classes())
        .map(|class| (images.num_tagged(class) as f32 / images.num_images() as f32).max(1e-3))
        .collect();
    let weight = |(&tag, share): (&bool, &f32)| match tag {
        true => (0.5 / share).min(8.0),
        false => (0.5 / (1.0 - share).max(0.02)).min(8.0),
    };
    (0..images.num_images()).flat_map(|image| images.tags(image).iter().zip(&shares).map(weight)).collect()
}

/// Cross entropy of pooled probabilities and, with `negatives`, of claims of absent classes by any patch. Overwrites
/// scores `[1 + classes, patches]` with their gradient.
fn softmax_loss(scores: &mut [f32], image: BatchImage<'_>, count: usize, negatives: bool) -> f64 {
    let (num_classes, num_patches) = (image.tags.len(), image.num_patches);
    softmax_over_rows(scores, num_patches);
    let probabilities = &*scores;
    let mut by_probability = vec![0.0f32; scores.len()];
    let mut loss = 0.0;

    let mut pool = Pool::default();
    for row in 0..=num_classes {
        let plane = &probabilities[row * num_patches..][..num_patches];
        let pooled = pool.top_mean(plane, count);
        let inside = pooled.clamp(PROBABILITY_MARGIN, 1.0 - PROBABILITY_MARGIN);
        let (factor, target) = match row.checked_sub(1) {
            // Background is in every image.
            None => (1.0 / (image.batch * (num_classes + 1)) as f32, true),
            Some(class) => (image.tag_weights[class] / (image.batch * num_classes) as f32, image.tags[class]),
        };
        let (cross_entropy, slope) =
            if target { (-inside.ln(), -1.0 / inside) } else { (-(1.0 - inside).ln(), 1.0 / (1.0 - inside)) };
        loss += f64::from(factor * cross_entropy);
        if inside == pooled {
            let slope = factor * slope / count as f32;
            pool.chosen.iter().for_each(|&patch| by_probability[row * num_patches + patch] = slope);
        }
    }

    if negatives {
        let factor = 1.0 / (image.batch * num_patches) as f32;
        let absent: Vec<usize> =
            (0..num_classes).filter(|&class| !image.tags[class]).map(|c| c + 1).collect();
        for patch in 0..num_patches {
            let claimed: f32 = absent.iter().map(|row| probabilities[row * num_patches + patch]).sum();
            loss -= f64::from(factor * (-claimed.min(MAX_ABSENT)).ln_1p());
            if claimed <= MAX_ABSENT {
                let slope = factor / (1.0 - claimed);
                absent.iter().for_each(|row| by_probability[row * num_patches + patch] += slope);
            }
        }
    }

    // Gradient of the softmax: p · (g − Σ p·g).
    let mut means = vec![0.0f32; num_patches];
    for (p, g) in probabilities.chunks_exact(num_patches).zip(by_probability.chunks_exact(num_patches)) {
        means.iter_mut().zip(p.iter().zip(g)).for_each(|(mean, (p, g))| *mean += p * g);
    }
    for (p, g) in scores.chunks_exact_mut(num_patches).zip(by_probability.chunks_exact(num_patches)) {
        p.iter_mut().zip(g.iter().zip(&means)).for_each(|(p, (g, mean))| *p *= g - mean);
    }
    loss
}

/// Logistic loss of pooled scores, and of every score of absent classes. Overwrites scores `[classes, patches]` with
/// their gradient.
fn sigmoid_loss(scores: &mut [f32], image: BatchImage<'_>, count: usize) -> f64 {
    let (num_classes, num_patches) = (image.tags.len(), image.num_patches);
    let mut loss = 0.0;
    let mut pool = Pool::default();
    for (class, plane) in scores.chunks_exact_mut(num_patches).enumerate() {
        let factor = image.tag_weights[class] / (image.batch * num_classes) as f32;
        let pooled = pool.top_mean(plane, count);
        let target = if image.tags[class] { 1.0 } else { 0.0 };
        loss += f64::from(factor * (softplus(pooled) - target * pooled));
        let pooled_slope = factor * (sigmoid(pooled) - target) / count as f32;
        if image.tags[class] {
            plane.fill(0.0);
        } else {
            let factor = factor / num_patches as f32;
            loss += f64::from(factor) * plane.iter().map(|&score| f64::from(softplus(score))).sum::<f64>();
            plane.iter_mut().for_each(|score| *score = factor * sigmoid(*score));
        }
        pool.chosen.iter().for_each(|&patch| plane[patch] += pooled_slope);
    }
    loss
}

fn softmax_over_rows(scores: &mut [f32], num_patches: usize) {
    let mut largest = scores[..num_patches].to_vec();
    for plane in scores.chunks_exact(num_patches).skip(1) {
        largest.iter_mut().zip(plane).for_each(|(largest, &score)| *largest = largest.max(score));
    }
    let mut sums = vec![0.0f32; num_patches];
    for plane in scores.chunks_exact_mut(num_patches) {
        for ((score, sum), largest) in plane.iter_mut().zip(&mut sums).zip(&largest) {
            *score = (*score - largest).exp();
            *sum += *score;
        }
    }
    for plane in scores.chunks_exact_mut(num_patches) {
        plane.iter_mut().zip(&sums).for_each(|(score, sum)| *score /= sum);
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The largest values of a plane.
#[derive(Default)]
struct Pool {
    /// Their indices.
    chosen: Vec<usize>,
    sorted: Vec<f32>,
}

impl Pool {
    /// The mean of the `count` largest values; among equal ones the first are taken.
    fn top_mean(&mut self, values: &[f32], count: usize) -> f32 {
        let last = nth_largest(values, count, &mut self.sorted);
        self.chosen.clear();
        self.chosen.extend((0..values.len()).filter(|&i| values[i] > last));
        let missing = count - self.chosen.len();
        self.chosen.extend((0..values.len()).filter(|&i| values[i] == last).take(missing));
        self.chosen.iter().map(|&i| values[i]).sum::<f32>() / count as f32
    }
}

/// The `count`-th largest value; `count` at least 1.
pub(crate) fn nth_largest(values: &[f32], count: usize, sorted: &mut Vec<f32>) -> f32 {
    if count == 1 {
        return values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    }
    sorted.clear();
    sorted.extend_from_slice(values);
    *sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
}
