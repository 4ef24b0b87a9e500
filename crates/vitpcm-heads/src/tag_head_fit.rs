//! Fits the tag head of a network ([`vitpcm_nets::TagHead`]) to tagged images and to photographs of other objects: a
//! logistic regression over the candidate classes of pooling, by Newton's method.

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use vitpcm_nets::tag_head::{CENTRES, DISTANCE_WEIGHT, MEAN_WEIGHT, PATCH_WEIGHT, SCALE_AND_BIAS, log_odds};
use vitpcm_nets::{Parameters, TagEvidence};

use crate::cholesky::Cholesky;
use crate::error::{HeadsError, Result, check_length};

/// Pooled probability from which a class is a candidate. Below, pooling alone decides.
pub const CANDIDATES_FROM: f32 = 0.3;
/// Pooled probability from which the best patch of a present class counts for the class's centre.
const CENTRES_FROM: f32 = 0.5;
/// L2 penalty on the weights of the standardised features. Chosen by cross-validation on photographs that the model
/// card's figures do not count.
const PENALTY: f64 = 0.03;
/// Newton's method converges in under ten steps here.
const MAX_STEPS: usize = 50;

/// A class that pooling finds possible in an image.
#[derive(Debug, Clone)]
pub struct TagCandidate {
    /// Its class index, from 1 on.
    pub class: usize,
    /// Its pooled probability.
    pub pooled: f32,
    /// The backbone's features at its best patch.
    pub best_features: Vec<f32>,
    /// Whether it is in the image.
    pub is_present: bool,
}

/// An image to fit on.
#[derive(Debug, Clone)]
pub struct TagExample {
    /// The backbone's features, averaged over the grid.
    pub mean_features: Vec<f32>,
    /// The candidate classes.
    pub candidates: Vec<TagCandidate>,
}

impl TagExample {
    /// From the first image of a batch; `is_present` gives the truth per class, and `None` leaves a class out.
    pub fn of(evidence: &TagEvidence, is_present: impl Fn(usize) -> Option<bool>) -> Result<Self> {
        let pooled = evidence.pooled.get(0)?.to_vec1::<f32>()?;
        let best_features = evidence.best_features.get(0)?.to_vec2::<f32>()?;
        let candidates = best_features.into_iter().zip(1..).filter_map(|(best_features, class)| {
            let is_candidate = pooled[class] >= CANDIDATES_FROM;
            let is_present = is_present(class).filter(|_| is_candidate)?;
            Some(TagCandidate { class, pooled: pooled[class], best_features, is_present })
        });
        let candidates = candidates.collect();
        Ok(Self { mean_features: evidence.mean_features.get(0)?.to_vec1()?, candidates })
    }
}

/// Fits the parameters of a tag head; `num_classes` includes the background.
pub fn fit_tag_head(examples: &[TagExample], num_classes: usize) -> Result<Parameters> {
    let num_features = examples.first().map_or(0, |example| example.mean_features.len());
    let pairs: Vec<(&TagExample, &TagCandidate)> = examples
        .iter()
        .flat_map(|example| example.candidates.iter().map(move |pair| (example, pair)))
        .collect();
    for (example, candidate) in &pairs {
        check_length("mean features", example.mean_features.len(), num_features)?;
        check_length("features of a patch", candidate.best_features.len(), num_features)?;
    }
    let num_present = pairs.iter().filter(|pair| pair.1.is_present).count();
    if num_present == 0 || num_present == pairs.len() {
        return Err(HeadsError::BadRequest(format!(
            "{num_present} of {} classes found in the images are there; expected some right and some wrong",
            pairs.len()
        )));
    }

    let images = moments(examples.iter().map(|example| &example.mean_features[..]), num_features);
    let patches = moments(pairs.iter().map(|pair| &pair.1.best_features[..]), num_features);
    let centres = centres(&pairs, num_classes, &patches.mean);
    let precision: Vec<f64> = patches
        .deviation
        .iter()
        .map(|deviation| 1.0 / (num_features as f64 * deviation * deviation))
        .collect();
    // Standardised features of image and patch, distance, log-odds, 1.
    let row = |&(example, candidate): &(&TagExample, &TagCandidate)| {
        let centre = &centres[(candidate.class - 1) * num_features..][..num_features];
        let distance: f64 = (0..num_features)
            .map(|f| (f64::from(candidate.best_features[f]) - centre[f]).powi(2) * precision[f])
            .sum();
        let standardised = images.standardised(&example.mean_features);
        let standardised = standardised.chain(patches.standardised(&candidate.best_features));
        standardised.chain([distance, log_odds(candidate.pooled).into(), 1.0]).collect::<Vec<f64>>()
    };
    let rows: Vec<Vec<f64>> = pairs.par_iter().map(row).collect();
    let targets: Vec<f64> = pairs.iter().map(|pair| f64::from(u8::from(pair.1.is_present))).collect();
    let weights = logistic_regression(&rows, &targets, 2 * num_features)?;

    // Back to unstandardised features.
    let (mean_weight, of_mean) = images.for_raw_features(&weights[..num_features]);
    let (patch_weight, of_patch) = patches.for_raw_features(&weights[num_features..2 * num_features]);
    let [distance, scale, bias] = [0, 1, 2].map(|i| weights[2 * num_features + i]);
    let distance_weight: Vec<f64> = precision.iter().map(|precision| distance * precision).collect();
    let tensor = |values: &[f64], shape: &[usize]| {
        let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)
    };
    let mut parameters = Parameters::new();
    parameters.insert(MEAN_WEIGHT, tensor(&mean_weight, &[num_features])?);
    parameters.insert(PATCH_WEIGHT, tensor(&patch_weight, &[num_features])?);
    parameters.insert(CENTRES, tensor(&centres, &[num_classes - 1, num_features])?);
    parameters.insert(DISTANCE_WEIGHT, tensor(&distance_weight, &[num_features])?);
    parameters.insert(SCALE_AND_BIAS, tensor(&[scale, bias - of_mean - of_patch], &[2])?);
    Ok(parameters)
}

struct Moments {
    mean: Vec<f64>,
    /// Standard deviation, never zero.
    deviation: Vec<f64>,
}

impl Moments {
    fn standardised<'a>(&'a self, row: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
        let moments = self.mean.iter().zip(&self.deviation);
        row.iter().zip(moments).map(|(&value, (mean, deviation))| (f64::from(value) - mean) / deviation)
    }

    /// Converts weights of standardised features to weights of raw features and an offset.
    fn for_raw_features(&self, weights: &[f64]) -> (Vec<f64>, f64) {
        let raw: Vec<f64> = weights.iter().zip(&self.deviation).map(|(w, deviation)| w / deviation).collect();
        let added = raw.iter().zip(&self.mean).map(|(weight, mean)| weight * mean).sum();
        (raw, added)
    }
}

fn moments<'a>(rows: impl Iterator<Item = &'a [f32]> + Clone, num_features: usize) -> Moments {
    let mean_of = |value: &dyn Fn(&[f32], usize) -> f64| {
        let (mut sums, mut count) = (vec![0.0; num_features], 0.0f64);
        for row in rows.clone() {
            sums.iter_mut().enumerate().for_each(|(f, sum)| *sum += value(row, f));
            count += 1.0;
        }
        sums.into_iter().map(|sum| sum / count.max(1.0)).collect::<Vec<f64>>()
    };
    let mean = mean_of(&|row, f| row[f].into());
    let variance = mean_of(&|row, f| (f64::from(row[f]) - mean[f]).powi(2));
    Moments { deviation: variance.into_iter().map(|variance| variance.sqrt() + 1e-6).collect(), mean }
}

/// Mean features of the best patch of each class over images with the class, `[K, F]`; over all patches for a class
/// that never occurs.
fn centres(pairs: &[(&TagExample, &TagCandidate)], num_classes: usize, overall: &[f64]) -> Vec<f64> {
    let of_class = |class: usize| {
        let is_one = |candidate: &TagCandidate| {
            candidate.class == class && candidate.is_present && candidate.pooled >= CENTRES_FROM
        };
        let mut own =
            pairs.iter().filter(|pair| is_one(pair.1)).map(|pair| &pair.1.best_features[..]).peekable();
        match own.peek() {
            Some(_) => moments(own.collect::<Vec<_>>().into_iter(), overall.len()).mean,
            None => overall.to_vec(),
        }
    };
    (1..num_classes).flat_map(of_class).collect()
}

/// Minimises the mean cross-entropy plus the penalty on the first `num_penalised` weights.
fn logistic_regression(rows: &[Vec<f64>], targets: &[f64], num_penalised: usize) -> Result<Vec<f64>> {
    let size = num_penalised + 3;
    let share = 1.0 / rows.len() as f64;
    let logits = |weights: &[f64]| -> Vec<f64> {
        rows.par_iter().map(|row| row.iter().zip(weights).map(|(x, w)| x * w).sum()).collect()
    };
    let loss = |weights: &[f64]| {
        // ln(1 + e^s) - t·s, without overflow.
        let cross_entropy = |(s, t): (f64, &f64)| s.max(0.0) + (-s.abs()).exp().ln_1p() - t * s;
        let sum: f64 = logits(weights).into_iter().zip(targets).map(cross_entropy).sum();
        sum * share + PENALTY * weights[..num_penalised].iter().map(|w| w * w).sum::<f64>()
    };
    let mut weights = vec![0.0; size];
    let mut current = loss(&weights);
    for _ in 0..MAX_STEPS {
        let probabilities: Vec<f64> =
            logits(&weights).into_iter().map(|s| 1.0 / (1.0 + (-s).exp())).collect();
        let mut gradient = vec![0.0; size];
        for ((row, p), t) in rows.iter().zip(&probabilities).zip(targets) {
            gradient.iter_mut().zip(row).for_each(|(sum, x)| *sum += share * (p - t) * x);
        }
        let mut hessian: Vec<f64> = (0..size)
            .into_par_iter()
            .flat_map_iter(|i| {
                let mut line = vec![0.0; size];
                for (row, p) in rows.iter().zip(&probabilities) {
                    let factor = share * p * (1.0 - p) * row[i];
                    line.iter_mut().zip(row).for_each(|(sum, x)| *sum += factor * x);
                }
                line
            })
            .collect();
        for i in 0..size {
            // The last three are not penalised; the tiny value keeps the matrix positive definite.
            let penalty = if i < num_penalised { 2.0 * PENALTY } else { 1e-9 };
            gradient[i] += if i < num_penalised { penalty * weights[i] } else { 0.0 };
            hessian[i * size + i] += penalty;
        }
        let singular = || HeadsError::BadRequest("the tag head cannot be fitted: too few images".to_owned());
        let step = Cholesky::of(hessian, size).ok_or_else(singular)?.solve(&gradient);
        let moved = |factor: f64| -> Vec<f64> {
            weights.iter().zip(&step).map(|(weight, step)| weight - factor * step).collect()
        };
        let halves = (0..30).map(|k| 0.5f64.powi(k));
        let Some(next) = halves.map(moved).find(|next| loss(next) <= current) else { break };
        let (before, after) = (current, loss(&next));
        (weights, current) = (next, after);
        if before - after < 1e-12 {
            break;
        }
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Made by `reference/tag_head/make.py`.
    const REFERENCE: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/tag_head/expected.safetensors");

    fn floats(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn examples(reference: &HashMap<String, Tensor>) -> Vec<TagExample> {
        let present = reference["present"].to_vec2::<u8>().unwrap();
        let example = |(image, present): (usize, &Vec<u8>)| {
            let of_image = |name: &str| reference[name].narrow(0, image, 1).unwrap();
            let background = Tensor::ones((1, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
            let evidence = TagEvidence {
                pooled: Tensor::cat(&[&background, &of_image("pooled")], 1).unwrap(),
                mean_features: of_image("mean_features"),
                best_features: of_image("best_features"),
            };
            TagExample::of(&evidence, |class| Some(present[class - 1] == 1)).unwrap()
        };
        present.iter().enumerate().map(example).collect()
    }

    #[test]
    fn the_fitted_head_is_that_of_scipy() {
        let reference = candle_core::safetensors::load(REFERENCE, &Device::Cpu).unwrap();
        let fitted = fit_tag_head(&examples(&reference), 4).unwrap();
        for (name, tensor) in fitted.iter() {
            let (found, expected) = (floats(tensor), floats(&reference[name]));
            assert_eq!(found.len(), expected.len(), "{name}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-4 * (1.0 + expected.abs()),
                    "{name}: {found}, {expected}"
                );
            }
        }
    }

    #[test]
    fn a_head_without_wrong_tags_to_learn_from_is_refused() {
        let reference = candle_core::safetensors::load(REFERENCE, &Device::Cpu).unwrap();
        let mut examples = examples(&reference);
        for example in &mut examples {
            example.candidates.retain(|candidate| candidate.is_present);
        }
        let error = fit_tag_head(&examples, 4).unwrap_err().to_string();
        assert!(error.contains("expected some right and some wrong"), "{error}");
    }
}
