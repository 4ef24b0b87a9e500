//! Class activation maps (Zhou et al. 2016), the paper's baseline: global average pooling, one linear layer and a
//! sigmoid give the tags; the same layer on every cell gives the maps. There is no background class: a class must
//! exceed a threshold.

use candle_core::{DType, Tensor};

use crate::dropout::{DropoutSite, Mode};
use crate::error::Result;
use crate::parameters::Parameters;
use crate::pcm::PcmOutput;
use crate::variants::ParameterShape;

/// Name of the layer's only parameter, which has the L2 penalty.
pub const IMAGE_CLASSIFIER_WEIGHT: &str = "image_classifier.weight";

/// Lower bound of divisors, so that a zero map stays zero.
const TINY: f64 = 1e-30;

/// The linear layer from pooled features to tags. It has no bias, as in the CAM paper, so that a class's logit is the
/// mean of its map.
#[derive(Debug, Clone)]
pub struct ClassActivation {
    weight: Tensor,
}

impl ClassActivation {
    /// Builds the layer from stored parameters.
    pub fn new(parameters: &Parameters) -> Result<Self> {
        Ok(Self { weight: parameters.get(IMAGE_CLASSIFIER_WEIGHT)?.clone() })
    }

    /// Name and shape of its parameter; `num_classes` includes the background, which has no row.
    pub fn parameter_shapes(num_features: usize, num_classes: usize) -> Vec<ParameterShape> {
        vec![ParameterShape::new(IMAGE_CLASSIFIER_WEIGHT, &[num_classes - 1, num_features])]
    }

    /// Tags with gradients, and maps without. A map is the rectified activation divided by its maximum, times the tag's
    /// probability, which conditioning on tags divides out again. The background's map is the threshold, with tag
    /// probability one.
    ///
    /// # Shapes
    /// features `[B, rows, columns, F]`
    pub fn forward(
        &self,
        features: &Tensor,
        background_threshold: f32,
        mode: &mut Mode<'_>,
    ) -> Result<PcmOutput> {
        let features = mode.dropout(features.clone(), DropoutSite::Classifier)?;
        let (batch, rows, columns, _) = features.dims4()?;
        let pooled = features.flatten(1, 2)?.mean(1)?; // [B, F]
        let logits = vitpcm_ops::linear(&pooled, &self.weight, None)?; // [B, K]
        // The sigmoid through tanh, whose gradient is finite for any logit.
        let probabilities = (logits * 0.5)?.tanh()?.affine(0.5, 0.5)?;

        let activation = vitpcm_ops::linear(&features.detach(), &self.weight.detach(), None)?.relu()?;
        let peaks = activation.max_keepdim(1)?.max_keepdim(2)?.maximum(TINY)?;
        let tags = probabilities.detach().reshape((batch, 1, 1, ()))?;
        let maps = activation.broadcast_mul(&(tags / peaks)?)?;
        let device = features.device();
        let background = Tensor::full(background_threshold, (batch, rows, columns, 1), device)?;
        let certain = Tensor::ones((batch, 1), DType::F32, device)?;
        Ok(PcmOutput {
            scores_on_grid: Tensor::cat(&[&background, &maps], 3)?,
            tag_probabilities: Tensor::cat(&[&certain, &probabilities], 1)?,
        })
    }
}
