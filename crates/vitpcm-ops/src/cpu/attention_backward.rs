//! The gradient of attention. The weights are recomputed tile by tile from the rows' log-sum-exp, so that nothing of
//! size tokens by tokens is ever stored. Heads run in parallel; within a head one thread works.

use rayon::prelude::*;

use super::attention::{AttentionShape, QUERY_BLOCK, copy_scaled, pack, score_stride};
use super::elementary::exp2;
use super::matmul::{BlockProduct, block_product};
use super::packed_panels::packed_len;
use super::scratch::Scratch;
use super::shared_target::SharedTarget;
use super::simd::{Kernel, Onto, Simd, SimdPath};

/// What the forward pass took and gave, and the gradient of what it gave.
#[derive(Clone, Copy)]
pub(crate) struct AttentionPass<'a> {
    pub(crate) qkv: &'a [f32],
    pub(crate) output: &'a [f32],
    pub(crate) log_sums: &'a [f32],
    pub(crate) grad_output: &'a [f32],
}

/// Writes the gradient of the packed queries, keys and values.
pub(crate) fn backward(path: SimdPath, shape: AttentionShape, pass: AttentionPass, grad_qkv: &mut [f32]) {
    assert_eq!(pass.qkv.len(), shape.packed_len());
    assert_eq!(pass.output.len(), shape.output_len());
    assert_eq!(pass.grad_output.len(), shape.output_len());
    assert_eq!(pass.log_sums.len(), shape.rows());
    assert_eq!(grad_qkv.len(), shape.packed_len());
    if grad_qkv.is_empty() {
        return;
    }
    let target = SharedTarget::new(grad_qkv);
    (0..shape.batch * shape.heads).into_par_iter().with_max_len(1).for_each(|head| {
        path.run(HeadBackward { path, shape, pass, head, target });
    });
}

struct HeadBackward<'a> {
    path: SimdPath,
    shape: AttentionShape,
    pass: AttentionPass<'a>,
    head: usize,
    target: SharedTarget<'a>,
}

impl Kernel for HeadBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { path, shape, pass, head, target } = self;
        let (tokens, dim) = (shape.tokens, shape.head_dim);
        let width = path.tile_columns();
        let query = shape.part(pass.qkv, head, 0);
        let key = shape.part(pass.qkv, head, 1);
        let value = shape.part(pass.qkv, head, 2);
        let output = shape.output(pass.output, head);
        let grad_output = shape.output(pass.grad_output, head);
        let log_sums = &pass.log_sums[head * tokens..][..tokens];

        // Right factors over all keys: keys and values across (for scores), keys along (for the queries' gradient).
        let across_len = packed_len(path, dim, tokens);
        let along_len = packed_len(path, tokens, dim);
        let mut packed = Scratch::take(2 * across_len + along_len);
        let (keys_across, rest) = packed.split_at_mut(across_len);
        let (values_across, keys_along) = rest.split_at_mut(across_len);
        pack(path, key.transposed(), keys_across);
        pack(path, value.transposed(), values_across);
        pack(path, key, keys_along);

        let tile = shape.key_tile(path);
        let stride = score_stride(tile);
        let block = QUERY_BLOCK.min(tokens);
        let rows_len = packed_len(path, block, dim);
        let mut scratch = Scratch::take(2 * block * stride + 2 * block * dim + 2 * rows_len + block);
        let (weights, rest) = scratch.split_at_mut(block * stride);
        let (grad_scores, rest) = rest.split_at_mut(block * stride);
        let (queries, rest) = rest.split_at_mut(block * dim);
        let (grad_rows, rest) = rest.split_at_mut(block * dim);
        let (queries_along, rest) = rest.split_at_mut(rows_len);
        let (grads_along, agreements) = rest.split_at_mut(rows_len);

        let grad_row_stride = 3 * shape.features();
        let grad_part = |part: usize, token: usize| {
            target.pointer(shape.part_start(head, part) + token * grad_row_stride)
        };
        for first in (0..tokens).step_by(block) {
            let rows = block.min(tokens - first);
            let queries = &mut queries[..rows * dim];
            copy_scaled(query, first, shape.score_scale(), queries);
            let grad_rows = &mut grad_rows[..rows * dim];
            copy_scaled(grad_output, first, 1.0, grad_rows);
            let rows_len = packed_len(path, rows, dim);
            pack(path, query.rows_from(first, rows), &mut queries_along[..rows_len]);
            pack(path, grad_output.rows_from(first, rows), &mut grads_along[..rows_len]);
            // Σ over keys of weight · its gradient, which equals output · gradient of the output.
            for (row, agreement) in agreements[..rows].iter_mut().enumerate() {
                let pairs = output.row(first + row).iter().zip(grad_output.row(first + row));
                *agreement = pairs.map(|(output, grad)| output * grad).sum();
            }
            for start in (0..tokens).step_by(tile) {
                let keys = tile.min(tokens - start);
                let scores = BlockProduct {
                    rows,
                    columns: keys,
                    depth: dim,
                    a: queries.as_ptr(),
                    a_row_stride: dim,
                    a_depth_stride: 1,
                    b: keys_across[start * dim..].as_ptr(),
                    b_panel_stride: dim * width,
                    c: weights.as_mut_ptr(),
                    c_row_stride: stride,
                    onto: Onto::Nothing,
                };
                let grad_weights = BlockProduct {
                    a: grad_rows.as_ptr(),
                    b: values_across[start * dim..].as_ptr(),
                    c: grad_scores.as_mut_ptr(),
                    ..scores
                };
                // SAFETY: all operands are this thread's own and as long as their strides say; panels reach over all
                // tokens, and `start` is a whole number of panels.
                unsafe {
                    block_product(simd, scores);
                    block_product(simd, grad_weights);
                }
                let padded = keys.next_multiple_of(S::LANES);
                for row in 0..rows {
                    let weights = &mut weights[row * stride..][..padded];
                    let grad_scores = &mut grad_scores[row * stride..][..padded];
                    weights[keys..].fill(0.0);
                    grad_scores[keys..].fill(0.0);
                    let log_sum = log_sums[first + row];
                    softmax_gradient(simd, weights, grad_scores, log_sum, agreements[row], shape.scale());
                }
                let grad_values = BlockProduct {
                    rows: keys,
                    columns: dim,
                    depth: rows,
                    a: weights.as_ptr(),
                    a_row_stride: 1,
                    a_depth_stride: stride,
                    b: grads_along.as_ptr(),
                    b_panel_stride: rows * width,
                    c: grad_part(2, start),
                    c_row_stride: grad_row_stride,
                    onto: if first == 0 { Onto::Nothing } else { Onto::Target },
                };
                let grad_keys = BlockProduct {
                    a: grad_scores.as_ptr(),
                    b: queries_along.as_ptr(),
                    c: grad_part(1, start),
                    ..grad_values
                };
                let grad_queries = BlockProduct {
                    rows,
                    columns: dim,
                    depth: keys,
                    a: grad_scores.as_ptr(),
                    a_row_stride: stride,
                    a_depth_stride: 1,
                    b: keys_along[start * width..].as_ptr(),
                    b_panel_stride: tokens * width,
                    c: grad_part(0, first),
                    c_row_stride: grad_row_stride,
                    onto: if start == 0 { Onto::Nothing } else { Onto::Target },
                };
                // SAFETY: as above, and each head has columns of its own in the target.
                unsafe {
                    block_product(simd, grad_values);
                    block_product(simd, grad_keys);
                    block_product(simd, grad_queries);
                }
            }
        }
    }
}

/// Turns scores into weights and the weights' gradients into the scores' (unscaled) ones, whole vectors.
#[inline(always)]
fn softmax_gradient<S: Simd>(
    simd: S,
    weights: &mut [f32],
    gradients: &mut [f32],
    log_sum: f32,
    agreement: f32,
    scale: f32,
) {
    let (log_sum, agreement, scale) = (simd.splat(log_sum), simd.splat(agreement), simd.splat(scale));
    for (weights, gradients) in weights.chunks_exact_mut(S::LANES).zip(gradients.chunks_exact_mut(S::LANES)) {
        let weight = exp2(simd, simd.sub(simd.load(weights), log_sum));
        let gradient = simd.mul(simd.sub(simd.load(gradients), agreement), scale);
        simd.store(weights, weight);
        simd.store(gradients, simd.mul(weight, gradient));
    }
}

#[cfg(test)]
mod tests {
    use super::super::attention;
    use super::super::naive::{self, assert_gradient, noise, sizes, widen};
    use super::*;

    #[test]
    fn the_gradient_of_attention_equals_the_naive_one_for_any_size() {
        for path in SimdPath::available() {
            for (batch, tokens, heads, head_dim) in sizes([
                (1, 1, 1, 1),
                (1, 1, 3, 64),
                (2, 5, 2, 3),
                (1, 37, 3, 64),
                (2, 33, 2, 10),
                (1, 197, 1, 8),
            ]) {
                check(path, AttentionShape { batch, tokens, heads, head_dim });
            }
        }
    }

    #[test]
    fn the_gradient_over_several_tiles_of_keys_equals_the_naive_one() {
        for path in SimdPath::available() {
            check(path, AttentionShape { batch: 1, tokens: 701, heads: 1, head_dim: 4 });
        }
    }

    #[track_caller]
    fn check(path: SimdPath, shape: AttentionShape) {
        let qkv: Vec<f32> = noise(shape.packed_len(), 1).iter().map(|x| 2.0 * x).collect();
        let cotangent = noise(shape.output_len(), 2);
        let mut output = vec![f32::NAN; shape.output_len()];
        let mut log_sums = vec![f32::NAN; shape.rows()];
        attention::forward(path, shape, &qkv, &mut output, Some(&mut log_sums));
        let pass = AttentionPass { qkv: &qkv, output: &output, log_sums: &log_sums, grad_output: &cotangent };
        let mut grad = vec![f32::NAN; qkv.len()];
        backward(path, shape, pass, &mut grad);
        let AttentionShape { batch, tokens, heads, head_dim } = shape;
        let naive = |v: &[Vec<f64>]| naive::attention(batch, tokens, heads, head_dim, &v[0]);
        assert_gradient(&grad, &[widen(&qkv)], 0, &cotangent, &naive, &format!("{path:?} {shape:?}"));
    }
}
