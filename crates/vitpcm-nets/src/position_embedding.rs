//! Position embeddings for any grid, resized bicubically from the pretraining grid; the class token's embedding is
//! kept. Equal to PyTorch's `interpolate(mode="bicubic", align_corners=False, antialias=False)`.

use candle_core::{Device, Tensor};

use crate::error::{NetsError, Result};
use crate::variants::Grid;

/// The free parameter of the cubic kernel (Keys 1981); PyTorch's value.
const CUBIC_A: f64 = -0.75;

/// Resizes position embeddings to a grid. Written as two matrix products, so that gradients flow.
///
/// # Shapes
/// positions `[1, 1 + G·G, D]`; result `[1, 1 + rows·columns, D]`.
pub fn resize_position_embedding(positions: &Tensor, grid: Grid) -> Result<Tensor> {
    let (_, num_positions, width) = positions.dims3()?;
    let side = (num_positions.saturating_sub(1)).isqrt();
    if side == 0 || 1 + side * side != num_positions {
        let reason = format!("{num_positions} position embeddings; expected one more than a square number");
        return Err(NetsError::BadConfig { reason });
    }
    if grid.rows == side && grid.columns == side {
        return Ok(positions.clone());
    }
    let device = positions.device();
    let class_part = positions.narrow(1, 0, 1)?;
    let patches = positions.narrow(1, 1, side * side)?.contiguous()?;

    let rows = bicubic_matrix(side, grid.rows, device)?.to_dtype(positions.dtype())?;
    let columns = bicubic_matrix(side, grid.columns, device)?.to_dtype(positions.dtype())?;
    let stretched = rows.matmul(&patches.reshape((side, side * width))?)?;
    let stretched = stretched.reshape((grid.rows, side, width))?;
    let resized = columns
        .broadcast_as((grid.rows, grid.columns, side))?
        .contiguous()?
        .matmul(&stretched)?
        .reshape((1, grid.num_cells(), width))?;
    Ok(Tensor::cat(&[&class_part, &resized], 1)?)
}

/// The matrix `[to, from]` that resamples one axis.
fn bicubic_matrix(from: usize, to: usize, device: &Device) -> candle_core::Result<Tensor> {
    let mut matrix = vec![0f32; to * from];
    let last = from as isize - 1;
    for (position, row) in matrix.chunks_exact_mut(from).enumerate() {
        let source = (position as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let before = source.floor();
        let share = source - before;
        let weights = [outer(1.0 + share), inner(share), inner(1.0 - share), outer(2.0 - share)];
        for (tap, weight) in weights.into_iter().enumerate() {
            // The edge value is repeated, as in PyTorch.
            let index = (before as isize - 1 + tap as isize).clamp(0, last) as usize;
            row[index] += weight as f32;
        }
    }
    Tensor::from_vec(matrix, (to, from), device)
}

/// The cubic kernel at a distance of up to one.
fn inner(x: f64) -> f64 {
    ((CUBIC_A + 2.0) * x - (CUBIC_A + 3.0)) * x * x + 1.0
}

/// The cubic kernel at a distance between one and two.
fn outer(x: f64) -> f64 {
    ((CUBIC_A * x - 5.0 * CUBIC_A) * x + 8.0 * CUBIC_A) * x - 4.0 * CUBIC_A
}
