//! Bilinear resampling of score grids, as two products with small sampling matrices, so that the gradient
//! comes for free. Resizing of images and label maps is left to `vitpcm-masks`.

use candle_core::{Device, Result, Tensor, bail};

/// Where the samples of a resized grid lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeRule {
    /// Cells are areas, sampled at their centres; shrinking widens the triangle filter so that every cell
    /// counts (PyTorch: `align_corners=False, antialias=True`; TensorFlow: `antialias=True`).
    HalfPixel,
    /// As [`ResizeRule::HalfPixel`] but always between the two nearest cells, even when shrinking
    /// (PyTorch: `align_corners=False`; TensorFlow's default).
    HalfPixelUnfiltered,
    /// Cells are points; the corner cells of both grids coincide (PyTorch: `align_corners=True`).
    AlignCorners,
}

/// Resamples each class of a grid bilinearly.
///
/// # Shapes
/// scores `[B, H, W, C]`; result `[B, out_height, out_width, C]`.
pub fn resize_grid(scores: &Tensor, out_height: usize, out_width: usize, rule: ResizeRule) -> Result<Tensor> {
    let (batch, height, width, classes) = scores.dims4()?;
    if height == 0 || width == 0 || out_height == 0 || out_width == 0 {
        bail!("resize_grid: cannot resize {height} x {width} to {out_height} x {out_width}");
    }
    let mut resized = scores.contiguous()?;
    if out_height != height {
        let rows = sampling_matrix(height, out_height, rule, scores.device())?;
        let by_row = resized.reshape((batch, height, width * classes))?;
        resized = rows
            .broadcast_as((batch, out_height, height))?
            .contiguous()?
            .matmul(&by_row)?;
    }
    if out_width != width {
        let columns = sampling_matrix(width, out_width, rule, scores.device())?;
        let by_column = resized.reshape((batch * out_height, width, classes))?;
        resized = columns
            .broadcast_as((batch * out_height, out_width, width))?
            .contiguous()?
            .matmul(&by_column)?;
    }
    resized.reshape((batch, out_height, out_width, classes))
}

/// The matrix `[to, from]` that resamples one axis; every row sums to 1.
fn sampling_matrix(from: usize, to: usize, rule: ResizeRule, device: &Device) -> Result<Tensor> {
    let mut matrix = vec![0f32; to * from];
    for (position, row) in matrix.chunks_exact_mut(from).enumerate() {
        match rule {
            ResizeRule::HalfPixel if to < from => fill_triangle(row, position, from as f64 / to as f64),
            ResizeRule::HalfPixel | ResizeRule::HalfPixelUnfiltered => {
                let source = (position as f64 + 0.5) * from as f64 / to as f64 - 0.5;
                fill_between_two(row, source);
            }
            ResizeRule::AlignCorners => {
                let step = if to > 1 {
                    (from - 1) as f64 / (to - 1) as f64
                } else {
                    0.0
                };
                fill_between_two(row, position as f64 * step);
            }
        }
    }
    Tensor::from_vec(matrix, (to, from), device)
}

fn fill_between_two(row: &mut [f32], source: f64) {
    let last = row.len() - 1;
    let source = source.clamp(0.0, last as f64);
    let before = source.floor() as usize;
    let share = source - before as f64;
    row[before] += (1.0 - share) as f32;
    row[(before + 1).min(last)] += share as f32;
}

/// A triangle of half-width `scale` around the centre of output cell `position`, normalised within the grid.
fn fill_triangle(row: &mut [f32], position: usize, scale: f64) {
    let centre = (position as f64 + 0.5) * scale;
    let weight = |index: usize| (1.0 - ((index as f64 + 0.5 - centre) / scale).abs()).max(0.0);
    let total: f64 = (0..row.len()).map(weight).sum();
    for (index, value) in row.iter_mut().enumerate() {
        *value = (weight(index) / total) as f32;
    }
}
