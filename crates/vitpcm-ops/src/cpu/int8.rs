//! Linear layers in 8-bit integers, for inference. A weight is rounded once, symmetrically, with one step per output; the
//! rows that meet it are rounded as they come, each with its own step and offset, so that a row with a few massive activations
//! spoils no other. Sums of products are exact in 32 bits: every kernel, on any number of threads, finds the same ones.

use rayon::prelude::*;

use super::byte_dots::{DotPath, DotTile, GROUP, TILE_ROWS, WIDTH};
use super::elementary;
use super::scratch::{Scratch, bytes_of, bytes_of_mut};
use super::simd::{Kernel, MAX_LANES, Simd, SimdPath};

/// A linear layer's weight in bytes, packed for the tiles.
#[derive(Debug)]
pub(crate) struct QuantisedWeight {
    in_features: usize,
    out_features: usize,
    /// Panels of [`WIDTH`] outputs; each as [`DotTile::b`] wants it. What is beyond the weight is zero.
    panels: Scratch,
    /// What one step of an output's codes is worth; zero beyond the outputs.
    steps: Vec<f32>,
    /// What an offset of one in a whole row adds to an output.
    sums: Vec<f32>,
}

impl QuantisedWeight {
    /// Rounds a weight of `[out, in]`.
    pub(crate) fn new(weight: &[f32], out_features: usize, in_features: usize) -> Self {
        assert_eq!(weight.len(), out_features * in_features);
        let panel_bytes = in_features.next_multiple_of(GROUP) * WIDTH;
        let num_panels = out_features.div_ceil(WIDTH);
        let mut panels = Scratch::zeroed(num_panels * panel_bytes / size_of::<f32>());
        let (mut steps, mut sums) = (vec![0.0; num_panels * WIDTH], vec![0.0; num_panels * WIDTH]);
        if !weight.is_empty() {
            let panels = bytes_of_mut(&mut panels).par_chunks_exact_mut(panel_bytes);
            let columns = steps.par_chunks_exact_mut(WIDTH).zip(sums.par_chunks_exact_mut(WIDTH));
            let parts = weight.par_chunks(WIDTH * in_features).zip(panels).zip(columns);
            parts.for_each(|((rows, panel), (steps, sums))| {
                for (output, row) in rows.chunks_exact(in_features).enumerate() {
                    let largest = row.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
                    let per_step = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                    // What is not finite is to be seen behind.
                    let is_finite = row.iter().all(|weight| weight.is_finite());
                    let mut sum = 0;
                    for (index, weight) in row.iter().enumerate() {
                        // Adding 1.5 · 2^23 leaves no bits for the fraction: the nearest whole number, without a call.
                        let code = ((weight * per_step + 12_582_912.0) - 12_582_912.0) as i8;
                        sum += i32::from(code);
                        panel[(index / GROUP * WIDTH + output) * GROUP + index % GROUP] =
                            code.cast_unsigned();
                    }
                    steps[output] = if is_finite { largest / 127.0 } else { f32::NAN };
                    sums[output] = steps[output] * sum as f32;
                }
            });
        }
        Self { in_features, out_features, panels, steps, sums }
    }

    fn groups(&self) -> usize {
        self.in_features.div_ceil(GROUP)
    }
}

/// Rows rounded to unsigned bytes: element = offset + step · code.
pub(crate) struct QuantisedRows {
    codes: Scratch,
    stride: usize,
    rows: usize,
    columns: usize,
    /// The rows' steps, then their offsets.
    steps_and_offsets: Scratch,
}

impl QuantisedRows {
    /// What a row's codes stand for: its step and its offset.
    pub(crate) fn scale_of(&self, row: usize) -> (f32, f32) {
        (self.steps_and_offsets[row], self.steps_and_offsets[self.rows + row])
    }

    /// The codes of rows from `first` on, and the distance from row to row.
    pub(crate) fn codes_from(&self, first: usize) -> (&[u8], usize) {
        (&bytes_of(&self.codes)[first * self.stride..], self.stride)
    }

    /// Rounds rows of `columns` floats on this thread. A row that is not finite becomes NaN.
    pub(crate) fn new(path: SimdPath, x: &[f32], columns: usize) -> Self {
        let rows = x.len() / columns;
        // Not a power of two, so that rows do not fall on the same cache sets.
        let stride = columns.next_multiple_of(64) + 64;
        let mut codes = Scratch::take(rows * stride / size_of::<f32>());
        let mut steps_and_offsets = Scratch::take(2 * rows);
        let (steps, offsets) = steps_and_offsets.split_at_mut(rows);
        path.run(QuantiseRows { x, columns, codes: bytes_of_mut(&mut codes), stride, steps, offsets });
        Self { codes, stride, rows, columns, steps_and_offsets }
    }
}

struct QuantiseRows<'a> {
    x: &'a [f32],
    columns: usize,
    codes: &'a mut [u8],
    stride: usize,
    steps: &'a mut [f32],
    offsets: &'a mut [f32],
}

impl Kernel for QuantiseRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.x.chunks_exact(self.columns).zip(self.codes.chunks_exact_mut(self.stride));
        for ((row, codes), (step, offset)) in rows.zip(self.steps.iter_mut().zip(self.offsets)) {
            let (vectors, rest) = row.split_at(row.len() / S::LANES * S::LANES);
            let first = row[0];
            let rest_vector = simd.load_partial(rest, first);
            let (mut least, mut largest) = (rest_vector, rest_vector);
            for vector in vectors.chunks_exact(S::LANES) {
                let vector = simd.load(vector);
                least = simd.min(least, vector);
                largest = simd.max(largest, vector);
            }
            let largest = simd.largest(largest);
            let least = -simd.largest(simd.sub(simd.splat(0.0), least));
            let range = largest - least;
            let per_step = if range > 0.0 { 255.0 / range } else { 0.0 };
            // Of a row without a range one offset is all there is to say; what is not finite is to be seen behind.
            (*step, *offset) = if range.is_finite() { (range / 255.0, least) } else { (0.0, f32::NAN) };
            let (least, per_step) = (simd.splat(least), simd.splat(per_step));
            for (vector, codes) in vectors.chunks_exact(S::LANES).zip(codes.chunks_exact_mut(S::LANES)) {
                let code = simd.mul(simd.sub(simd.load(vector), least), per_step);
                // SAFETY: the slice has as many bytes as the vector lanes.
                unsafe { simd.store_bytes_at(codes.as_mut_ptr(), code) };
            }
            let mut last = [0u8; MAX_LANES];
            let code = simd.mul(simd.sub(rest_vector, least), per_step);
            // SAFETY: no vector has more lanes.
            unsafe { simd.store_bytes_at(last.as_mut_ptr(), code) };
            codes[vectors.len()..row.len()].copy_from_slice(&last[..rest.len()]);
        }
    }
}

/// What happens to each element of a product on its way out.
#[derive(Clone, Copy)]
pub(crate) enum Tail<'a> {
    /// A bias per column is added.
    Bias(&'a [f32]),
    /// A bias per column, then GELU.
    Gelu(&'a [f32]),
    /// A bias per column; then it is added to the target.
    Residual(&'a [f32]),
}

/// `output = tail(rows · weightᵀ)` on this thread, row-major without gaps.
pub(crate) fn product(
    path: SimdPath,
    dots: DotPath,
    rows: &QuantisedRows,
    weight: &QuantisedWeight,
    tail: Tail,
    output: &mut [f32],
) {
    assert_eq!(rows.columns, weight.in_features, "the factors' inner dimensions differ");
    assert_eq!(output.len(), rows.rows * weight.out_features, "the target has the wrong size");
    path.run(Product { dots, rows, weight, tail, output });
}

struct Product<'a> {
    dots: DotPath,
    rows: &'a QuantisedRows,
    weight: &'a QuantisedWeight,
    tail: Tail<'a>,
    output: &'a mut [f32],
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { dots, rows, weight, tail, output } = self;
        let groups = weight.groups();
        let panel_bytes = groups * GROUP * WIDTH;
        let panels = bytes_of(&weight.panels);
        let mut sums = [0i32; TILE_ROWS * WIDTH];
        // A panel stays in the first two levels of cache while all rows pass.
        for (panel, first_column) in (0..weight.out_features).step_by(WIDTH).enumerate() {
            let columns = WIDTH.min(weight.out_features - first_column);
            let b = panels[panel * panel_bytes..][..panel_bytes].as_ptr().cast();
            for first_row in (0..rows.rows).step_by(TILE_ROWS) {
                let tile_rows = TILE_ROWS.min(rows.rows - first_row);
                let (codes, a_stride) = rows.codes_from(first_row);
                let a = codes[..tile_rows * a_stride].as_ptr();
                let tile = DotTile { groups, a, a_stride, b, sums: sums.as_mut_ptr() };
                // SAFETY: both slices are as long as the tile needs: a row's stride is at least its groups.
                unsafe { dots.tile(tile_rows, tile) };
                for (row, sums) in sums.chunks_exact(WIDTH).take(tile_rows).enumerate() {
                    let row = first_row + row;
                    let output = &mut output[row * weight.out_features + first_column..][..columns];
                    let (step, offset) = rows.scale_of(row);
                    let row = Row { sums, step, offset };
                    finish(simd, weight, tail, first_column, row, output);
                }
            }
        }
    }
}

/// The sums of one row of a tile, and how the row was rounded.
#[derive(Clone, Copy)]
struct Row<'a> {
    sums: &'a [i32],
    step: f32,
    offset: f32,
}

/// From sums of codes to the output. Without fused operations, so that the bits are those of every machine (but for GELU).
#[inline(always)]
fn finish<S: Simd>(
    simd: S,
    weight: &QuantisedWeight,
    tail: Tail,
    first_column: usize,
    row: Row,
    output: &mut [f32],
) {
    let (step, offset) = (simd.splat(row.step), simd.splat(row.offset));
    let (Tail::Bias(bias) | Tail::Gelu(bias) | Tail::Residual(bias)) = tail;
    let mut index = 0;
    for output in output.chunks_mut(S::LANES) {
        let column = first_column + index;
        // SAFETY: a row has a whole number of vectors.
        let sums = unsafe { simd.load_integers_at(row.sums[index..index + S::LANES].as_ptr()) };
        let product = simd.mul(sums, simd.mul(step, simd.load(&weight.steps[column..])));
        let constant =
            simd.add(simd.mul(offset, simd.load(&weight.sums[column..])), load_padded(simd, &bias[column..]));
        let mut value = simd.add(product, constant);
        if let Tail::Gelu(_) = tail {
            value = elementary::gelu(simd, value);
        }
        if let Tail::Residual(_) = tail {
            value = simd.add(load_padded(simd, output), value);
        }
        if output.len() < S::LANES {
            simd.store_partial(output, value)
        } else {
            simd.store(output, value)
        }
        index += S::LANES;
    }
}

/// A vector from the start of a slice, filled up with zeros where that is shorter.
#[inline(always)]
fn load_padded<S: Simd>(simd: S, values: &[f32]) -> S::V {
    if values.len() < S::LANES { simd.load_partial(values, 0.0) } else { simd.load(values) }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{self, assert_close, noise, sizes, widen};
    use super::*;

    fn run(path: SimdPath, dots: DotPath, x: &[f32], weight: &QuantisedWeight, tail: Tail) -> Vec<f32> {
        let rows = QuantisedRows::new(path, x, weight.in_features);
        let mut output = vec![0.25; rows.rows * weight.out_features];
        product(path, dots, &rows, weight, tail, &mut output);
        output
    }

    #[test]
    fn products_in_bytes_are_the_same_bits_on_every_path_and_near_the_exact_ones() {
        for (rows, columns, outputs) in sizes([(1, 1, 1), (5, 7, 3), (13, 70, 45), (26, 192, 64)]) {
            let (x, bias) = (noise(rows * columns, 1), noise(outputs, 3));
            let weight = noise(outputs * columns, 2);
            let packed = QuantisedWeight::new(&weight, outputs, columns);
            let exact = naive::linear(columns, &widen(&x), &widen(&weight), &widen(&bias));
            // Half a step of 1/255 of the range of x and of 1/127 of the weight, for each of the terms, at worst.
            let tolerance = 0.5 * columns as f64 * (2.0 / 255.0 + 1.0 / 127.0);
            let added = exact.iter().map(|y| 0.25 + y).collect();
            for (tail, expected) in [(Tail::Bias(&bias), exact), (Tail::Residual(&bias), added)] {
                let reference = run(SimdPath::available()[0], DotPath::Portable, &x, &packed, tail);
                assert_close(&reference, &expected, tolerance.min(0.01 * columns as f64), "in bytes");
                for path in SimdPath::available() {
                    assert_eq!(run(path, DotPath::detect(), &x, &packed, tail), reference, "{path:?}");
                }
            }
            let activated = run(SimdPath::detect(), DotPath::detect(), &x, &packed, Tail::Gelu(&bias));
            let before = run(SimdPath::detect(), DotPath::detect(), &x, &packed, Tail::Bias(&bias));
            assert_close(&activated, &naive::gelu(&widen(&before)), 2e-7, "GELU behind it");
        }
    }

    #[test]
    fn a_row_that_is_not_finite_spoils_no_other() {
        let weight = QuantisedWeight::new(&noise(8 * 40, 1), 8, 40);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(3 * 40, 2);
            x[40..80].fill(bad);
            let y = run(SimdPath::detect(), DotPath::detect(), &x, &weight, Tail::Bias(&[0.0; 8]));
            assert!(y[8..16].iter().all(|y| y.is_nan()), "{bad}");
            assert!(y[..8].iter().chain(&y[16..]).all(|y| y.is_finite()), "{bad}");
        }
    }
}
