//! The right factor of a matrix product in panels as wide as a register tile, in f32 or as pairs of bf16.

use rayon::prelude::*;

use super::bf16::{Factors, pair_across, pair_along};
use super::matmul::Matrix;
use super::scratch::Scratch;
use super::simd::{Kernel, Simd, SimdPath, TILE_VECTORS};

/// The right factor of a product, cut into panels of `width` columns, each stored row after row (one row of a panel
/// is contiguous; of bf16, one row of pairs); the last panel is filled up with zeros.
pub(crate) struct PackedPanels<'a> {
    pub(crate) factors: Factors,
    pub(crate) data: &'a [f32],
    pub(crate) depth: usize,
    pub(crate) columns: usize,
    pub(crate) width: usize,
}

/// Floats needed to pack a matrix of `depth` rows; for bf16, [`Factors::places`] of them.
pub(crate) fn packed_len(path: SimdPath, depth: usize, columns: usize) -> usize {
    columns.div_ceil(path.tile_columns()) * path.tile_columns() * depth
}

impl<'a> PackedPanels<'a> {
    /// Packs on all cores. `buffer` needs [`packed_len`] floats.
    pub(crate) fn pack(path: SimdPath, matrix: Matrix, buffer: &'a mut [f32]) -> Self {
        Self::pack_as(Factors::F32, path, matrix, buffer)
    }

    /// As [`PackedPanels::pack`], rounded.
    pub(crate) fn pack_as(factors: Factors, path: SimdPath, matrix: Matrix, buffer: &'a mut [f32]) -> Self {
        let width = path.tile_columns();
        let places = factors.places(matrix.rows);
        let buffer = &mut buffer[..packed_len(path, places, matrix.columns)];
        if places > 0 {
            let panels = buffer.par_chunks_exact_mut(width * places).enumerate();
            panels.for_each(|(index, panel)| {
                let first = index * width;
                match factors {
                    Factors::F32 => path.run(PackPanel { matrix, first, panel }),
                    Factors::Bf16 => path.run(PackPairs { matrix, first, panel }),
                }
            });
        }
        Self { factors, data: buffer, depth: matrix.rows, columns: matrix.columns, width }
    }
}

/// Copies the columns of a matrix from `first` on into one panel.
pub(crate) struct PackPanel<'a> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) first: usize,
    pub(crate) panel: &'a mut [f32],
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { matrix, first, panel } = self;
        let width = TILE_VECTORS * S::LANES;
        let columns = width.min(matrix.columns - first);
        if columns < width {
            panel.fill(0.0);
        }
        if matrix.column_stride == 1 {
            for (depth, target) in panel.chunks_exact_mut(width).enumerate() {
                let start = depth * matrix.row_stride + first;
                target[..columns].copy_from_slice(&matrix.data[start..start + columns]);
            }
            return;
        }
        assert_eq!(matrix.row_stride, 1, "a matrix must be contiguous along rows or columns");
        // Columns are contiguous in memory: transpose, whole blocks of 8 x 8 first.
        let whole_columns = columns / 8 * 8;
        let whole_depth = matrix.rows / 8 * 8;
        let at = |depth: usize, column: usize| (first + column) * matrix.column_stride + depth;
        for depth in (0..whole_depth).step_by(8) {
            for column in (0..whole_columns).step_by(8) {
                let source = &matrix.data[at(depth, column)..at(depth + 7, column + 7) + 1];
                let target = &mut panel[depth * width + column..(depth + 7) * width + column + 8];
                // SAFETY: both slices were just cut to reach to the block's last element.
                unsafe {
                    simd.transpose_8x8(source.as_ptr(), matrix.column_stride, target.as_mut_ptr(), width);
                }
            }
        }
        for column in 0..columns {
            let from = if column < whole_columns { whole_depth } else { 0 };
            for depth in from..matrix.rows {
                panel[depth * width + column] = matrix.data[at(depth, column)];
            }
        }
    }
}

/// As [`PackPanel`], in pairs of rows.
struct PackPairs<'a> {
    matrix: Matrix<'a>,
    first: usize,
    panel: &'a mut [f32],
}

impl Kernel for PackPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { matrix, first, panel } = self;
        let width = TILE_VECTORS * S::LANES;
        let columns = width.min(matrix.columns - first);
        if matrix.column_stride == 1 {
            let row = |depth: usize| &matrix.data[depth * matrix.row_stride + first..][..columns];
            for (place, target) in panel.chunks_exact_mut(width).enumerate() {
                let second = (2 * place + 1 < matrix.rows).then(|| row(2 * place + 1));
                pair_across(row(2 * place), second, &mut target[..columns]);
                target[columns..].fill(0.0);
            }
            return;
        }
        // Pairs lie side by side in memory: make them, then transpose.
        let places = Factors::Bf16.places(matrix.rows);
        let mut pairs = Scratch::take(places * columns);
        for (column, target) in pairs.chunks_exact_mut(places.max(1)).enumerate() {
            pair_along(&matrix.data[(first + column) * matrix.column_stride..][..matrix.rows], target);
        }
        let matrix = Matrix::row_major(&pairs, columns, places).transposed();
        PackPanel { matrix, first: 0, panel }.run(simd);
    }
}
