//! The losses (docs/reference/method.md, "Losses"): their names, and those of training from tags as scalars that carry their
//! gradient. Which passes feed them is left to `pcm_step` and `verify_step`.
//!
//! What is named in [`OF_TAGS`] or [`OF_MASKS`] is summed over ranks, checked to be finite, written to `metrics.csv` and
//! TensorBoard, printed and drawn, without another line about it elsewhere.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use candle_core::{D, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::EtPeak;
use crate::error::Result;

/// A loss by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossName {
    /// Its column of `metrics.csv`, and behind `train/` its tag in TensorBoard.
    pub column: &'static str,
    /// Its symbol in the method.
    pub symbol: &'static str,
    /// What it is about, in a word.
    pub about: &'static str,
}

/// `L_MCE` of the tags.
pub const MCE: LossName = LossName { column: "loss_mce", symbol: "L_MCE", about: "tags" };
/// `L_ET` between the maps of two views; 0 where it is left out.
pub const ET: LossName = LossName { column: "loss_et", symbol: "L_ET", about: "equivariance" };
/// `L_PM` of an earlier round's masks; 0 where there are none.
pub const MASKS: LossName = LossName { column: "loss_masks", symbol: "L_PM", about: "masks" };
/// The penalty on the classifier, with its factor.
pub const L2: LossName = LossName { column: "loss_l2", symbol: "L2", about: "penalty" };

/// The losses of training from tags, in the order of their columns.
pub const OF_TAGS: [LossName; 4] = [MCE, ET, MASKS, L2];

/// The losses of training on masks: at each of the crops' scales, then of the largest logits.
pub const OF_MASKS: [LossName; 4] = [
    LossName { column: "loss_full", symbol: "L_1", about: "full scale" },
    LossName { column: "loss_three_quarters", symbol: "L_0.75", about: "three quarters" },
    LossName { column: "loss_half", symbol: "L_0.5", about: "half" },
    LossName { column: "loss_largest", symbol: "L_max", about: "largest logits" },
];

/// The column of the weighted sum.
pub const TOTAL: &str = "loss";

/// The losses of a step, each without its weight, and their weighted sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, f32>", into = "BTreeMap<String, f32>")]
pub struct Losses {
    /// What is minimised.
    pub total: f32,
    /// The parts, in the order of their columns.
    pub parts: Vec<(LossName, f32)>,
}

impl Losses {
    /// Of no image: all are 0.
    pub fn zero(names: &[LossName]) -> Self {
        Self { total: 0.0, parts: names.iter().map(|&name| (name, 0.0)).collect() }
    }

    /// The loss of a name; 0 where it is not among them.
    pub fn get(&self, name: LossName) -> f32 {
        self.parts.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, loss)| *loss)
    }

    /// All columns with their values, the sum first.
    pub fn columns(&self) -> impl Iterator<Item = (&'static str, f32)> {
        std::iter::once((TOTAL, self.total)).chain(self.parts.iter().map(|(name, loss)| (name.column, *loss)))
    }

    /// All values, the sum first.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        std::iter::once(&mut self.total).chain(self.parts.iter_mut().map(|(_, loss)| loss))
    }

    /// Whether all of them are numbers.
    pub fn are_finite(&self) -> bool {
        self.columns().all(|(_, loss)| loss.is_finite())
    }

    /// Adds a share of other losses of the same names.
    pub(crate) fn add(&mut self, share: f32, other: &Losses) {
        self.values_mut().zip(other.columns()).for_each(|(sum, (_, loss))| *sum += share * loss);
    }
}

/// The parts by their symbols.
impl Display for Losses {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parts = self.parts.iter().map(|(name, loss)| format!("{} {loss}", name.symbol));
        f.write_str(&parts.collect::<Vec<_>>().join(", "))
    }
}

/// As saved states hold them. States of earlier versions may know fewer.
impl From<BTreeMap<String, f32>> for Losses {
    fn from(columns: BTreeMap<String, f32>) -> Self {
        let names = OF_TAGS.into_iter().chain(OF_MASKS);
        let parts = names.filter_map(|name| Some((name, *columns.get(name.column)?)));
        Self { total: columns.get(TOTAL).copied().unwrap_or_default(), parts: parts.collect() }
    }
}

impl From<Losses> for BTreeMap<String, f32> {
    fn from(losses: Losses) -> Self {
        losses.columns().map(|(column, loss)| (column.to_owned(), loss)).collect()
    }
}

/// The weighted sum of a batch's losses, with its graph.
#[derive(Default)]
pub(crate) struct LossSum {
    parts: Vec<(LossName, Tensor)>,
    total: Option<Tensor>,
}

impl LossSum {
    /// Adds a loss with its weight.
    pub(crate) fn add(&mut self, name: LossName, loss: Tensor, weight: f64) -> Result<()> {
        let weighted = (&loss * weight)?;
        self.total = Some(match self.total.take() {
            Some(total) => (total + weighted)?,
            None => weighted,
        });
        self.parts.push((name, loss));
        Ok(())
    }

    /// What is minimised.
    pub(crate) fn total(&self) -> &Tensor {
        self.total.as_ref().expect("a step has a loss")
    }

    /// The values in the order of `names`, 0 for those that were not added.
    pub(crate) fn values(&self, names: &[LossName]) -> Result<Losses> {
        let mut losses = Losses::zero(names);
        losses.total = self.total().to_scalar()?;
        for (name, loss) in &mut losses.parts {
            if let Some((_, tensor)) = self.parts.iter().find(|(added, _)| added == name) {
                *loss = tensor.to_scalar()?;
            }
        }
        Ok(losses)
    }
}

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
