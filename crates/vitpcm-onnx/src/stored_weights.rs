//! How weights are stored: 32-bit floats, 16-bit floats, or 8-bit integers with one scale per output of a layer. The
//! graph turns them into f32 where they are used, so that all files compute alike.

use half::f16;

use crate::error::{OnnxError, Result};
use crate::graph_builder::{Attribute, GraphBuilder, Value};
use crate::onnx_proto::ElementType;

/// Number format of a file's weights. Vectors (biases, norms) are f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightNumbers {
    /// As trained.
    #[default]
    F32,
    /// Half the space.
    F16,
    /// A quarter of the space: layers as 8-bit integers with one scale per output, other matrices as f16.
    I8,
}

impl WeightNumbers {
    /// The name in options and metadata.
    pub fn name(self) -> &'static str {
        match self {
            WeightNumbers::F32 => "f32",
            WeightNumbers::F16 => "f16",
            WeightNumbers::I8 => "i8",
        }
    }
}

/// Matrices with fewer elements stay f16: they are little of the file, and the classifier among them decides masks.
/// Model files have the same limit (`vitpcm_nets::Storage`).
const LEAST_QUANTISED: usize = 1 << 16;

/// The weights of a layer, outputs first: a matrix `[out, in]` or a kernel `[out, in, k, k]`.
#[derive(Clone, Debug)]
pub(crate) struct LayerWeights {
    pub(crate) values: Vec<f32>,
    pub(crate) shape: Vec<usize>,
}

impl LayerWeights {
    /// The same with every output's weights multiplied by a factor.
    pub(crate) fn scaled(mut self, factors: &[f32]) -> Self {
        let per_output = self.values.len() / factors.len().max(1);
        for (weights, factor) in self.values.chunks_exact_mut(per_output.max(1)).zip(factors) {
            weights.iter_mut().for_each(|weight| *weight *= factor);
        }
        self
    }

    /// As integers of -127 to 127 and a scale per output.
    fn quantised(&self) -> (Vec<i8>, Vec<f32>) {
        let per_output = self.values.len() / self.shape[0];
        let rows = || self.values.chunks_exact(per_output);
        let scale = |row: &[f32]| {
            let largest = row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            (largest / 127.0).max(f32::MIN_POSITIVE)
        };
        let scales: Vec<f32> = rows().map(scale).collect();
        let quantise = |(row, scale): (&[f32], &f32)| -> Vec<i8> {
            row.iter().map(|value| (value / scale).round() as i8).collect()
        };
        (rows().zip(&scales).flat_map(quantise).collect(), scales)
    }

    fn is_quantised(&self) -> bool {
        self.shape[0] > 1 && self.values.len() >= LEAST_QUANTISED
    }
}

impl GraphBuilder {
    /// `x · weightᵀ + bias` over the last dimension.
    pub(crate) fn linear(
        &mut self,
        x: &Value,
        name: &str,
        weights: &LayerWeights,
        bias: Option<&[f32]>,
    ) -> Result<Value> {
        let weight = self.transposed_matrix(name, weights)?;
        let product = self.matmul(x, &weight);
        Ok(match bias {
            None => product,
            Some(bias) => {
                let bias = self.floats(bias, &[bias.len()]);
                self.add(&product, &bias)
            }
        })
    }

    /// A matrix `[out, in]`, as `[in, out]`.
    fn transposed_matrix(&mut self, name: &str, weights: &LayerWeights) -> Result<Value> {
        let (outputs, inputs) = (weights.shape[0], weights.shape[1]);
        if self.numbers == WeightNumbers::I8 && weights.is_quantised() {
            let (integers, scales) = weights.quantised();
            let integers = transposed(&integers, outputs, inputs);
            return Ok(self.dequantised(name, &integers, &[inputs, outputs], &scales, 1));
        }
        self.matrix(name, &transposed(&weights.values, outputs, inputs), &[inputs, outputs])
    }

    /// The weights of a layer as they are, outputs first.
    pub(crate) fn layer(&mut self, name: &str, weights: &LayerWeights) -> Result<Value> {
        if self.numbers == WeightNumbers::I8 && weights.is_quantised() {
            let (integers, scales) = weights.quantised();
            return Ok(self.dequantised(name, &integers, &weights.shape, &scales, 0));
        }
        self.matrix(name, &weights.values, &weights.shape)
    }

    /// Numbers of rank two or more that are no layer (tokens, positions), or a small one: f32 or f16.
    pub(crate) fn matrix(&mut self, name: &str, values: &[f32], shape: &[usize]) -> Result<Value> {
        if self.numbers == WeightNumbers::F32 {
            let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            return Ok(self.store(name, ElementType::F32, shape, raw_data));
        }
        if let Some(&value) = values.iter().find(|value| !f16::from_f32(**value).is_finite()) {
            return Err(OnnxError::NotStorable { name: name.to_owned(), value });
        }
        let raw_data = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        let stored = self.store(name, ElementType::F16, shape, raw_data);
        Ok(self.cast_to_f32(&stored))
    }

    /// Stored integers times their scales along an axis.
    fn dequantised(
        &mut self,
        name: &str,
        integers: &[i8],
        shape: &[usize],
        scales: &[f32],
        axis: i64,
    ) -> Value {
        let raw_data = integers.iter().map(|integer| *integer as u8).collect();
        let stored = self.store(name, ElementType::I8, shape, raw_data);
        let raw_scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scales = self.store(&format!("{name}.scales"), ElementType::F32, &[scales.len()], raw_scales);
        self.node("DequantizeLinear", &[&stored, &scales], &[("axis", Attribute::Int(axis))])
    }
}

/// A row-major matrix of `rows` by `columns`, turned.
fn transposed<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    let column = |column: usize| (0..rows).map(move |row| values[row * columns + column]);
    (0..columns).flat_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_times_scales_are_the_weights_to_half_a_step() {
        let values: Vec<f32> = (0..60).map(|i| ((i * 37 % 61) as f32 - 30.0) * 0.01).collect();
        let weights = LayerWeights { values, shape: vec![3, 20] };
        let (integers, scales) = weights.quantised();
        for (index, (value, integer)) in weights.values.iter().zip(&integers).enumerate() {
            let scale = scales[index / 20];
            assert!((value - f32::from(*integer) * scale).abs() <= scale * 0.501, "{index}");
        }
        // Each output has its own scale: its largest weight is ±127 steps.
        assert!(integers.chunks(20).all(|row| row.iter().any(|integer| integer.abs() == 127)));
    }

    #[test]
    fn an_output_without_weights_stays_zero() {
        let weights = LayerWeights { values: vec![0.0, 0.0, 1.0, -0.5], shape: vec![2, 2] };
        let (integers, scales) = weights.quantised();
        assert_eq!(integers, [0, 0, 127, -64]);
        assert!(scales.iter().all(|scale| scale.is_normal()));
    }

    #[test]
    fn a_matrix_is_turned() {
        assert_eq!(transposed(&[1, 2, 3, 4, 5, 6], 2, 3), [1, 4, 2, 5, 3, 6]);
    }
}
