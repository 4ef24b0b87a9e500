//! Linear layers in 8-bit integers, for inference. A weight is rounded once, symmetrically, with one step per output; the
//! rows that meet it are rounded as they come, each with its own step and offset, so that a row with a few massive activations
//! spoils no other. Sums of products are exact in 32 bits: every kernel, on any number of threads, finds the same ones.

use rayon::prelude::*;

use super::elementary;
use super::scratch::{Scratch, bytes_of, bytes_of_mut};
use super::simd::{Kernel, MAX_LANES, Simd, SimdPath};

/// Columns of a packed panel and of a register tile.
pub(crate) const WIDTH: usize = 32;
/// Rows of a register tile.
pub(crate) const TILE_ROWS: usize = 12;
/// Neighbours in a sum that one lane of an instruction multiplies and adds.
pub(crate) const GROUP: usize = 4;

/// The instructions that multiply bytes, of those that the running machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DotPath {
    /// AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni512,
    /// AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni256,
    /// Plain Rust.
    Portable,
}

impl DotPath {
    /// The fastest that the machine has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
                return Self::Vnni512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni") {
                return Self::Vnni256;
            }
        }
        Self::Portable
    }

    /// Whether the machine has instructions for it, so that bytes are faster than floats.
    pub(crate) fn is_fast(self) -> bool {
        self != Self::Portable
    }

    /// Writes the sums of one register tile, [`WIDTH`] to a row.
    ///
    /// # Safety
    /// `a` must be readable for `rows` rows of `groups · GROUP` bytes, `a_stride` apart, `b` for `groups · GROUP · WIDTH`
    /// bytes and `sums` writable for `rows · WIDTH` integers; `rows` is 1 to [`TILE_ROWS`].
    #[inline(always)]
    pub(crate) unsafe fn tile(self, rows: usize, tile: DotTile) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `detect` saw the feature; for the rest the caller vouches.
            Self::Vnni512 => unsafe { x86::tile_512(rows, tile) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Vnni256 => unsafe { x86::tile_256(rows, tile) },
            // SAFETY: the caller vouches.
            Self::Portable => unsafe { tile_portable(rows, tile) },
        }
    }
}

/// Where a tile's operands lie.
#[derive(Clone, Copy)]
pub(crate) struct DotTile {
    /// Groups in the sum.
    pub(crate) groups: usize,
    /// Unsigned bytes, row after row.
    pub(crate) a: *const u8,
    pub(crate) a_stride: usize,
    /// Signed bytes of one panel: groups, in them columns, in them [`GROUP`] bytes.
    pub(crate) b: *const i8,
    pub(crate) sums: *mut i32,
}

/// What every kernel must equal.
///
/// # Safety
/// As [`DotPath::tile`].
unsafe fn tile_portable(rows: usize, tile: DotTile) {
    for row in 0..rows {
        let mut sums = [0i32; WIDTH];
        for group in 0..tile.groups {
            // SAFETY: within what the caller vouches for; arrays of bytes need no alignment.
            let (a, b) = unsafe {
                let a = tile.a.add(row * tile.a_stride + group * GROUP).cast::<[u8; GROUP]>().read();
                (a, tile.b.add(group * GROUP * WIDTH).cast::<[[i8; GROUP]; WIDTH]>().read())
            };
            for (sum, b) in sums.iter_mut().zip(b) {
                for (a, b) in a.into_iter().zip(b) {
                    *sum += i32::from(a) * i32::from(b);
                }
            }
        }
        // SAFETY: the caller vouches for so many integers.
        unsafe { tile.sums.add(row * WIDTH).cast::<[i32; WIDTH]>().write_unaligned(sums) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{DotTile, GROUP, WIDTH};

    /// # Safety
    /// As [`super::DotPath::tile`], and the machine must have AVX-512F and AVX-512 VNNI.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn tile_512(rows: usize, tile: DotTile) {
        macro_rules! of_rows {
            ($($rows:literal)*) => {
                match rows {
                    // SAFETY: passed on from the caller.
                    $($rows => unsafe { rows_512::<$rows>(tile) },)*
                    // SAFETY: the caller keeps rows between 1 and TILE_ROWS, all of which are listed.
                    _ => unsafe { std::hint::unreachable_unchecked() },
                }
            };
        }
        of_rows!(1 2 3 4 5 6 7 8 9 10 11 12)
    }

    /// # Safety
    /// As [`tile_512`], for `ROWS` rows.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn rows_512<const ROWS: usize>(tile: DotTile) {
        let DotTile { groups, a, a_stride, b, sums } = tile;
        let mut totals = [[_mm512_setzero_si512(); 2]; ROWS];
        // SAFETY: the caller vouches for every address formed here.
        unsafe {
            for group in 0..groups {
                let b = b.add(group * GROUP * WIDTH);
                let right = [_mm512_loadu_si512(b.cast()), _mm512_loadu_si512(b.add(64).cast())];
                for (row, totals) in totals.iter_mut().enumerate() {
                    let four = a.add(row * a_stride + group * GROUP).cast::<i32>().read_unaligned();
                    let left = _mm512_set1_epi32(four);
                    totals[0] = _mm512_dpbusd_epi32(totals[0], left, right[0]);
                    totals[1] = _mm512_dpbusd_epi32(totals[1], left, right[1]);
                }
            }
            for (row, totals) in totals.iter().enumerate() {
                _mm512_storeu_si512(sums.add(row * WIDTH).cast(), totals[0]);
                _mm512_storeu_si512(sums.add(row * WIDTH + 16).cast(), totals[1]);
            }
        }
    }

    /// The kernel of 256 bits, for either encoding of its one instruction.
    macro_rules! tile_256 {
        ($tile:ident, $rows_of:ident, $features:literal, $dot:ident) => {
            /// # Safety
            /// As [`super::DotPath::tile`], and the machine must have the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $tile(rows: usize, tile: DotTile) {
                // Sixteen registers hold six rows by sixteen columns.
                for first in (0..rows).step_by(6) {
                    for half in 0..2 {
                        // SAFETY: a part of the caller's tile.
                        unsafe {
                            let part = DotTile {
                                a: tile.a.add(first * tile.a_stride),
                                b: tile.b.add(half * 64),
                                sums: tile.sums.add(first * WIDTH + half * 16),
                                ..tile
                            };
                            match rows - first {
                                1 => $rows_of::<1>(part),
                                2 => $rows_of::<2>(part),
                                3 => $rows_of::<3>(part),
                                4 => $rows_of::<4>(part),
                                5 => $rows_of::<5>(part),
                                _ => $rows_of::<6>(part),
                            }
                        }
                    }
                }
            }

            /// # Safety
            /// As the tile, for `ROWS` rows and half of its columns.
            #[target_feature(enable = $features)]
            unsafe fn $rows_of<const ROWS: usize>(tile: DotTile) {
                let DotTile { groups, a, a_stride, b, sums } = tile;
                let mut totals = [[_mm256_setzero_si256(); 2]; ROWS];
                // SAFETY: the caller vouches for every address formed here.
                unsafe {
                    for group in 0..groups {
                        let b = b.add(group * GROUP * WIDTH);
                        let right = [_mm256_loadu_si256(b.cast()), _mm256_loadu_si256(b.add(32).cast())];
                        for (row, totals) in totals.iter_mut().enumerate() {
                            let four = a.add(row * a_stride + group * GROUP).cast::<i32>().read_unaligned();
                            let left = _mm256_set1_epi32(four);
                            totals[0] = $dot(totals[0], left, right[0]);
                            totals[1] = $dot(totals[1], left, right[1]);
                        }
                    }
                    for (row, totals) in totals.iter().enumerate() {
                        _mm256_storeu_si256(sums.add(row * WIDTH).cast(), totals[0]);
                        _mm256_storeu_si256(sums.add(row * WIDTH + 8).cast(), totals[1]);
                    }
                }
            }
        };
    }
    tile_256!(tile_256, rows_256, "avx2,avxvnni", _mm256_dpbusd_avx_epi32);
    // The same kernel on machines with AVX-512 alone, so that it can be tested there.
    #[cfg(test)]
    tile_256!(tile_256_of_avx512, rows_256_of_avx512, "avx2,avx512vl,avx512vnni", _mm256_dpbusd_epi32);
}

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

    type TileFunction = unsafe fn(usize, DotTile);

    /// Every kernel that the machine can run.
    fn kernels() -> Vec<TileFunction> {
        let mut kernels: Vec<TileFunction> = vec![tile_portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512vnni") {
                kernels.push(x86::tile_512);
            }
            if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl") {
                kernels.push(x86::tile_256_of_avx512);
            }
            if is_x86_feature_detected!("avxvnni") {
                kernels.push(x86::tile_256);
            }
        }
        kernels
    }

    #[test]
    fn every_kernel_finds_the_same_sums_of_bytes() {
        let bytes =
            |len: usize, seed: u64| noise(len, seed).iter().map(|x| (x * 128.0) as i8).collect::<Vec<_>>();
        for groups in sizes([0, 1, 3, 96, 400]) {
            let stride = groups * GROUP + 8;
            // The largest codes as well: sums of pairs must not saturate on the way.
            for (a, b) in [
                (bytes(TILE_ROWS * stride, 1), bytes(groups * GROUP * WIDTH, 2)),
                (vec![-1; TILE_ROWS * stride], vec![127; groups * GROUP * WIDTH]),
                (vec![-1; TILE_ROWS * stride], vec![-127; groups * GROUP * WIDTH]),
            ] {
                for rows in 1..=TILE_ROWS {
                    let run = |kernel: TileFunction| {
                        let mut sums = vec![i32::MIN; TILE_ROWS * WIDTH];
                        let (a, b) = (a.as_ptr().cast(), b.as_ptr());
                        let tile = DotTile { groups, a, a_stride: stride, b, sums: sums.as_mut_ptr() };
                        // SAFETY: the buffers are of the tile's size, and the machine has the instructions.
                        unsafe { kernel(rows, tile) };
                        sums
                    };
                    for kernel in kernels() {
                        assert_eq!(run(kernel), run(tile_portable), "{rows} rows, {groups} groups");
                    }
                }
            }
        }
    }

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
