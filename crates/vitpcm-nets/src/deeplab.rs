//! DeepLabV2: an atrous ResNet and four atrous classifiers whose outputs are summed (ASPP). Normalised pixels in,
//! logits for every class at every eighth pixel out.

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use vitpcm_ops::{ParameterGradients, linear, neighbour_sums};

use crate::error::{NetsError, Result};
use crate::initialisation::convolutional;
use crate::parameters::Parameters;
use crate::random::Stream;
use crate::resnet::{OutputStride, ResNet, ResNetConfig};
use crate::variants::ParameterShape;
use crate::vit::Precision;

/// Output stride in pixels.
pub const OUTPUT_STRIDE: usize = 8;

/// Dilations of the classifiers in DeepLabV2's ASPP-L ("large").
pub const ASPP_RATES: [usize; 4] = [6, 12, 18, 24];

/// Standard deviation of the classifiers' initial weights (released DeepLabV2).
const ASPP_STD: f32 = 0.01;

/// Scales of everything that enters the last stage: its first block's branch and shortcut. An untrained network has no
/// biases after them, so all features are proportional to them.
const INTO_LAST_STAGE: [&str; 2] = ["layer4.0.bn3.weight", "layer4.0.downsample.1.weight"];

/// Configuration of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeepLabConfig {
    /// The ResNet.
    pub backbone: ResNetConfig,
    /// Dilations of the classifiers.
    pub rates: [usize; 4],
    /// Number of classes, including background.
    pub num_classes: usize,
}

impl DeepLabConfig {
    /// DeepLabV2 on a backbone. `num_classes` includes the background.
    pub fn new(backbone: ResNetConfig, num_classes: usize) -> Self {
        Self { backbone, rates: ASPP_RATES, num_classes }
    }

    /// Checks that the numbers describe a possible network.
    pub fn check(&self) -> Result<()> {
        self.backbone.check()?;
        let bad = |reason: String| Err(NetsError::BadConfig { reason });
        if !(2..=255).contains(&self.num_classes) {
            return bad(format!("{} classes; expected the background and 1 to 254 more", self.num_classes));
        }
        if self.rates.iter().any(|rate| !(1..=1 << 12).contains(rate)) {
            return bad(format!("dilations {:?}; expected 1 to 4096", self.rates));
        }
        Ok(())
    }

    /// Names and shapes of all parameters.
    pub fn parameter_shapes(&self) -> Vec<ParameterShape> {
        let mut shapes = self.backbone.parameter_shapes();
        shapes.extend(self.head_parameter_shapes());
        shapes
    }

    /// Names and shapes of the classifiers.
    pub fn head_parameter_shapes(&self) -> Vec<ParameterShape> {
        let (classes, features) = (self.num_classes, self.backbone.num_features());
        let of_one = |index: usize| {
            [
                ParameterShape::new(&format!("aspp.c{index}.weight"), &[classes, 3, 3, features]),
                ParameterShape::new(&format!("aspp.c{index}.bias"), &[classes]),
            ]
        };
        (0..self.rates.len()).flat_map(of_one).collect()
    }

    /// Number of parameters.
    pub fn num_parameters(&self) -> usize {
        self.parameter_shapes().iter().map(ParameterShape::num_elements).sum()
    }

    /// Random initial classifiers, determined by the seed and their names.
    pub fn initial_head(&self, seed: u64, device: &Device) -> Result<Parameters> {
        self.check()?;
        draw(self.head_parameter_shapes(), seed, device)
    }

    /// An untrained backbone: He initialisation, and batch norms that pass everything except those into the last stage,
    /// which shrink features to a norm of about one. The classifiers sum up to 36 products with the features: at He's
    /// norm of √2048, the first step at a usual learning rate would move the logits by hundreds.
    pub fn initial_backbone(&self, seed: u64, device: &Device) -> Result<Parameters> {
        self.check()?;
        let mut parameters = draw(self.backbone.parameter_shapes(), seed, device)?;
        let scale = (self.backbone.num_features() as f64).sqrt().recip();
        for norm in INTO_LAST_STAGE {
            let weight = (parameters.get(norm)? * scale)?;
            parameters.insert(norm, weight);
        }
        Ok(parameters)
    }
}

/// Classifiers as in the released DeepLabV2, the rest as in all convolutional networks.
fn draw(shapes: Vec<ParameterShape>, seed: u64, device: &Device) -> Result<Parameters> {
    let draw_one = |ParameterShape { name, shape }: ParameterShape| {
        let values = match name.starts_with("aspp.") && name.ends_with("weight") {
            true => {
                let stream = Stream::named(seed, &name);
                (0..shape.iter().product::<usize>() as u64).map(|i| ASPP_STD * stream.normal(i)).collect()
            }
            false => convolutional(seed, &name, &shape),
        };
        Ok((name, Tensor::from_vec(values, shape, device)?))
    };
    shapes.into_iter().map(draw_one).collect()
}

/// Softmax over the classes (the last dimension).
pub fn class_probabilities(logits: &Tensor) -> Result<Tensor> {
    Ok(vitpcm_ops::softmax(logits)?)
}

/// The network built from stored parameters.
#[derive(Debug, Clone)]
pub struct DeepLab {
    config: DeepLabConfig,
    resnet: ResNet,
    /// Weights as linear layers from features to nine taps per class, `[classes · 9, features]`, and biases.
    classifiers: Vec<(Tensor, Tensor)>,
}

impl DeepLab {
    /// Builds the network; `parameters` must hold all of [`DeepLabConfig::parameter_shapes`].
    pub fn new(config: &DeepLabConfig, parameters: &Parameters) -> Result<Self> {
        config.check()?;
        parameters.check(&config.head_parameter_shapes())?;
        let shape = (config.num_classes * 9, config.backbone.num_features());
        let classifier = |index: usize| {
            let weight = parameters.get(&format!("aspp.c{index}.weight"))?.reshape(shape)?;
            Ok((weight, parameters.get(&format!("aspp.c{index}.bias"))?.clone()))
        };
        Ok(Self {
            config: config.clone(),
            resnet: ResNet::new(&config.backbone, OutputStride::Eight, parameters)?,
            classifiers: (0..config.rates.len()).map(classifier).collect::<Result<_>>()?,
        })
    }

    /// The same network with another compute precision in its ResNet.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { resnet: self.resnet.with_precision(precision), ..self }
    }

    /// Its configuration.
    pub fn config(&self) -> &DeepLabConfig {
        &self.config
    }

    /// The same network for repeated passes with fixed weights: the ResNet's weights are rounded once.
    pub fn for_passes(&self) -> Result<Self> {
        Ok(Self { resnet: self.resnet.for_passes()?, ..self.clone() })
    }

    /// Pixels to logits, f32. With `gradients`, the gradients of the ResNet's weights may go there.
    ///
    /// # Shapes
    /// pixels `[B, H, W, 3]`, RGB, f32, normalised as the weights expect; result `[B, ⌈H/8⌉, ⌈W/8⌉, classes]`. If H and
    /// W are multiples of 8 plus one, the corners of both grids coincide.
    pub fn forward(&self, pixels: &Tensor, gradients: Option<&ParameterGradients>) -> Result<Tensor> {
        self.classify(&self.features(pixels, gradients)?)
    }

    /// The first half of [`DeepLab::forward`]: pixels to the ResNet's features on the logits' grid.
    pub fn features(&self, pixels: &Tensor, gradients: Option<&ParameterGradients>) -> Result<Tensor> {
        self.resnet.forward(pixels, gradients)
    }

    /// The second half: features to logits.
    pub fn classify(&self, features: &Tensor) -> Result<Tensor> {
        let products = linear(features, &self.classifiers()?, None)?;
        let mut logits = neighbour_sums(&products, self.config.num_classes, &self.config.rates)?;
        for (_, bias) in &self.classifiers {
            logits = logits.broadcast_add(&bias.to_dtype(DType::F32)?)?;
        }
        Ok(logits)
    }

    /// All classifiers as one linear layer, `[columns, features]`.
    fn classifiers(&self) -> Result<Tensor> {
        let mut rows: Vec<Tensor> = self.classifiers.iter().map(|(weight, _)| weight.clone()).collect();
        let [columns, features] =
            [rows.len() * self.config.num_classes * 9, self.config.backbone.num_features()];
        // GPU products are several times faster with rows of whole vectors.
        let missing = columns.next_multiple_of(8) - columns;
        if let (Some(first), true) = (rows.first(), missing > 0) {
            rows.push(Tensor::zeros((missing, features), first.dtype(), first.device())?);
        }
        Ok(Tensor::cat(&rows, 0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resnet::RESNETS;

    #[test]
    fn features_of_a_new_network_are_short_at_any_depth_and_width() {
        let side = 33;
        let noise = Stream::named(1, "pixels");
        let pixels: Vec<f32> = (0..3 * side * side).map(|i| noise.normal(i)).collect();
        let pixels = Tensor::from_vec(pixels, (1, side as usize, side as usize, 3), &Device::Cpu).unwrap();
        for variant in RESNETS {
            let config = DeepLabConfig::new(variant.config(), 3);
            let parameters = config.initial_backbone(0, &Device::Cpu).unwrap();
            let resnet = ResNet::new(&config.backbone, OutputStride::Eight, &parameters).unwrap();
            let squared_lengths = resnet.forward(&pixels, None).unwrap().sqr().unwrap().sum(3).unwrap();
            let length = squared_lengths.mean_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
            // For noise, which max pooling amplifies more than images: measured 2.2, 2.5 and 4.0.
            assert!((1.0..5.0).contains(&length), "{}: {length}", variant.name);
        }
    }
}
