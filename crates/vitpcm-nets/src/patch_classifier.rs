//! The patch classifier: a linear layer without bias and a softmax over the classes, for every patch.

use candle_core::Tensor;

use crate::dropout::{DropoutSite, Mode};
use crate::error::Result;
use crate::parameters::Parameters;
use crate::variants::ParameterShape;

/// Name of the classifier's only parameter, the only one with the L2 penalty.
pub const CLASSIFIER_WEIGHT: &str = "patch_classifier.weight";

/// The layer from patch features to class probabilities.
#[derive(Debug, Clone)]
pub struct PatchClassifier {
    weight: Tensor,
}

impl PatchClassifier {
    /// Builds the layer from stored parameters.
    pub fn new(parameters: &Parameters) -> Result<Self> {
        Ok(Self { weight: parameters.get(CLASSIFIER_WEIGHT)?.clone() })
    }

    /// Name and shape of its parameter.
    pub fn parameter_shapes(num_features: usize, num_classes: usize) -> Vec<ParameterShape> {
        vec![ParameterShape::new(CLASSIFIER_WEIGHT, &[num_classes, num_features])]
    }

    /// Dropout, linear layer, softmax.
    ///
    /// # Shapes
    /// features `[B, rows, columns, F]`; result `[B, rows, columns, K + 1]`, each cell summing to one
    pub fn forward(&self, features: &Tensor, mode: &mut Mode<'_>) -> Result<Tensor> {
        let features = mode.dropout(features.clone(), DropoutSite::Classifier)?;
        Ok(vitpcm_ops::softmax(&vitpcm_ops::linear(&features, &self.weight, None)?)?)
    }
}
