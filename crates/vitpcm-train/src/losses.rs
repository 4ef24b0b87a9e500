//! The losses (docs/reference/method.md, "Losses"), as scalars that carry their gradient: `L_MCE` of the tags, `L_ET` between the
//! maps of two views, the penalty on the classifier. Which passes feed them is left to `pcm_step`.

use candle_core::{D, Tensor};

use crate::config::EtPeak;
use crate::error::Result;

/// Probabilities are kept this far from 0 and 1 before a logarithm (Keras' epsilon).
const CLIP: f64 = 1e-7;
/// Divisors are at least this large, so that a map of zeros stays one.
const TINY: f64 = 1e-30;

/// `L_MCE`: binary cross-entropy of tags, mean over the K + 1 classes and the batch (the paper's equation for
/// `L_MCE`, whose 1/K counts the background).
///
/// # Shapes
/// tag_probabilities (y) and tags (t) `[B, K + 1]`; result a scalar.
pub fn multi_label_loss(tag_probabilities: &Tensor, tags: &Tensor) -> Result<Tensor> {
    let y = tag_probabilities.clamp(CLIP, 1.0 - CLIP)?;
    let absent = tags.affine(-1.0, 1.0)?;
    let log_likelihood = ((tags * y.log()?)? + (absent * y.affine(-1.0, 1.0)?.log()?)?)?;
    Ok(log_likelihood.mean_all()?.neg()?)
}

/// `L_ET` and `L_PM`: cross-entropy of a map against a target map, mean over cells and batch.
///
/// # Shapes
/// target and prediction `[B, cells, K + 1]`; result a scalar.
pub fn map_loss(target: &Tensor, prediction: &Tensor) -> Result<Tensor> {
    let log_prediction = prediction.clamp(CLIP, 1.0)?.log()?;
    Ok((target * log_prediction)?.sum(D::Minus1)?.mean_all()?.neg()?)
}

/// A map conditioned on tags: absent classes are 0, each present class is divided by its peak, each cell is
/// renormalised to sum 1.
///
/// # Shapes
/// map `[B, cells, K + 1]`, tags `[B, K + 1]`, peaks `[B, K + 1]`; result as map.
pub fn conditioned(map: &Tensor, tags: &Tensor, peaks: &Tensor) -> Result<Tensor> {
    let factors = (tags / peaks.maximum(TINY)?)?.unsqueeze(1)?;
    let scaled = map.broadcast_mul(&factors)?;
    Ok(scaled.broadcast_div(&scaled.sum_keepdim(D::Minus1)?.maximum(TINY)?)?)
}

/// The first view's map as a target for the second view: cropped, scaled and flipped as the second view was, then
/// conditioned on the tags.
///
/// # Shapes
/// first_map `[B, G², K + 1]`, second_from_first `[B, (G/2)², G²]`; result `[B, (G/2)², K + 1]`.
pub fn target_from_first(
    first_map: &Tensor,
    second_from_first: &Tensor,
    tags: &Tensor,
    peak: EtPeak,
) -> Result<Tensor> {
    let on_second_grid = second_from_first.matmul(first_map)?;
    let peaks = match peak {
        EtPeak::Crop => on_second_grid.max(1)?,
        EtPeak::WholeGrid => first_map.max(1)?,
    };
    conditioned(&on_second_grid, tags, &peaks)
}

/// The sum of squares of the classifier's weights.
pub fn classifier_penalty(weight: &Tensor) -> Result<Tensor> {
    Ok(weight.sqr()?.sum_all()?)
}
