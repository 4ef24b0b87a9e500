//! Linear layers over rows: the product with a weight of `[out, in]`, its tail, and its three gradients.

use rayon::prelude::*;

use super::bf16::Factors;
use super::matmul::{Finish, Matrix, matmul};
use super::packed_panels::{PackedPanels, packed_len};
use super::scratch::Scratch;
use super::simd::{Onto, SimdPath};

/// The sizes of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearShape {
    pub(crate) rows: usize,
    pub(crate) in_features: usize,
    pub(crate) out_features: usize,
}

/// `output = finish(x · weightᵀ)`.
pub(crate) fn forward(
    path: SimdPath,
    factors: Factors,
    shape: LinearShape,
    x: &[f32],
    weight: &[f32],
    finish: Finish,
    output: &mut [f32],
) {
    let LinearShape { rows, in_features, out_features } = shape;
    let weight = Matrix::row_major(weight, out_features, in_features).transposed();
    let mut buffer = Scratch::take(packed_len(path, factors.places(in_features), out_features));
    let weight = PackedPanels::pack_as(factors, path, weight, &mut buffer);
    matmul(path, Matrix::row_major(x, rows, in_features), &weight, output, Onto::Nothing, finish);
}

/// `grad_x = grad_output · weight`.
pub(crate) fn backward_x(
    path: SimdPath,
    factors: Factors,
    shape: LinearShape,
    weight: &[f32],
    grad_output: &[f32],
    grad_x: &mut [f32],
) {
    let LinearShape { rows, in_features, out_features } = shape;
    let weight = Matrix::row_major(weight, out_features, in_features);
    let mut buffer = Scratch::take(packed_len(path, factors.places(out_features), in_features));
    let weight = PackedPanels::pack_as(factors, path, weight, &mut buffer);
    let grad_output = Matrix::row_major(grad_output, rows, out_features);
    matmul(path, grad_output, &weight, grad_x, Onto::Nothing, Finish::Keep);
}

/// `grad_weight = grad_outputᵀ · x`.
pub(crate) fn backward_weight(
    path: SimdPath,
    factors: Factors,
    shape: LinearShape,
    x: &[f32],
    grad_output: &[f32],
    grad_weight: &mut [f32],
) {
    let LinearShape { rows, in_features, out_features } = shape;
    let mut buffer = Scratch::take(packed_len(path, factors.places(rows), in_features));
    let x = Matrix::row_major(x, rows, in_features);
    let x = PackedPanels::pack_as(factors, path, x, &mut buffer);
    let grad_output = Matrix::row_major(grad_output, rows, out_features).transposed();
    matmul(path, grad_output, &x, grad_weight, Onto::Nothing, Finish::Keep);
}

/// The sum of `grad_output` over its rows.
pub(crate) fn backward_bias(grad_output: &[f32], grad_bias: &mut [f32]) {
    /// Columns a thread sums at a time.
    const CHUNK: usize = 64;
    let columns = grad_bias.len();
    grad_bias.par_chunks_mut(CHUNK).enumerate().for_each(|(index, sums)| {
        sums.fill(0.0);
        for row in grad_output.chunks_exact(columns) {
            for (sum, value) in sums.iter_mut().zip(&row[index * CHUNK..]) {
                *sum += value;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::naive::{self, assert_close, assert_gradient, noise, sizes, widen};
    use super::*;

    #[test]
    fn linear_and_its_gradients_equal_the_naive_ones_for_any_size() {
        for path in SimdPath::available() {
            for (rows, in_features, out_features) in
                sizes([(1, 1, 1), (5, 7, 3), (13, 70, 45), (26, 192, 21)])
            {
                let shape = LinearShape { rows, in_features, out_features };
                let (x, weight) = (noise(rows * in_features, 1), noise(out_features * in_features, 2));
                let (bias, cotangent) = (noise(out_features, 3), noise(rows * out_features, 4));
                let inputs = [widen(&x), widen(&weight), widen(&bias)];
                let naive = |v: &[Vec<f64>]| naive::linear(in_features, &v[0], &v[1], &v[2]);
                let mut y = vec![f32::NAN; rows * out_features];
                forward(path, Factors::F32, shape, &x, &weight, Finish::Bias(&bias), &mut y);
                assert_close(&y, &naive(&inputs), 1e-5, "linear");
                forward(path, Factors::F32, shape, &x, &weight, Finish::Gelu(Some(&bias)), &mut y);
                assert_close(&y, &naive::gelu(&naive(&inputs)), 1e-5, "linear and gelu");
                let mut grad = vec![f32::NAN; x.len()];
                backward_x(path, Factors::F32, shape, &weight, &cotangent, &mut grad);
                assert_gradient(&grad, &inputs, 0, &cotangent, &naive, "gradient of x");
                let mut grad = vec![f32::NAN; weight.len()];
                backward_weight(path, Factors::F32, shape, &x, &cotangent, &mut grad);
                assert_gradient(&grad, &inputs, 1, &cotangent, &naive, "gradient of the weight");
                let mut grad = vec![f32::NAN; out_features];
                backward_bias(&cotangent, &mut grad);
                assert_gradient(&grad, &inputs, 2, &cotangent, &naive, "gradient of the bias");
            }
        }
    }
}
