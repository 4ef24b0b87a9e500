//! The matrix product: packed panels of the right factor, register tiles, and whatever follows the product (bias,
//! GELU) applied to each tile while it is in the first-level cache.
//!
//! The right factor is packed into panels as wide as a register tile (`packed_panels`); rows of the left factor are
//! broadcast.
//! Own code rather than a library because the tail can be fused, attention and the LSTM reuse the tiles on their
//! own scratch, and it runs nearer to the machine's peak.

use std::ops::Range;

use rayon::prelude::*;

use super::bf16::{Factors, pair_across, pair_along};
use super::elementary;
use super::packed_panels::PackedPanels;
use super::scratch::Scratch;
use super::shared_target::SharedTarget;
use super::simd::{Kernel, MAX_LANES, MulAdd, Onto, Simd, SimdPath, TILE_VECTORS, TileOperands};

/// The longest piece of the sum worked on at once: twelve rows of it stay in a 32 KiB first-level cache.
const DEPTH_BLOCK: usize = 512;

/// Panels passed over again and again by the rows of a block, in bytes: they stay in the second-level cache.
const PANELS_BYTES: usize = 384 << 10;

/// A matrix somewhere in a slice, addressed by strides.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix stored row after row without gaps.
    pub(crate) fn row_major(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// A matrix whose rows lie `row_stride` apart.
    pub(crate) fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let end = if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row_stride + columns };
        assert!(data.len() >= end, "a {rows} x {columns} matrix needs {end} floats, got {}", data.len());
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// One row of a matrix whose rows are contiguous.
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert_eq!(self.column_stride, 1);
        &self.data[row * self.row_stride..][..self.columns]
    }

    /// Some rows of a matrix whose rows are contiguous.
    pub(crate) fn rows_from(&self, first: usize, rows: usize) -> Self {
        assert_eq!(self.column_stride, 1);
        Self::strided(&self.data[first * self.row_stride..], rows, self.columns, self.row_stride)
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// What happens to each element of a product on its way out.
#[derive(Clone, Copy)]
pub(crate) enum Finish<'a> {
    /// Nothing.
    Keep,
    /// A bias per column is added, to what the target holds now.
    Bias(&'a [f32]),
    /// A bias per column, where there is one, then GELU.
    Gelu(Option<&'a [f32]>),
}

/// `c = finish(a · b)`, or `c += a · b`, on all cores; `c` is row-major without gaps.
pub(crate) fn matmul(path: SimdPath, a: Matrix, b: &PackedPanels, c: &mut [f32], onto: Onto, finish: Finish) {
    assert_eq!(a.columns, b.depth, "the factors' inner dimensions differ");
    assert_eq!(c.len(), a.rows * b.columns, "the target has the wrong size");
    if c.is_empty() {
        return;
    }
    let target = SharedTarget::new(c);
    let blocks = Blocks::new(path, a.rows, b);
    (0..blocks.count()).into_par_iter().with_max_len(1).for_each(|index| {
        let (rows, panels) = blocks.block(index);
        path.run(Block { a, b, target, rows, panels, onto, finish });
    });
}

/// As [`matmul`], on this thread alone.
pub(crate) fn matmul_here(
    path: SimdPath,
    a: Matrix,
    b: &PackedPanels,
    c: &mut [f32],
    onto: Onto,
    finish: Finish,
) {
    assert_eq!(a.columns, b.depth, "the factors' inner dimensions differ");
    assert_eq!(c.len(), a.rows * b.columns, "the target has the wrong size");
    if c.is_empty() {
        return;
    }
    let (rows, panels) = (0..a.rows, 0..b.columns.div_ceil(b.width));
    path.run(Block { a, b, target: SharedTarget::new(c), rows, panels, onto, finish });
}

/// The target cut into blocks of whole register tiles, enough of them to keep all threads busy to the end.
struct Blocks {
    rows: usize,
    tile_rows: usize,
    row_cuts: usize,
    panels: usize,
    panel_cuts: usize,
}

impl Blocks {
    fn new(path: SimdPath, rows: usize, b: &PackedPanels) -> Self {
        let threads = rayon::current_num_threads();
        let tile_rows = path.tile_rows();
        let row_tiles = rows.div_ceil(tile_rows);
        let panels = b.columns.div_ceil(b.width);
        // Eight tiles of rows to a block; then enough columns to a block for four blocks a thread.
        let row_cuts = row_tiles.div_ceil(8);
        let wanted = if threads == 1 { 1 } else { 4 * threads };
        let panel_cuts = wanted.div_ceil(row_cuts).clamp(1, panels);
        Self { rows, tile_rows, row_cuts, panels, panel_cuts }
    }

    fn count(&self) -> usize {
        self.row_cuts * self.panel_cuts
    }

    fn block(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let (row_cut, panel_cut) = (index / self.panel_cuts, index % self.panel_cuts);
        let row_tiles = self.rows.div_ceil(self.tile_rows);
        let row = |cut: usize| (cut * row_tiles / self.row_cuts * self.tile_rows).min(self.rows);
        let panel = |cut: usize| cut * self.panels / self.panel_cuts;
        (row(row_cut)..row(row_cut + 1), panel(panel_cut)..panel(panel_cut + 1))
    }
}

/// One thread's share of a product: some rows by some panels.
struct Block<'a> {
    a: Matrix<'a>,
    b: &'a PackedPanels<'a>,
    target: SharedTarget<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
    onto: Onto,
    finish: Finish<'a>,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.b.width;
        let factors = self.b.factors;
        // Depth in places of a float: pairs of bf16 count once.
        let whole_depth = factors.places(self.b.depth);
        let pieces = whole_depth.div_ceil(DEPTH_BLOCK).max(1);
        let mut left = LeftBlock::new(self.rows.len(), whole_depth.div_ceil(pieces));
        for piece in 0..pieces {
            let depth = piece * whole_depth / pieces..(piece + 1) * whole_depth / pieces;
            match factors {
                Factors::F32 => left.fill(self.a, self.rows.clone(), depth.clone()),
                Factors::Bf16 => left.fill_pairs(self.a, self.rows.clone(), depth.clone()),
            }
            let group = (PANELS_BYTES / (4 * width * depth.len().max(1))).max(1);
            for first_panel in self.panels.clone().step_by(group) {
                let end_panel = self.panels.end.min(first_panel + group);
                let first = first_panel * width;
                let columns = (end_panel * width).min(self.b.columns) - first;
                let c_row_stride = self.b.columns;
                let c = self.target.pointer(self.rows.start * c_row_stride + first);
                // SAFETY: blocks are disjoint parts of the target, and `LeftBlock` and `PackedPanels` are as long as
                // their sizes say.
                unsafe {
                    block_product_of(
                        simd,
                        factors,
                        BlockProduct {
                            rows: self.rows.len(),
                            columns,
                            depth: depth.len(),
                            a: left.data.as_ptr(),
                            a_row_stride: left.row_stride,
                            a_depth_stride: left.depth_stride,
                            b: self.b.data.as_ptr().add((first_panel * whole_depth + depth.start) * width),
                            b_panel_stride: whole_depth * width,
                            c,
                            c_row_stride,
                            onto: if piece == 0 { self.onto } else { Onto::Target },
                        },
                    );
                    if piece + 1 == pieces {
                        for row in 0..self.rows.len() {
                            let start = c.add(row * c_row_stride);
                            finish_row(
                                simd,
                                std::slice::from_raw_parts_mut(start, columns),
                                first,
                                self.finish,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// A product of a few rows with a few panels, done by one thread.
#[derive(Clone, Copy)]
pub(crate) struct BlockProduct {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
    /// Left factor: element (row, k) lies at `row · a_row_stride + k · a_depth_stride`.
    pub(crate) a: *const f32,
    pub(crate) a_row_stride: usize,
    pub(crate) a_depth_stride: usize,
    /// Right factor: packed panels, `b_panel_stride` floats from one to the next.
    pub(crate) b: *const f32,
    pub(crate) b_panel_stride: usize,
    pub(crate) c: *mut f32,
    pub(crate) c_row_stride: usize,
    pub(crate) onto: Onto,
}

/// Multiplies tile by tile; the rows of a tile stay in the first-level cache while the panels pass.
///
/// # Safety
/// `a` must be readable at every (row, k), `b` for every panel that `columns` reaches into, `c` writable for `rows`
/// rows of `columns` floats (and initialised when added to), and nobody else may touch that part of `c` meanwhile.
#[inline(always)]
pub(crate) unsafe fn block_product<S: Simd>(simd: S, product: BlockProduct) {
    // SAFETY: passed on from the caller.
    unsafe { block_product_of(simd, Factors::F32, product) }
}

/// # Safety
/// As [`block_product`], `depth` counting places of a float.
#[inline(always)]
unsafe fn block_product_of<S: Simd>(simd: S, factors: Factors, product: BlockProduct) {
    let width = TILE_VECTORS * S::LANES;
    for row in (0..product.rows).step_by(S::TILE_ROWS) {
        for (panel, column) in (0..product.columns).step_by(width).enumerate() {
            // SAFETY: the tile lies within what the caller vouches for.
            unsafe {
                let operands = TileOperands {
                    depth: product.depth,
                    a: product.a.add(row * product.a_row_stride),
                    a_row_stride: product.a_row_stride,
                    a_depth_stride: product.a_depth_stride,
                    b: product.b.add(panel * product.b_panel_stride),
                    c: product.c.add(row * product.c_row_stride + column),
                    c_row_stride: product.c_row_stride,
                    columns: width.min(product.columns - column),
                    onto: product.onto,
                };
                let rows = S::TILE_ROWS.min(product.rows - row);
                match factors {
                    Factors::F32 => simd.tile(rows, operands),
                    Factors::Bf16 => simd.tile_of_pairs(rows, operands),
                }
            }
        }
    }
}

/// A block of the left factor, copied so that its rows do not fall on the same cache sets (as rows a power of two
/// apart do) and no page is touched for one element.
struct LeftBlock {
    data: Scratch,
    row_stride: usize,
    depth_stride: usize,
}

impl LeftBlock {
    fn new(rows: usize, depth: usize) -> Self {
        let padded = |len: usize| len.next_multiple_of(32) + 16;
        let data = Scratch::take((rows * padded(depth)).max(depth * padded(rows)));
        Self { data, row_stride: 0, depth_stride: 0 }
    }

    fn fill(&mut self, a: Matrix, rows: Range<usize>, depth: Range<usize>) {
        let padded = |len: usize| len.next_multiple_of(32) + 16;
        if a.column_stride == 1 {
            (self.row_stride, self.depth_stride) = (padded(depth.len()), 1);
            for (row, target) in rows.zip(self.data.chunks_exact_mut(self.row_stride)) {
                let start = row * a.row_stride;
                target[..depth.len()].copy_from_slice(&a.data[start + depth.start..start + depth.end]);
            }
        } else {
            assert_eq!(a.row_stride, 1, "a matrix must be contiguous along rows or columns");
            (self.row_stride, self.depth_stride) = (1, padded(rows.len()));
            for (k, target) in depth.zip(self.data.chunks_exact_mut(self.depth_stride)) {
                let start = k * a.column_stride;
                target[..rows.len()].copy_from_slice(&a.data[start + rows.start..start + rows.end]);
            }
        }
    }

    /// As [`LeftBlock::fill`], in pairs; `depth` counts them.
    #[inline(always)]
    fn fill_pairs(&mut self, a: Matrix, rows: Range<usize>, depth: Range<usize>) {
        let padded = |len: usize| len.next_multiple_of(32) + 16;
        if a.column_stride == 1 {
            (self.row_stride, self.depth_stride) = (padded(depth.len()), 1);
            let (start, end) = (2 * depth.start, (2 * depth.end).min(a.columns));
            for (row, target) in rows.zip(self.data.chunks_exact_mut(self.row_stride)) {
                let row = row * a.row_stride;
                pair_along(&a.data[row + start..row + end], &mut target[..depth.len()]);
            }
        } else {
            assert_eq!(a.row_stride, 1, "a matrix must be contiguous along rows or columns");
            (self.row_stride, self.depth_stride) = (1, padded(rows.len()));
            let column = |k: usize| &a.data[k * a.column_stride..][rows.clone()];
            for (place, target) in depth.zip(self.data.chunks_exact_mut(self.depth_stride)) {
                let second = (2 * place + 1 < a.columns).then(|| column(2 * place + 1));
                pair_across(column(2 * place), second, &mut target[..rows.len()]);
            }
        }
    }
}

/// Applies the tail to columns `first..` of one row.
#[inline(always)]
fn finish_row<S: Simd>(simd: S, row: &mut [f32], first: usize, finish: Finish) {
    let (bias, activation) = match finish {
        Finish::Keep => return,
        Finish::Bias(bias) => (Some(bias), Activation::None),
        Finish::Gelu(bias) => (bias, Activation::Gelu),
    };
    if let Some(bias) = bias {
        let bias = &bias[first..first + row.len()];
        for (value, bias) in row.iter_mut().zip(bias) {
            *value += bias;
        }
    }
    if let Activation::Gelu = activation {
        let mut vectors = row.chunks_exact_mut(S::LANES);
        for vector in &mut vectors {
            let value = elementary::gelu(simd, simd.load(vector));
            simd.store(vector, value);
        }
        let rest = vectors.into_remainder();
        let value = elementary::gelu(simd, simd.load_partial(rest, 0.0));
        simd.store_partial(rest, value);
    }
}

enum Activation {
    None,
    Gelu,
}

/// One register tile: `ROWS` rows by two vectors of columns, the sum over `depth` floats or pairs held in registers.
///
/// # Safety
/// `operands.a` must be readable at every (row, k) of the tile, `b` for `depth` panel rows, and `c` writable for
/// `ROWS` rows of `columns` floats; `c` must be initialised when the product is added to it.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, M: MulAdd<S>, const ROWS: usize>(
    simd: S,
    mul_add: M,
    operands: TileOperands,
) {
    let TileOperands { depth, a, a_row_stride, a_depth_stride, b, c, c_row_stride, columns, onto } = operands;
    let width = TILE_VECTORS * S::LANES;
    let mut sums = [[simd.splat(0.0); TILE_VECTORS]; ROWS];
    // SAFETY: the caller vouches for every address formed here.
    unsafe {
        for k in 0..depth {
            let right = [simd.load_at(b.add(k * width)), simd.load_at(b.add(k * width + S::LANES))];
            let left = a.add(k * a_depth_stride);
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = simd.splat(*left.add(row * a_row_stride));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = mul_add.mul_add(simd, factor, right, *sum);
                }
            }
        }
        if columns == width {
            // Two plain loops, so that the compiler unrolls them and keeps the sums in registers.
            match onto {
                Onto::Nothing => {
                    for (row, &[left, right]) in sums.iter().enumerate() {
                        simd.store_at(c.add(row * c_row_stride), left);
                        simd.store_at(c.add(row * c_row_stride + S::LANES), right);
                    }
                }
                Onto::Target => {
                    for (row, &[left, right]) in sums.iter().enumerate() {
                        let target = c.add(row * c_row_stride);
                        simd.store_at(target, simd.add(left, simd.load_at(target)));
                        let target = target.add(S::LANES);
                        simd.store_at(target, simd.add(right, simd.load_at(target)));
                    }
                }
            }
            return;
        }
        let mut buffer = [[0.0f32; TILE_VECTORS * MAX_LANES]; ROWS];
        for (buffer, &[left, right]) in buffer.iter_mut().zip(&sums) {
            simd.store_at(buffer.as_mut_ptr(), left);
            simd.store_at(buffer.as_mut_ptr().add(S::LANES), right);
        }
        for (row, buffer) in buffer.iter().enumerate() {
            let target = c.add(row * c_row_stride);
            for (column, &value) in buffer[..columns].iter().enumerate() {
                match onto {
                    Onto::Nothing => *target.add(column) = value,
                    Onto::Target => *target.add(column) += value,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{noise, sizes};
    use super::*;
    use crate::cpu::packed_panels::packed_len;

    fn naive(a: Matrix, b: Matrix) -> Vec<f64> {
        let mut c = vec![0.0; a.rows * b.columns];
        for row in 0..a.rows {
            for column in 0..b.columns {
                for k in 0..a.columns {
                    let left = a.data[row * a.row_stride + k * a.column_stride];
                    let right = b.data[k * b.row_stride + column * b.column_stride];
                    c[row * b.columns + column] += f64::from(left) * f64::from(right);
                }
            }
        }
        c
    }

    #[test]
    fn products_of_any_size_and_orientation_equal_the_naive_sum() {
        for path in SimdPath::available() {
            let kinds = [Factors::F32, Factors::Bf16];
            for (factors, (m, k, n)) in kinds.into_iter().flat_map(|factors| {
                sizes([
                    (1, 1, 1),
                    (2, 3, 5),
                    (13, 64, 33),
                    (12, 8, 32),
                    (97, 1030, 21),
                    (40, 0, 7),
                    (25, 9, 100),
                ])
                .map(move |size| (factors, size))
            }) {
                // Rounded beforehand, so that rounding changes nothing.
                let noise_of = |len: usize, seed: u64| match factors {
                    Factors::F32 => noise(len, seed),
                    Factors::Bf16 => noise(len, seed)
                        .iter()
                        .map(|value| f32::from_bits(value.to_bits() & 0xffff_0000))
                        .collect(),
                };
                let (a, b) = (noise_of(m * k, 1), noise_of(k * n, 2));
                let lefts = [Matrix::row_major(&a, m, k), Matrix::row_major(&a, k, m).transposed()];
                let rights = [Matrix::row_major(&b, k, n), Matrix::row_major(&b, n, k).transposed()];
                let orientations = lefts.into_iter().flat_map(|left| rights.map(|right| (left, right)));
                for (left, right) in orientations {
                    let mut buffer = Scratch::take(packed_len(path, k, n));
                    let packed = PackedPanels::pack_as(factors, path, right, &mut buffer);
                    let bias = noise(n, 3);
                    let mut c = vec![f32::NAN; m * n];
                    matmul(path, left, &packed, &mut c, Onto::Nothing, Finish::Bias(&bias));
                    matmul(path, left, &packed, &mut c, Onto::Target, Finish::Keep);
                    for (index, (c, expected)) in c.iter().zip(naive(left, right)).enumerate() {
                        let expected = 2.0 * expected + f64::from(bias[index % n]);
                        assert!(
                            (f64::from(*c) - expected).abs() < 1e-6 * (k + 10) as f64,
                            "{path:?} {factors:?} {m} {k} {n}: {c} {expected}"
                        );
                    }
                }
            }
        }
    }
}
