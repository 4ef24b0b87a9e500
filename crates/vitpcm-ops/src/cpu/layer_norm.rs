//! Layer norm over rows. Backward recomputes mean and deviation: cheaper than keeping them.

use rayon::prelude::*;

use super::simd::{Kernel, Simd, SimdPath};

/// Floats a thread takes at a time, in whole rows.
const CHUNK: usize = 1 << 14;

/// The scale and shift of each column, and what is added to the variance.
#[derive(Clone, Copy)]
pub(crate) struct LayerNorm<'a> {
    pub(crate) weight: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) eps: f32,
}

/// Normalises every row of as many floats as there are weights.
pub(crate) fn forward(path: SimdPath, norm: LayerNorm, x: &[f32], output: &mut [f32]) {
    let columns = norm.weight.len();
    assert_eq!(norm.bias.len(), columns);
    assert_eq!(x.len(), output.len());
    if x.is_empty() {
        return;
    }
    assert_eq!(x.len() % columns, 0);
    let chunk = columns * (CHUNK / columns).max(1);
    let chunks = x.par_chunks(chunk).zip(output.par_chunks_mut(chunk));
    chunks.for_each(|(x, output)| path.run(Forward { norm, x, output }));
}

/// As [`forward`], on this thread alone.
pub(crate) fn forward_here(path: SimdPath, norm: LayerNorm, x: &[f32], output: &mut [f32]) {
    path.run(Forward { norm, x, output });
}

/// Where the gradients go.
pub(crate) struct Gradients<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) weight: &'a mut [f32],
    pub(crate) bias: &'a mut [f32],
}

/// Writes the gradients of the rows, of the weight and of the bias.
pub(crate) fn backward(
    path: SimdPath,
    norm: LayerNorm,
    x: &[f32],
    grad_output: &[f32],
    gradients: Gradients,
) {
    let Gradients { x: grad_x, weight: grad_weight, bias: grad_bias } = gradients;
    let columns = norm.weight.len();
    assert_eq!(x.len(), grad_output.len());
    assert_eq!(x.len(), grad_x.len());
    assert_eq!(grad_weight.len(), columns);
    assert_eq!(grad_bias.len(), columns);
    grad_weight.fill(0.0);
    grad_bias.fill(0.0);
    if x.is_empty() {
        return;
    }
    assert_eq!(x.len() % columns, 0);
    // Chunks grow with the input, so that few partial sums remain to be added, in an order that does not depend on
    // the number of threads.
    let rows = x.len() / columns;
    let chunk = columns * rows.div_ceil(64).max((CHUNK / columns).max(1));
    let chunks = x.par_chunks(chunk).zip(grad_output.par_chunks(chunk)).zip(grad_x.par_chunks_mut(chunk));
    let partial_sums: Vec<Vec<f32>> = chunks
        .map(|((x, grad_output), grad_x)| {
            let mut sums = vec![0.0; 2 * columns];
            let (grad_weight, grad_bias) = sums.split_at_mut(columns);
            path.run(Backward { norm, x, grad_output, grad_x, grad_weight, grad_bias });
            sums
        })
        .collect();
    for sums in partial_sums {
        let targets = grad_weight.iter_mut().chain(grad_bias.iter_mut());
        for (target, sum) in targets.zip(sums) {
            *target += sum;
        }
    }
}

/// Mean and reciprocal deviation of a row.
#[inline(always)]
fn statistics<S: Simd>(simd: S, row: &[f32], eps: f32) -> (f32, f32) {
    let (vectors, rest) = row.split_at(row.len() / S::LANES * S::LANES);
    let mut total = simd.load_partial(rest, 0.0);
    for vector in vectors.chunks_exact(S::LANES) {
        total = simd.add(total, simd.load(vector));
    }
    let mean = simd.sum(total) / row.len() as f32;
    let mean_vector = simd.splat(mean);
    let rest = simd.sub(simd.load_partial(rest, mean), mean_vector);
    let mut squares = simd.mul(rest, rest);
    for vector in vectors.chunks_exact(S::LANES) {
        let centred = simd.sub(simd.load(vector), mean_vector);
        squares = simd.mul_add(centred, centred, squares);
    }
    (mean, 1.0 / (simd.sum(squares) / row.len() as f32 + eps).sqrt())
}

struct Forward<'a> {
    norm: LayerNorm<'a>,
    x: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let LayerNorm { weight, bias, eps } = self.norm;
        let columns = weight.len();
        let whole = columns / S::LANES * S::LANES;
        for (x, output) in self.x.chunks_exact(columns).zip(self.output.chunks_exact_mut(columns)) {
            let (mean, scale) = statistics(simd, x, eps);
            let (mean_vector, scale_vector) = (simd.splat(mean), simd.splat(scale));
            for start in (0..whole).step_by(S::LANES) {
                let centred = simd.sub(simd.load(&x[start..]), mean_vector);
                let scaled = simd.mul(centred, simd.mul(scale_vector, simd.load(&weight[start..])));
                simd.store(&mut output[start..], simd.add(scaled, simd.load(&bias[start..])));
            }
            for column in whole..columns {
                output[column] = (x[column] - mean) * scale * weight[column] + bias[column];
            }
        }
    }
}

struct Backward<'a> {
    norm: LayerNorm<'a>,
    x: &'a [f32],
    grad_output: &'a [f32],
    grad_x: &'a mut [f32],
    grad_weight: &'a mut [f32],
    grad_bias: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let LayerNorm { weight, eps, .. } = self.norm;
        let columns = weight.len();
        let whole = columns / S::LANES * S::LANES;
        let rows = self.x.chunks_exact(columns).zip(self.grad_output.chunks_exact(columns));
        for ((x, grad), target) in rows.zip(self.grad_x.chunks_exact_mut(columns)) {
            let (mean, scale) = statistics(simd, x, eps);
            let (mean_vector, scale_vector) = (simd.splat(mean), simd.splat(scale));
            // With n the normalised row and g = grad · weight: grad_x = scale · (g - mean(g) - n · mean(g · n)).
            let (mut sum, mut agreement) = (simd.splat(0.0), simd.splat(0.0));
            for start in (0..whole).step_by(S::LANES) {
                let normalised = simd.mul(simd.sub(simd.load(&x[start..]), mean_vector), scale_vector);
                let grad = simd.load(&grad[start..]);
                let weighted = simd.mul(grad, simd.load(&weight[start..]));
                sum = simd.add(sum, weighted);
                agreement = simd.mul_add(weighted, normalised, agreement);
                let grad_weight = &mut self.grad_weight[start..];
                let value = simd.mul_add(grad, normalised, simd.load(grad_weight));
                simd.store(grad_weight, value);
                let grad_bias = &mut self.grad_bias[start..];
                let value = simd.add(grad, simd.load(grad_bias));
                simd.store(grad_bias, value);
            }
            let (mut sum, mut agreement) = (simd.sum(sum), simd.sum(agreement));
            for column in whole..columns {
                let normalised = (x[column] - mean) * scale;
                let weighted = grad[column] * weight[column];
                sum += weighted;
                agreement += weighted * normalised;
                self.grad_weight[column] += grad[column] * normalised;
                self.grad_bias[column] += grad[column];
            }
            let (mean_grad, slope) = (sum / columns as f32, agreement / columns as f32);
            let (mean_grad_vector, slope_vector) = (simd.splat(mean_grad), simd.splat(slope));
            for start in (0..whole).step_by(S::LANES) {
                let normalised = simd.mul(simd.sub(simd.load(&x[start..]), mean_vector), scale_vector);
                let weighted = simd.mul(simd.load(&grad[start..]), simd.load(&weight[start..]));
                let kept = simd.sub(simd.sub(weighted, mean_grad_vector), simd.mul(normalised, slope_vector));
                simd.store(&mut target[start..], simd.mul(kept, scale_vector));
            }
            for column in whole..columns {
                let normalised = (x[column] - mean) * scale;
                target[column] = scale * (grad[column] * weight[column] - mean_grad - normalised * slope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{assert_close, assert_gradient, noise, sizes, widen};
    use super::*;

    #[test]
    fn layer_norm_and_its_gradients_equal_the_naive_ones_for_any_width() {
        for path in SimdPath::available() {
            for (rows, columns) in sizes([(1, 1), (2, 7), (3, 16), (150, 192), (5, 387)]) {
                let x: Vec<f32> = noise(rows * columns, 1).iter().map(|x| 3.0 * x + 1.0).collect();
                let (weight, bias) = (noise(columns, 2), noise(columns, 3));
                let cotangent = noise(x.len(), 4);
                let norm = LayerNorm { weight: &weight, bias: &bias, eps: 1e-3 };
                let mut y = vec![f32::NAN; x.len()];
                forward(path, norm, &x, &mut y);
                let mut grads = [vec![f32::NAN; x.len()], vec![f32::NAN; columns], vec![f32::NAN; columns]];
                let [grad_x, grad_weight, grad_bias] = &mut grads;
                let gradients = Gradients { x: grad_x, weight: grad_weight, bias: grad_bias };
                backward(path, norm, &x, &cotangent, gradients);
                let naive = |v: &[Vec<f64>]| super::super::naive::layer_norm(&v[0], &v[1], &v[2], 1e-3);
                let inputs = [widen(&x), widen(&weight), widen(&bias)];
                assert_close(&y, &naive(&inputs), 2e-6, "layer norm");
                for (which, grad) in grads.iter().enumerate() {
                    assert_gradient(grad, &inputs, which, &cotangent, &naive, &format!("gradient {which}"));
                }
            }
        }
    }
}
