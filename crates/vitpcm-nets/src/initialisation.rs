//! Random initial parameters, determined by a seed and each parameter's name: the same on every machine and device, in
//! any order.

use candle_core::{Device, Tensor};

use crate::backbone::BackboneConfig;
use crate::cam::IMAGE_CLASSIFIER_WEIGHT;
use crate::error::Result;
use crate::parameters::Parameters;
use crate::patch_classifier::CLASSIFIER_WEIGHT;
use crate::pcm::PcmConfig;
use crate::random::Stream;
use crate::resnet::is_frozen_norm;
use crate::variants::ParameterShape;

/// Standard deviation of a random ViT's weights, as in timm.
const BACKBONE_STD: f32 = 0.02;

/// Initial scale of a block's branch: with frozen norms, sixteen blocks of scale one would double the variance sixteen
/// times.
const SCRATCH_BRANCH_SCALE: f32 = 0.25;

/// The weight of a linear layer that preserves the variance of its input, `[to, from]`.
pub fn random_linear(name: &str, from: usize, to: usize, seed: u64, device: &Device) -> Result<Tensor> {
    let (stream, std) = (Stream::named(seed, name), (from as f32).sqrt().recip());
    let values: Vec<f32> = (0..(to * from) as u64).map(|i| std * stream.normal(i)).collect();
    Ok(Tensor::from_vec(values, (to, from), device)?)
}

/// How random parameters are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Initialisation {
    /// The seed.
    pub seed: u64,
    /// Standard deviation of the patch classifier's weights.
    pub classifier_std: f32,
}

impl Initialisation {
    /// As in the released code: classifier weights N(0, 0.05).
    pub fn official(seed: u64) -> Self {
        Self { seed, classifier_std: 0.05 }
    }

    /// As in the paper's text: classifier weights from the standard normal distribution.
    pub fn paper(seed: u64) -> Self {
        Self { seed, classifier_std: 1.0 }
    }

    /// A whole network: backbone, patch conditioning and patch classifier.
    pub fn network(&self, config: &PcmConfig, device: &Device) -> Result<Parameters> {
        let mut parameters = self.backbone(&config.backbone, device)?;
        parameters.extend(self.head(config, device)?);
        Ok(parameters)
    }

    /// An untrained backbone.
    pub fn backbone(&self, config: &BackboneConfig, device: &Device) -> Result<Parameters> {
        config.check()?;
        match config {
            BackboneConfig::Vit(vit) => self.draw(vit.parameter_shapes(), device, Self::values),
            BackboneConfig::ResNet(_) | BackboneConfig::Xception(_) => {
                let values = |this: &Self, name: &str, shape: &[usize]| convolutional(this.seed, name, shape);
                self.draw(config.parameter_shapes(), device, values)
            }
        }
    }

    /// The layers after the backbone: patch conditioning and patch classifier.
    pub fn head(&self, config: &PcmConfig, device: &Device) -> Result<Parameters> {
        config.check()?;
        self.draw(config.head_parameter_shapes(), device, Self::values)
    }

    fn draw(
        &self,
        shapes: Vec<ParameterShape>,
        device: &Device,
        values: impl Fn(&Self, &str, &[usize]) -> Vec<f32>,
    ) -> Result<Parameters> {
        let draw_one = |ParameterShape { name, shape }: ParameterShape| {
            let values = values(self, &name, &shape);
            let tensor = Tensor::from_vec(values, shape, device)?;
            Ok((name, tensor))
        };
        shapes.into_iter().map(draw_one).collect()
    }

    fn values(&self, name: &str, shape: &[usize]) -> Vec<f32> {
        let stream = Stream::named(self.seed, name);
        let num_elements: usize = shape.iter().product();
        let normal = |std: f32| (0..num_elements as u64).map(|i| std * stream.normal(i)).collect();
        match name {
            _ if name.starts_with("hv_bilstm.") => lstm_values(name, shape, &stream),
            CLASSIFIER_WEIGHT | IMAGE_CLASSIFIER_WEIGHT => normal(self.classifier_std),
            _ if name.contains("norm") && name.ends_with("weight") => vec![1.0; num_elements],
            _ if name.ends_with("gamma") => vec![1.0; num_elements],
            _ if name.ends_with("bias") => vec![0.0; num_elements],
            _ => normal(BACKBONE_STD),
        }
    }
}

/// A parameter of an untrained convolutional network: He initialisation, and batch norms that pass everything.
pub(crate) fn convolutional(seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
    let (stream, count) = (Stream::named(seed, name), shape.iter().product::<usize>());
    let normal = |std: f32| (0..count as u64).map(|i| std * stream.normal(i)).collect();
    match (name.rsplit('.').next(), shape) {
        // Without a preceding activation, half of He's variance preserves the variance.
        (_, &[_, 1, 1, inputs]) if name.contains("_residual.") => normal((1.0 / inputs as f32).sqrt()),
        (_, &[3, 3, _]) => normal(1.0 / 3.0),
        (_, &[_, height, width, inputs]) if !is_frozen_norm(name) => {
            normal((2.0 / (height * width * inputs) as f32).sqrt())
        }
        (Some("weight"), _)
            if ["bn3.weight", "sepconv2_bn.weight", "sepconv3_bn.weight"]
                .iter()
                .any(|end| name.ends_with(end)) =>
        {
            vec![SCRATCH_BRANCH_SCALE; count]
        }
        (Some("weight" | "running_var"), _) => vec![1.0; count],
        _ => vec![0.0; count],
    }
}

/// As Keras, like the released code: Glorot-uniform input weights, orthogonal recurrent weights, a forget bias of one.
fn lstm_values(name: &str, shape: &[usize], stream: &Stream) -> Vec<f32> {
    let num_gates = shape[0];
    if name.contains("weight_ih") {
        let limit = (6.0 / (shape[1] + num_gates) as f32).sqrt();
        let num_elements = (num_gates * shape[1]) as u64;
        (0..num_elements).map(|i| limit * (2.0 * stream.uniform(i) - 1.0)).collect()
    } else if name.contains("weight_hh") {
        orthonormal_columns(num_gates, shape[1], stream)
    } else if name.contains("bias_ih") {
        forget_bias(num_gates)
    } else {
        vec![0.0; num_gates]
    }
}

/// One for the forget gate, the second of four.
fn forget_bias(num_gates: usize) -> Vec<f32> {
    let units = num_gates / 4;
    (0..num_gates).map(|gate| if (units..2 * units).contains(&gate) { 1.0 } else { 0.0 }).collect()
}

/// A matrix `[rows, columns]`, row-major, rows ≥ columns, with orthonormal columns: Gram–Schmidt on normal numbers.
fn orthonormal_columns(rows: usize, columns: usize, stream: &Stream) -> Vec<f32> {
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(columns);
    for column in 0..columns {
        let start = (column * rows) as u64;
        let mut vector: Vec<f64> = (0..rows as u64).map(|i| f64::from(stream.normal(start + i))).collect();
        for earlier in &basis {
            let shadow: f64 = vector.iter().zip(earlier).map(|(a, b)| a * b).sum();
            vector.iter_mut().zip(earlier).for_each(|(a, b)| *a -= shadow * b);
        }
        let length = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|a| *a /= length);
        basis.push(vector);
    }
    (0..rows * columns).map(|i| basis[i % columns][i / columns] as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recurrent_weights_are_orthonormal() {
        let (rows, columns) = (48, 12);
        let matrix = orthonormal_columns(rows, columns, &Stream::named(5, "weight_hh"));
        for a in 0..columns {
            for b in 0..columns {
                let product: f32 =
                    (0..rows).map(|row| matrix[row * columns + a] * matrix[row * columns + b]).sum();
                let expected = if a == b { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-6, "columns {a} and {b}: {product}");
            }
        }
    }

    #[test]
    fn the_forget_gate_begins_open() {
        assert_eq!(forget_bias(8), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
