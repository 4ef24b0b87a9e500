//! Softmax over rows.

use rayon::prelude::*;

use super::elementary::exp;
use super::simd::{Kernel, Simd, SimdPath};

/// Floats a thread takes at a time, in whole rows.
const CHUNK: usize = 1 << 13;

/// Softmax of every row of `columns` floats.
pub(crate) fn forward(path: SimdPath, columns: usize, x: &[f32], output: &mut [f32]) {
    assert_eq!(x.len(), output.len());
    if x.is_empty() {
        return;
    }
    assert_eq!(x.len() % columns, 0);
    let chunk = columns * (CHUNK / columns).max(1);
    let chunks = x.par_chunks(chunk).zip(output.par_chunks_mut(chunk));
    chunks.for_each(|(x, output)| path.run(Forward { columns, x, output }));
}

/// The gradient, from the output: `y · (grad - Σ grad · y)`.
pub(crate) fn backward(
    path: SimdPath,
    columns: usize,
    output: &[f32],
    grad_output: &[f32],
    grad_x: &mut [f32],
) {
    assert_eq!(output.len(), grad_output.len());
    assert_eq!(output.len(), grad_x.len());
    if output.is_empty() {
        return;
    }
    assert_eq!(output.len() % columns, 0);
    let chunk = columns * (CHUNK / columns).max(1);
    let chunks =
        output.par_chunks(chunk).zip(grad_output.par_chunks(chunk)).zip(grad_x.par_chunks_mut(chunk));
    chunks.for_each(|((output, grad_output), grad_x)| {
        path.run(Backward { columns, output, grad_output, grad_x });
    });
}

struct Forward<'a> {
    columns: usize,
    x: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (x, output) in self.x.chunks_exact(self.columns).zip(self.output.chunks_exact_mut(self.columns)) {
            let rest_start = x.len() / S::LANES * S::LANES;
            let (vectors, rest) = x.split_at(rest_start);
            let (targets, rest_target) = output.split_at_mut(rest_start);
            let rest = simd.load_partial(rest, f32::NEG_INFINITY);
            let mut largest = rest;
            for vector in vectors.chunks_exact(S::LANES) {
                largest = simd.max(largest, simd.load(vector));
            }
            let largest = simd.splat(simd.largest(largest));
            // Lanes beyond the row are -inf; exp makes them 2^-126, nothing beside the row's largest, which is 1.
            let rest = exp(simd, simd.sub(rest, largest));
            let mut total = rest;
            for (vector, target) in vectors.chunks_exact(S::LANES).zip(targets.chunks_exact_mut(S::LANES)) {
                let value = exp(simd, simd.sub(simd.load(vector), largest));
                simd.store(target, value);
                total = simd.add(total, value);
            }
            let scale = simd.splat(1.0 / simd.sum(total));
            for target in targets.chunks_exact_mut(S::LANES) {
                let value = simd.mul(simd.load(target), scale);
                simd.store(target, value);
            }
            simd.store_partial(rest_target, simd.mul(rest, scale));
        }
    }
}

struct Backward<'a> {
    columns: usize,
    output: &'a [f32],
    grad_output: &'a [f32],
    grad_x: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let outputs = self.output.chunks_exact(self.columns);
        let grads = self.grad_output.chunks_exact(self.columns);
        for ((output, grad), target) in outputs.zip(grads).zip(self.grad_x.chunks_exact_mut(self.columns)) {
            let rest_start = output.len() / S::LANES * S::LANES;
            let (outputs, rest_output) = output.split_at(rest_start);
            let (grads, rest_grad) = grad.split_at(rest_start);
            let (targets, rest_target) = target.split_at_mut(rest_start);
            let rest_output = simd.load_partial(rest_output, 0.0);
            let rest_grad = simd.load_partial(rest_grad, 0.0);
            let mut agreement = simd.mul(rest_output, rest_grad);
            for (output, grad) in outputs.chunks_exact(S::LANES).zip(grads.chunks_exact(S::LANES)) {
                agreement = simd.mul_add(simd.load(output), simd.load(grad), agreement);
            }
            let agreement = simd.splat(simd.sum(agreement));
            let vectors = outputs.chunks_exact(S::LANES).zip(grads.chunks_exact(S::LANES));
            for ((output, grad), target) in vectors.zip(targets.chunks_exact_mut(S::LANES)) {
                let value = simd.mul(simd.load(output), simd.sub(simd.load(grad), agreement));
                simd.store(target, value);
            }
            simd.store_partial(rest_target, simd.mul(rest_output, simd.sub(rest_grad, agreement)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{assert_close, assert_gradient, noise, sizes, widen};
    use super::*;

    #[test]
    fn softmax_and_its_gradient_equal_the_naive_ones_for_any_width() {
        for path in SimdPath::available() {
            for (rows, columns) in sizes([(1, 1), (3, 2), (7, 21), (2, 64), (5, 577), (500, 33)]) {
                let x: Vec<f32> = noise(rows * columns, 1).iter().map(|x| 8.0 * x).collect();
                let cotangent = noise(x.len(), 2);
                let (mut y, mut grad) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
                forward(path, columns, &x, &mut y);
                backward(path, columns, &y, &cotangent, &mut grad);
                let naive = |x: &[Vec<f64>]| super::super::naive::softmax(columns, &x[0]);
                assert_close(&y, &naive(&[widen(&x)]), 1e-6, "softmax");
                assert_gradient(&grad, &[widen(&x)], 0, &cotangent, &naive, "softmax's gradient");
            }
        }
    }

    #[test]
    fn scores_far_apart_neither_overflow_nor_vanish_to_nan() {
        for path in SimdPath::available() {
            let mut y = [f32::NAN; 3];
            forward(path, 3, &[1e30, -1e30, 0.0], &mut y);
            assert_close(&y, &[1.0, 0.0, 0.0], 1e-7, "softmax");
        }
    }
}
