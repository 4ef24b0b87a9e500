//! The tag head: checks every predicted tag by the image's mean features and by the distance of the class's best patch
//! to those of training. It lowers the pooled probability where these contradict the tag, so that objects of unknown
//! classes get none. It is fitted after training, also on photographs of other objects: `vitpcm_heads::fit_tag_head`.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::parameters::Parameters;
use crate::variants::ParameterShape;

/// Weight of the image's mean features in the log-odds, `[F]`.
pub const MEAN_WEIGHT: &str = "tag_head.mean_weight";
/// Weight of the features of a class's best patch, `[F]`.
pub const PATCH_WEIGHT: &str = "tag_head.patch_weight";
/// Mean features of each class's best patch over images with the class, `[K, F]`.
pub const CENTRES: &str = "tag_head.centres";
/// Weight of each feature's squared distance to the class's centre, `[F]`; negative where distance is evidence against
/// a tag.
pub const DISTANCE_WEIGHT: &str = "tag_head.distance_weight";
/// Factor on the pooled log-odds, and the bias, `[2]`.
pub const SCALE_AND_BIAS: &str = "tag_head.scale_and_bias";

/// Pooled probabilities are clamped this far from 0 and 1, where log-odds are infinite.
const LEAST_PROBABILITY: f32 = 1e-6;

/// Log-odds of a pooled probability.
pub fn log_odds(probability: f32) -> f32 {
    let probability = probability.clamp(LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY);
    (probability / (1.0 - probability)).ln()
}

/// The evidence for the tags of a batch of images, f32.
#[derive(Debug, Clone)]
pub struct TagEvidence {
    /// Probabilities from pooling alone, background first, `[B, K + 1]`.
    pub pooled: Tensor,
    /// The backbone's features, averaged over the grid, `[B, F]`.
    pub mean_features: Tensor,
    /// The backbone's features at the best patch of each class, `[B, K, F]`.
    pub best_features: Tensor,
}

impl TagEvidence {
    /// # Shapes
    /// pooled `[B, K + 1]`, scores_on_grid `[B, rows, columns, K + 1]`, grid_features `[B, rows, columns, F]`
    pub(crate) fn new(pooled: &Tensor, scores_on_grid: &Tensor, grid_features: &Tensor) -> Result<Self> {
        let cells = grid_features.detach().to_dtype(DType::F32)?.flatten(1, 2)?; // [B, N, F]
        let best = scores_on_grid.detach().flatten(1, 2)?.transpose(1, 2)?.contiguous()?.argmax(2)?; // [B, K + 1]
        let num_tags = pooled.dim(1)? - 1;
        let of_image = |image: usize| {
            let best = best.get(image)?.narrow(0, 1, num_tags)?.contiguous()?;
            cells.get(image)?.contiguous()?.index_select(&best, 0)
        };
        let best_features = (0..pooled.dim(0)?).map(of_image).collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Self {
            pooled: pooled.detach(),
            mean_features: cells.mean(1)?,
            best_features: Tensor::stack(&best_features, 0)?,
        })
    }
}

/// The head built from stored parameters.
#[derive(Debug, Clone)]
pub struct TagHead {
    mean_weight: Tensor,
    patch_weight: Tensor,
    centres: Tensor,
    distance_weight: Tensor,
    scale: f64,
    bias: f64,
}

impl TagHead {
    /// Builds the head; `parameters` must hold all of [`TagHead::parameter_shapes`].
    pub fn new(parameters: &Parameters) -> Result<Self> {
        let scale_and_bias = parameters.get(SCALE_AND_BIAS)?.to_vec1::<f32>()?;
        Ok(Self {
            mean_weight: parameters.get(MEAN_WEIGHT)?.clone(),
            patch_weight: parameters.get(PATCH_WEIGHT)?.clone(),
            centres: parameters.get(CENTRES)?.clone(),
            distance_weight: parameters.get(DISTANCE_WEIGHT)?.clone(),
            scale: scale_and_bias[0].into(),
            bias: scale_and_bias[1].into(),
        })
    }

    /// Names and shapes of its parameters. `num_classes` includes the background, which has no centre.
    pub fn parameter_shapes(num_features: usize, num_classes: usize) -> Vec<ParameterShape> {
        vec![
            ParameterShape::new(MEAN_WEIGHT, &[num_features]),
            ParameterShape::new(PATCH_WEIGHT, &[num_features]),
            ParameterShape::new(CENTRES, &[num_classes - 1, num_features]),
            ParameterShape::new(DISTANCE_WEIGHT, &[num_features]),
            ParameterShape::new(SCALE_AND_BIAS, &[2]),
        ]
    }

    /// The probability of every tag: the minimum of the pooled one and the head's. The background keeps its own.
    ///
    /// # Shapes
    /// result `[B, K + 1]`
    pub fn forward(&self, evidence: &TagEvidence) -> Result<Tensor> {
        let num_tags = evidence.pooled.dim(1)? - 1;
        let pooled = evidence.pooled.narrow(1, 1, num_tags)?.contiguous()?; // [B, K]
        let clamped = pooled.clamp(LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY)?;
        let odds = (&clamped / (1.0 - &clamped)?)?.log()?;
        let of_image = evidence.mean_features.broadcast_mul(&self.mean_weight)?.sum_keepdim(1)?; // [B, 1]
        let distances = evidence.best_features.broadcast_sub(&self.centres)?.sqr()?; // [B, K, F]
        let weighted = evidence.best_features.broadcast_mul(&self.patch_weight)?;
        let of_patch = (distances.broadcast_mul(&self.distance_weight)? + weighted)?.sum(2)?; // [B, K]
        let logits = odds.affine(self.scale, self.bias)?.broadcast_add(&of_image)?.add(&of_patch)?;
        // The sigmoid through tanh.
        let probabilities = (logits * 0.5)?.tanh()?.affine(0.5, 0.5)?.minimum(&pooled)?;
        Ok(Tensor::cat(&[&evidence.pooled.narrow(1, 0, 1)?, &probabilities], 1)?)
    }
}
