//! Attention in 8-bit integers, for inference. Queries and keys are rounded token by token, the keys after their mean is
//! taken from them (which moves all scores of a row alike, and so changes no weight); values feature by feature. A softmax
//! weight is two bytes, since thousands of weights too small for one add up to something.

use rayon::prelude::*;

use super::attention::{AttentionShape, copy_scaled, largest};
use super::byte_dots::{DotPath, DotTile, GROUP, TILE_ROWS, WIDTH};
use super::elementary::exp2;
use super::int8::QuantisedRows;
use super::matmul::Matrix;
use super::scratch::{Scratch, bytes_of, bytes_of_mut};
use super::shared_target::SharedTarget;
use super::simd::{Kernel, MAX_LANES, Simd, SimdPath};

/// Queries worked on together: their scores against 4,000 keys stay in the second-level cache.
const QUERY_BLOCK: usize = 2 * TILE_ROWS;

/// `output[image, token, head · dim + d]`.
pub(crate) fn forward(path: SimdPath, dots: DotPath, shape: AttentionShape, qkv: &[f32], output: &mut [f32]) {
    assert_eq!(qkv.len(), shape.packed_len());
    assert_eq!(output.len(), shape.output_len());
    if output.is_empty() {
        return;
    }
    let sizes = HeadSizes::of(shape);
    let num_heads = shape.batch * shape.heads;
    let mut packed = Scratch::take(num_heads * sizes.len());
    packed.par_chunks_exact_mut(sizes.len()).enumerate().for_each(|(head, packed)| {
        path.run(PackHead {
            sizes,
            keys: shape.part(qkv, head, 1),
            values: shape.part(qkv, head, 2),
            packed,
        });
    });
    let output = SharedTarget::new(output);
    let blocks = shape.tokens.div_ceil(QUERY_BLOCK);
    (0..num_heads * blocks).into_par_iter().with_max_len(1).for_each(|index| {
        let (head, first) = (index / blocks, index % blocks * QUERY_BLOCK);
        let rows = QUERY_BLOCK.min(shape.tokens - first);
        let packed = PackedHead::of(sizes, &packed[head * sizes.len()..][..sizes.len()]);
        path.run(QueryBlock { path, dots, shape, qkv, head, first, rows, sizes, packed, output });
    });
}

/// How much room a head's packed keys and values take.
#[derive(Clone, Copy)]
struct HeadSizes {
    tokens: usize,
    dim: usize,
}

impl HeadSizes {
    fn of(shape: AttentionShape) -> Self {
        Self { tokens: shape.tokens, dim: shape.head_dim }
    }

    fn padded_tokens(self) -> usize {
        self.tokens.next_multiple_of(WIDTH)
    }

    fn padded_dim(self) -> usize {
        self.dim.next_multiple_of(WIDTH)
    }

    fn key_groups(self) -> usize {
        self.dim.div_ceil(GROUP)
    }

    fn value_groups(self) -> usize {
        self.tokens.div_ceil(GROUP)
    }

    /// Floats: key codes, value codes, key steps, key sums, value steps.
    fn parts(self) -> [usize; 5] {
        let (tokens, dim) = (self.padded_tokens(), self.padded_dim());
        [tokens * self.key_groups(), dim * self.value_groups(), tokens, tokens, dim]
    }

    fn len(self) -> usize {
        self.parts().iter().sum()
    }
}

/// One head's keys and values in bytes, as the tiles want them. What is beyond them is zero.
#[derive(Clone, Copy)]
struct PackedHead<'a> {
    keys: &'a [u8],
    values: &'a [u8],
    key_steps: &'a [f32],
    /// A key's step times the sum of its codes.
    key_sums: &'a [f32],
    value_steps: &'a [f32],
}

impl<'a> PackedHead<'a> {
    fn of(sizes: HeadSizes, packed: &'a [f32]) -> Self {
        let parts = sizes.parts();
        let (keys, packed) = packed.split_at(parts[0]);
        let (values, packed) = packed.split_at(parts[1]);
        let (key_steps, packed) = packed.split_at(parts[2]);
        let (key_sums, value_steps) = packed.split_at(parts[3]);
        Self { keys: bytes_of(keys), values: bytes_of(values), key_steps, key_sums, value_steps }
    }
}

/// Rounds and packs one head's keys and values.
struct PackHead<'a> {
    sizes: HeadSizes,
    keys: Matrix<'a>,
    values: Matrix<'a>,
    packed: &'a mut [f32],
}

impl Kernel for PackHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sizes, keys, values, packed } = self;
        let parts = sizes.parts();
        packed.fill(0.0);
        let (key_codes, packed) = packed.split_at_mut(parts[0]);
        let (value_codes, packed) = packed.split_at_mut(parts[1]);
        let (key_steps, packed) = packed.split_at_mut(parts[2]);
        let (key_sums, value_steps) = packed.split_at_mut(parts[3]);
        pack_keys(simd, sizes, keys, bytes_of_mut(key_codes), key_steps, key_sums);
        pack_values(simd, sizes, values, bytes_of_mut(value_codes), value_steps);
    }
}

#[inline(always)]
fn pack_keys<S: Simd>(
    simd: S,
    sizes: HeadSizes,
    keys: Matrix,
    codes: &mut [u8],
    steps: &mut [f32],
    sums: &mut [f32],
) {
    let (dim, padded) = (sizes.dim, sizes.padded_dim());
    let mut scratch = Scratch::take(2 * padded);
    let (mean, centred) = scratch.split_at_mut(padded);
    mean.fill(0.0);
    centred.fill(0.0);
    for token in 0..sizes.tokens {
        for (mean, key) in mean.iter_mut().zip(keys.row(token)) {
            *mean += key;
        }
    }
    for mean in &mut *mean {
        *mean /= sizes.tokens as f32;
    }
    let mut row_codes = Scratch::take(padded / size_of::<f32>());
    let row_codes = bytes_of_mut(&mut row_codes);
    for token in 0..sizes.tokens {
        for ((centred, key), mean) in centred.iter_mut().zip(keys.row(token)).zip(&*mean) {
            *centred = key - mean;
        }
        let largest = largest_magnitude(simd, centred);
        steps[token] = largest / 127.0;
        signed_codes(simd, centred, largest, row_codes);
        let mut sum = 0;
        for code in &row_codes[..dim] {
            sum += i32::from(code.cast_signed());
        }
        sums[token] = steps[token] * sum as f32;
        let panel = token / WIDTH * sizes.key_groups() * WIDTH * GROUP;
        for (group, four) in row_codes.chunks_exact(GROUP).take(sizes.key_groups()).enumerate() {
            codes[panel + (group * WIDTH + token % WIDTH) * GROUP..][..GROUP].copy_from_slice(four);
        }
    }
}

#[inline(always)]
fn pack_values<S: Simd>(simd: S, sizes: HeadSizes, values: Matrix, codes: &mut [u8], steps: &mut [f32]) {
    let (dim, padded) = (sizes.dim, sizes.padded_dim());
    let mut largest = Scratch::take(padded);
    largest.fill(0.0);
    for token in 0..sizes.tokens {
        for (largest, value) in largest.iter_mut().zip(values.row(token)) {
            let magnitude = value.abs();
            *largest = if magnitude > *largest { magnitude } else { *largest };
        }
    }
    // From here on how many steps a unit is.
    for (largest, step) in largest.iter_mut().zip(steps) {
        *step = *largest / 127.0;
        *largest = if *largest > 0.0 { 127.0 / *largest } else { 0.0 };
    }
    let mut scaled = Scratch::take(padded);
    scaled.fill(0.0);
    let mut rows = Scratch::take(GROUP * padded / size_of::<f32>());
    let rows = bytes_of_mut(&mut rows);
    let panel_bytes = sizes.value_groups() * WIDTH * GROUP;
    for group in 0..sizes.value_groups() {
        let present = GROUP.min(sizes.tokens - group * GROUP);
        rows[present * padded..].fill(0);
        for (index, row) in rows.chunks_exact_mut(padded).take(present).enumerate() {
            let source = values.row(group * GROUP + index);
            for ((scaled, value), per_step) in scaled[..dim].iter_mut().zip(source).zip(&*largest) {
                *scaled = value * per_step;
            }
            signed_codes(simd, &scaled, 127.0, row);
        }
        for panel in 0..padded / WIDTH {
            let target = &mut codes[panel * panel_bytes + group * WIDTH * GROUP..][..WIDTH * GROUP];
            for (index, row) in rows.chunks_exact(padded).enumerate() {
                let row = &row[panel * WIDTH..][..WIDTH];
                for column in 0..WIDTH {
                    target[column * GROUP + index] = row[column];
                }
            }
        }
    }
}

/// The largest magnitude of whole vectors.
#[inline(always)]
fn largest_magnitude<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let mut largest = simd.splat(0.0);
    for vector in values.chunks_exact(S::LANES) {
        let vector = simd.load(vector);
        largest = simd.max(largest, simd.max(vector, simd.sub(simd.splat(0.0), vector)));
    }
    simd.largest(largest)
}

/// Rounds whole vectors so that `largest` becomes 127, as signed bytes.
#[inline(always)]
fn signed_codes<S: Simd>(simd: S, values: &[f32], largest: f32, codes: &mut [u8]) {
    let per_step = simd.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
    let middle = simd.splat(128.0);
    for (vector, codes) in values.chunks_exact(S::LANES).zip(codes.chunks_exact_mut(S::LANES)) {
        let code = simd.add(simd.mul(simd.load(vector), per_step), middle);
        // SAFETY: the slice has as many bytes as the vector lanes.
        unsafe { simd.store_bytes_at(codes.as_mut_ptr(), code) };
        for code in codes {
            *code ^= 128;
        }
    }
}

/// Some queries of one head against all its keys.
struct QueryBlock<'a> {
    path: SimdPath,
    dots: DotPath,
    shape: AttentionShape,
    qkv: &'a [f32],
    head: usize,
    first: usize,
    rows: usize,
    sizes: HeadSizes,
    packed: PackedHead<'a>,
    output: SharedTarget<'a>,
}

impl Kernel for QueryBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shape, rows, sizes, packed, .. } = self;
        let dim = shape.head_dim;
        let stride = sizes.padded_tokens() + 16;
        // Rows of high bytes, then of low bytes.
        let weight_stride = sizes.padded_tokens() + 64;
        let mut scratch = Scratch::take(rows * (dim + stride) + 2 * rows * weight_stride / size_of::<f32>());
        let (queries, rest) = scratch.split_at_mut(rows * dim);
        let (scores, weights) = rest.split_at_mut(rows * stride);
        copy_scaled(shape.part(self.qkv, self.head, 0), self.first, shape.score_scale(), queries);
        let queries = QuantisedRows::new(self.path, queries, dim);
        self.scores(simd, &queries, scores, stride);

        let weights = bytes_of_mut(weights);
        let (high, low) = weights.split_at_mut(rows * weight_stride);
        let mut scales = [0.0; QUERY_BLOCK];
        let bytes = high.chunks_exact_mut(weight_stride).zip(low.chunks_exact_mut(weight_stride));
        for (row, (scores, (high, low))) in scores.chunks_exact_mut(stride).zip(bytes).enumerate() {
            scores[sizes.tokens..sizes.padded_tokens()].fill(f32::NEG_INFINITY);
            let scores = &scores[..sizes.padded_tokens()];
            let total = soften(simd, scores, largest(simd, scores), high, low);
            // A query that is not finite is to be seen behind.
            let (_, offset) = queries.scale_of(row);
            scales[row] = if offset.is_nan() { f32::NAN } else { 1.0 / (255.0 * total) };
        }

        let panel_bytes = sizes.value_groups() * WIDTH * GROUP;
        let mut sums = [0i32; 2 * QUERY_BLOCK * WIDTH];
        for (panel, first_feature) in (0..dim).step_by(WIDTH).enumerate() {
            let b = packed.values[panel * panel_bytes..][..panel_bytes].as_ptr().cast();
            for first_row in (0..2 * rows).step_by(TILE_ROWS) {
                let a = weights[first_row * weight_stride..].as_ptr();
                let target = sums[first_row * WIDTH..].as_mut_ptr();
                let tile =
                    DotTile { groups: sizes.value_groups(), a, a_stride: weight_stride, b, sums: target };
                // SAFETY: rows of weights reach over all groups of tokens, a panel has them all, and there are sums for
                // twice as many rows as a block has.
                unsafe { self.dots.tile(TILE_ROWS.min(2 * rows - first_row), tile) };
            }
            let steps = &packed.value_steps[first_feature..];
            for (row, &scale) in scales[..rows].iter().enumerate() {
                let features = WIDTH.min(dim - first_feature);
                let start =
                    shape.output_start(self.head) + (self.first + row) * shape.features() + first_feature;
                // SAFETY: every (head, token) is in one block only.
                let output = unsafe { self.output.slice(start, features) };
                for (feature, output) in output.iter_mut().enumerate() {
                    let high = sums[row * WIDTH + feature] as f32;
                    let low = sums[(rows + row) * WIDTH + feature] as f32;
                    *output = (high + low / 256.0) * (steps[feature] * scale);
                }
            }
        }
    }
}

impl QueryBlock<'_> {
    /// Scores of the queries, as powers of two.
    #[inline(always)]
    fn scores<S: Simd>(&self, simd: S, queries: &QuantisedRows, scores: &mut [f32], stride: usize) {
        let Self { sizes, packed, rows, .. } = *self;
        let panel_bytes = sizes.key_groups() * WIDTH * GROUP;
        let mut sums = [0i32; TILE_ROWS * WIDTH];
        for first_row in (0..rows).step_by(TILE_ROWS) {
            let tile_rows = TILE_ROWS.min(rows - first_row);
            let (codes, a_stride) = queries.codes_from(first_row);
            let a = codes[..tile_rows * a_stride].as_ptr();
            for (panel, key) in (0..sizes.tokens).step_by(WIDTH).enumerate() {
                let b = packed.keys[panel * panel_bytes..][..panel_bytes].as_ptr().cast();
                let groups = sizes.key_groups();
                let tile = DotTile { groups, a, a_stride, b, sums: sums.as_mut_ptr() };
                // SAFETY: both slices are as long as the tile needs.
                unsafe { self.dots.tile(tile_rows, tile) };
                for (row, sums) in sums.chunks_exact(WIDTH).take(tile_rows).enumerate() {
                    let (step, offset) = queries.scale_of(first_row + row);
                    let (step, offset) = (simd.splat(step), simd.splat(offset));
                    let scores = &mut scores[(first_row + row) * stride + key..][..WIDTH];
                    for start in (0..WIDTH).step_by(S::LANES) {
                        // SAFETY: a row of sums has a whole number of vectors.
                        let sums = unsafe { simd.load_integers_at(sums[start..start + S::LANES].as_ptr()) };
                        let steps = simd.load(&packed.key_steps[key + start..]);
                        let constant = simd.mul(offset, simd.load(&packed.key_sums[key + start..]));
                        let score = simd.mul_add(sums, simd.mul(step, steps), constant);
                        simd.store(&mut scores[start..], score);
                    }
                }
            }
        }
    }
}

/// Writes `255 · 2^(score - largest)` as whole parts and as 256ths, and returns the sum of the powers.
#[inline(always)]
fn soften<S: Simd>(simd: S, scores: &[f32], largest: f32, high: &mut [u8], low: &mut [u8]) -> f32 {
    let (largest, scale, half) = (simd.splat(largest), simd.splat(255.0), simd.splat(0.5));
    let mut total = simd.splat(0.0);
    let bytes = high.chunks_exact_mut(S::LANES).zip(low.chunks_exact_mut(S::LANES));
    for (scores, (high, low)) in scores.chunks_exact(S::LANES).zip(bytes) {
        let power = exp2(simd, simd.sub(simd.load(scores), largest));
        total = simd.add(total, power);
        let power = simd.mul(power, scale);
        let whole = simd.round(simd.max(simd.sub(power, half), simd.splat(0.0)));
        let rest = simd.mul(simd.sub(power, whole), simd.splat(256.0));
        let rest = simd.max(simd.min(rest, scale), simd.splat(0.0));
        // SAFETY: the slices have as many bytes as the vectors lanes.
        unsafe {
            simd.store_bytes_at(high.as_mut_ptr(), whole);
            simd.store_bytes_at(low.as_mut_ptr(), rest);
        }
    }
    simd.sum(total)
}

const _: () = assert!(WIDTH.is_multiple_of(MAX_LANES));

#[cfg(test)]
mod tests {
    use super::super::naive::{self, assert_close, noise, sizes, widen};
    use super::*;

    #[test]
    fn attention_in_bytes_is_near_the_exact_one_for_any_size() {
        for path in SimdPath::available() {
            for (batch, tokens, heads, head_dim) in
                sizes([(1, 1, 1, 1), (2, 5, 2, 3), (1, 25, 3, 64), (2, 97, 2, 40), (1, 700, 2, 64)])
            {
                let shape = AttentionShape { batch, tokens, heads, head_dim };
                // Keys far from zero, as those of trained networks are.
                let mut qkv: Vec<f32> = noise(shape.packed_len(), 1).iter().map(|x| 2.0 * x).collect();
                for token in qkv.chunks_exact_mut(3 * shape.features()) {
                    token[shape.features()..2 * shape.features()].iter_mut().for_each(|key| *key += 20.0);
                }
                let mut output = vec![f32::NAN; shape.output_len()];
                forward(path, DotPath::detect(), shape, &qkv, &mut output);
                let expected = naive::attention(batch, tokens, heads, head_dim, &widen(&qkv));
                assert_close(&output, &expected, 0.03, &format!("{path:?} {shape:?}"));
                let squares = output.iter().zip(&expected).map(|(y, e)| (f64::from(*y) - e).powi(2));
                let error = (squares.sum::<f64>() / output.len() as f64).sqrt();
                assert!(error < 0.008, "{path:?} {shape:?}: {error}");
            }
        }
    }

    #[test]
    fn many_small_weights_beside_a_large_one_are_not_lost() {
        // One key with the weight of 1,000 others, each of which is less than half a byte's step.
        let (tokens, shape) = (1001, AttentionShape { batch: 1, tokens: 1001, heads: 1, head_dim: 4 });
        let mut qkv = vec![0.0; shape.packed_len()];
        for (token, qkv) in qkv.chunks_exact_mut(12).enumerate() {
            qkv[0] = 1.0;
            qkv[4] = if token == 0 { 2.0 * 1000f32.ln() } else { 0.0 };
            qkv[8] = if token == 0 { 0.0 } else { 1.0 };
        }
        let mut output = vec![f32::NAN; shape.output_len()];
        forward(SimdPath::detect(), DotPath::detect(), shape, &qkv, &mut output);
        let expected = naive::attention(1, tokens, 1, 4, &widen(&qkv));
        assert!((expected[0] - 0.5).abs() < 1e-3);
        assert_close(&output, &expected, 0.02, "half from the small ones");
    }
}
