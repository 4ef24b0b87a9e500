//! GELU over slices, vectors at a time on all cores.

use rayon::prelude::*;

use super::elementary;
use super::simd::{Kernel, Simd, SimdPath};

/// Floats a thread takes at a time: small enough for the first-level cache, large enough to be worth a task.
const CHUNK: usize = 1 << 13;

/// `output = gelu(x)`.
pub(crate) fn forward(path: SimdPath, x: &[f32], output: &mut [f32]) {
    assert_eq!(x.len(), output.len());
    let chunks = x.par_chunks(CHUNK).zip(output.par_chunks_mut(CHUNK));
    chunks.for_each(|(x, output)| path.run(Forward { x, output }));
}

/// `grad_x = gelu'(x) · grad_output`.
pub(crate) fn backward(path: SimdPath, x: &[f32], grad_output: &[f32], grad_x: &mut [f32]) {
    assert_eq!(x.len(), grad_output.len());
    assert_eq!(x.len(), grad_x.len());
    let chunks = x.par_chunks(CHUNK).zip(grad_output.par_chunks(CHUNK)).zip(grad_x.par_chunks_mut(CHUNK));
    chunks.for_each(|((x, grad_output), grad_x)| path.run(Backward { x, grad_output, grad_x }));
}

struct Forward<'a> {
    x: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut sources = self.x.chunks_exact(S::LANES);
        let mut targets = self.output.chunks_exact_mut(S::LANES);
        for (source, target) in (&mut sources).zip(&mut targets) {
            simd.store(target, elementary::gelu(simd, simd.load(source)));
        }
        let value = elementary::gelu(simd, simd.load_partial(sources.remainder(), 0.0));
        simd.store_partial(targets.into_remainder(), value);
    }
}

struct Backward<'a> {
    x: &'a [f32],
    grad_output: &'a [f32],
    grad_x: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut sources = self.x.chunks_exact(S::LANES);
        let mut grads = self.grad_output.chunks_exact(S::LANES);
        let mut targets = self.grad_x.chunks_exact_mut(S::LANES);
        for ((source, grad), target) in (&mut sources).zip(&mut grads).zip(&mut targets) {
            let slope = elementary::gelu_slope(simd, simd.load(source));
            simd.store(target, simd.mul(slope, simd.load(grad)));
        }
        let slope = elementary::gelu_slope(simd, simd.load_partial(sources.remainder(), 0.0));
        let value = simd.mul(slope, simd.load_partial(grads.remainder(), 0.0));
        simd.store_partial(targets.into_remainder(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{assert_close, assert_gradient, noise, sizes, widen};
    use super::*;

    #[test]
    fn gelu_and_its_gradient_equal_the_naive_ones_for_any_length() {
        for path in SimdPath::available() {
            for len in sizes([0, 1, 3, 16, 17, CHUNK + 5]) {
                let x: Vec<f32> = noise(len, 1).iter().map(|x| 4.0 * x).collect();
                let cotangent = noise(len, 2);
                let (mut y, mut grad) = (vec![f32::NAN; len], vec![f32::NAN; len]);
                forward(path, &x, &mut y);
                backward(path, &x, &cotangent, &mut grad);
                let naive = |x: &[Vec<f64>]| super::super::naive::gelu(&x[0]);
                assert_close(&y, &naive(&[widen(&x)]), 2e-7, "gelu");
                assert_gradient(&grad, &[widen(&x)], 0, &cotangent, &naive, "gelu's gradient");
            }
        }
    }
}
