//! Attention from packed queries, keys and values, without the matrix of all pairs: a block of queries meets the keys
//! tile by tile, softmax is carried along (running maximum and sum), and backward recomputes the weights from the
//! rows' log-sum-exp.

use rayon::prelude::*;

use super::elementary::exp2;
use super::matmul::{BlockProduct, Matrix, block_product};
use super::packed_panels::{PackPanel, packed_len};
use super::scratch::Scratch;
use super::shared_target::SharedTarget;
use super::simd::{Kernel, Onto, Simd, SimdPath};

/// Queries worked on together: four or eight register tiles, so that keys and values are read seldom.
pub(crate) const QUERY_BLOCK: usize = 96;

/// Keys of a tile at most; a block of weights, `QUERY_BLOCK` by this, stays in the second-level cache.
const KEY_TILE: usize = 640;

/// The sizes of one attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
}

impl AttentionShape {
    /// Features of the output.
    pub(crate) fn features(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Floats of the packed input.
    pub(crate) fn packed_len(&self) -> usize {
        3 * self.batch * self.tokens * self.features()
    }

    /// Floats of the output.
    pub(crate) fn output_len(&self) -> usize {
        self.batch * self.tokens * self.features()
    }

    /// Rows of softmax.
    pub(crate) fn rows(&self) -> usize {
        self.batch * self.heads * self.tokens
    }

    /// `1 / sqrt(head_dim)`, times the factor that turns `e^x` into `2^x`.
    pub(crate) fn score_scale(&self) -> f32 {
        std::f32::consts::LOG2_E * self.scale()
    }

    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// One head's queries (`part` 0), keys (1) or values (2), as a matrix of tokens by head features.
    pub(crate) fn part<'a>(&self, qkv: &'a [f32], head: usize, part: usize) -> Matrix<'a> {
        let start = self.part_start(head, part);
        Matrix::strided(&qkv[start..], self.tokens, self.head_dim, 3 * self.features())
    }

    /// Where `part` of a head (counted over the batch) begins in the packed input.
    pub(crate) fn part_start(&self, head: usize, part: usize) -> usize {
        let (image, head) = (head / self.heads, head % self.heads);
        image * self.tokens * 3 * self.features() + part * self.features() + head * self.head_dim
    }

    /// Where a head (counted over the batch) begins in the output.
    pub(crate) fn output_start(&self, head: usize) -> usize {
        let (image, head) = (head / self.heads, head % self.heads);
        image * self.tokens * self.features() + head * self.head_dim
    }

    /// One head of an output, as a matrix of tokens by head features.
    pub(crate) fn output<'a>(&self, output: &'a [f32], head: usize) -> Matrix<'a> {
        Matrix::strided(&output[self.output_start(head)..], self.tokens, self.head_dim, self.features())
    }

    /// Keys in each tile: equal shares, whole panels.
    pub(crate) fn key_tile(&self, path: SimdPath) -> usize {
        let tiles = self.tokens.div_ceil(KEY_TILE);
        self.tokens.div_ceil(tiles).next_multiple_of(path.tile_columns())
    }
}

/// The distance between rows of scores: past the tile by a cache line, and never a power of two.
pub(crate) fn score_stride(keys: usize) -> usize {
    keys.next_multiple_of(32) + 16
}

/// `output[image, token, head · dim + d]`; where `log_sums` is given it receives each row's log-sum-exp, base 2, of
/// the scaled scores, ordered image, head, token, as [`super::attention_backward`] wants it.
pub(crate) fn forward(
    path: SimdPath,
    shape: AttentionShape,
    qkv: &[f32],
    output: &mut [f32],
    log_sums: Option<&mut [f32]>,
) {
    assert_eq!(qkv.len(), shape.packed_len());
    assert_eq!(output.len(), shape.output_len());
    if output.is_empty() {
        return;
    }
    let keys_len = packed_len(path, shape.head_dim, shape.tokens);
    let values_len = packed_len(path, shape.tokens, shape.head_dim);
    let num_heads = shape.batch * shape.heads;
    let mut packed = Scratch::take(num_heads * (keys_len + values_len));
    packed.par_chunks_exact_mut(keys_len + values_len).enumerate().for_each(|(head, packed)| {
        let (keys, values) = packed.split_at_mut(keys_len);
        pack(path, shape.part(qkv, head, 1).transposed(), keys);
        pack(path, shape.part(qkv, head, 2), values);
    });
    let log_sums = log_sums.map(|log_sums| {
        assert_eq!(log_sums.len(), shape.rows());
        SharedTarget::new(log_sums)
    });
    let output = SharedTarget::new(output);
    let blocks = shape.tokens.div_ceil(QUERY_BLOCK);
    (0..num_heads * blocks).into_par_iter().with_max_len(1).for_each(|index| {
        let (head, block) = (index / blocks, index % blocks);
        // Equal shares, rather than a last block of one row.
        let first = block * shape.tokens / blocks;
        let rows = (block + 1) * shape.tokens / blocks - first;
        let packed = &packed[head * (keys_len + values_len)..][..keys_len + values_len];
        let (keys, values) = packed.split_at(keys_len);
        path.run(QueryBlock { path, shape, qkv, head, first, rows, keys, values, output, log_sums });
    });
}

/// Packs all panels of a matrix on this thread.
pub(crate) fn pack(path: SimdPath, matrix: Matrix, buffer: &mut [f32]) {
    let width = path.tile_columns();
    for (index, panel) in buffer.chunks_exact_mut(width * matrix.rows()).enumerate() {
        path.run(PackPanel { matrix, first: index * width, panel });
    }
}

/// Some queries of one head against all its keys.
struct QueryBlock<'a> {
    path: SimdPath,
    shape: AttentionShape,
    qkv: &'a [f32],
    head: usize,
    first: usize,
    rows: usize,
    keys: &'a [f32],
    values: &'a [f32],
    output: SharedTarget<'a>,
    log_sums: Option<SharedTarget<'a>>,
}

impl Kernel for QueryBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shape, head, first, rows, .. } = self;
        let dim = shape.head_dim;
        let width = self.path.tile_columns();
        let tile = shape.key_tile(self.path);
        let stride = score_stride(tile);
        let mut scratch = Scratch::take(rows * (stride + 2 * dim + 2));
        let (scores, rest) = scratch.split_at_mut(rows * stride);
        let (queries, rest) = rest.split_at_mut(rows * dim);
        let (sums, rest) = rest.split_at_mut(rows * dim);
        let (maxima, totals) = rest.split_at_mut(rows);
        copy_scaled(shape.part(self.qkv, head, 0), first, shape.score_scale(), queries);
        maxima.fill(f32::NEG_INFINITY);
        totals.fill(0.0);
        for key in (0..shape.tokens).step_by(tile) {
            let keys = tile.min(shape.tokens - key);
            // SAFETY: scores, queries and sums are this thread's own and as long as their strides say; panels reach
            // over all tokens, and `key` is a whole number of panels.
            unsafe {
                block_product(
                    simd,
                    BlockProduct {
                        rows,
                        columns: keys,
                        depth: dim,
                        a: queries.as_ptr(),
                        a_row_stride: dim,
                        a_depth_stride: 1,
                        b: self.keys.as_ptr().add(key * dim),
                        b_panel_stride: dim * width,
                        c: scores.as_mut_ptr(),
                        c_row_stride: stride,
                        onto: Onto::Nothing,
                    },
                );
            }
            for (row, scores) in scores.chunks_exact_mut(stride).enumerate() {
                let padded = keys.next_multiple_of(S::LANES);
                scores[keys..padded].fill(f32::NEG_INFINITY);
                let largest = largest(simd, &scores[..padded]).max(maxima[row]);
                let fading = fading_factor(maxima[row], largest);
                let total = exponentiate(simd, &mut scores[..padded], largest);
                totals[row] = totals[row] * fading + total;
                maxima[row] = largest;
                if key > 0 && fading != 1.0 {
                    for sum in &mut sums[row * dim..(row + 1) * dim] {
                        *sum *= fading;
                    }
                }
            }
            // SAFETY: as above.
            unsafe {
                block_product(
                    simd,
                    BlockProduct {
                        rows,
                        columns: dim,
                        depth: keys,
                        a: scores.as_ptr(),
                        a_row_stride: stride,
                        a_depth_stride: 1,
                        b: self.values.as_ptr().add(key * width),
                        b_panel_stride: shape.tokens * width,
                        c: sums.as_mut_ptr(),
                        c_row_stride: dim,
                        onto: if key == 0 { Onto::Nothing } else { Onto::Target },
                    },
                );
            }
        }
        for row in 0..rows {
            let start = shape.output_start(head) + (first + row) * shape.features();
            // SAFETY: every (head, token) is in one block only.
            let output = unsafe { self.output.slice(start, dim) };
            let scale = 1.0 / totals[row];
            for (output, sum) in output.iter_mut().zip(&sums[row * dim..]) {
                *output = sum * scale;
            }
            if let Some(log_sums) = &self.log_sums {
                // SAFETY: as above.
                let log_sum = unsafe { log_sums.slice(head * shape.tokens + first + row, 1) };
                log_sum[0] = maxima[row] + totals[row].log2();
            }
        }
    }
}

/// `2^(from - to)`, the factor by which sums made under an older maximum shrink.
fn fading_factor(from: f32, to: f32) -> f32 {
    if from == to { 1.0 } else { (from - to).exp2() }
}

/// Copies rows from `first` on, as many as the target holds, times `scale`.
pub(crate) fn copy_scaled(matrix: Matrix, first: usize, scale: f32, target: &mut [f32]) {
    for (row, target) in target.chunks_exact_mut(matrix.columns()).enumerate() {
        for (target, source) in target.iter_mut().zip(matrix.row(first + row)) {
            *target = source * scale;
        }
    }
}

/// The largest of a slice of whole vectors.
#[inline(always)]
pub(crate) fn largest<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let mut largest = [simd.splat(f32::NEG_INFINITY); 2];
    let mut pairs = values.chunks_exact(2 * S::LANES);
    for pair in &mut pairs {
        largest[0] = simd.max(largest[0], simd.load(pair));
        largest[1] = simd.max(largest[1], simd.load(&pair[S::LANES..]));
    }
    for vector in pairs.remainder().chunks_exact(S::LANES) {
        largest[0] = simd.max(largest[0], simd.load(vector));
    }
    simd.largest(simd.max(largest[0], largest[1]))
}

/// Replaces a slice of whole vectors by `2^(value - offset)` and returns the sum.
#[inline(always)]
fn exponentiate<S: Simd>(simd: S, values: &mut [f32], offset: f32) -> f32 {
    let offset = simd.splat(offset);
    let mut total = [simd.splat(0.0); 2];
    let mut pairs = values.chunks_exact_mut(2 * S::LANES);
    for pair in &mut pairs {
        let (left, right) = pair.split_at_mut(S::LANES);
        let a = exp2(simd, simd.sub(simd.load(left), offset));
        let b = exp2(simd, simd.sub(simd.load(right), offset));
        simd.store(left, a);
        simd.store(right, b);
        total = [simd.add(total[0], a), simd.add(total[1], b)];
    }
    for vector in pairs.into_remainder().chunks_exact_mut(S::LANES) {
        let value = exp2(simd, simd.sub(simd.load(vector), offset));
        simd.store(vector, value);
        total[0] = simd.add(total[0], value);
    }
    simd.sum(simd.add(total[0], total[1]))
}

#[cfg(test)]
mod tests {
    use super::super::naive::{self, assert_close, noise, sizes, widen};
    use super::*;

    #[track_caller]
    fn check(path: SimdPath, shape: AttentionShape, spread: f32) {
        let qkv: Vec<f32> = noise(shape.packed_len(), 1).iter().map(|x| spread * x).collect();
        let mut output = vec![f32::NAN; shape.output_len()];
        forward(path, shape, &qkv, &mut output, None);
        let AttentionShape { batch, tokens, heads, head_dim } = shape;
        let expected = naive::attention(batch, tokens, heads, head_dim, &widen(&qkv));
        assert_close(&output, &expected, 1e-5, &format!("{path:?} {shape:?}"));
    }

    #[test]
    fn attention_equals_the_naive_one_for_any_size() {
        for path in SimdPath::available() {
            for (batch, tokens, heads, head_dim) in sizes([
                (1, 1, 1, 1),
                (1, 1, 3, 64),
                (2, 5, 2, 3),
                (1, 97, 3, 64),
                (2, 33, 12, 64),
                (1, 130, 2, 40),
            ]) {
                check(path, AttentionShape { batch, tokens, heads, head_dim }, 2.0);
            }
        }
    }

    #[test]
    fn attention_over_several_tiles_of_keys_equals_the_naive_one() {
        for path in SimdPath::available() {
            for tokens in sizes([577, 641, 1025, 1300]) {
                // A wide spread, so that the running maximum moves from tile to tile.
                check(path, AttentionShape { batch: 1, tokens, heads: 2, head_dim: 8 }, 3.0);
            }
        }
    }

    #[test]
    fn attention_of_a_vit_small_equals_the_naive_one() {
        check(SimdPath::detect(), AttentionShape { batch: 1, tokens: 577, heads: 6, head_dim: 64 }, 2.0);
    }
}
