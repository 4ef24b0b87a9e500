//! Bilinear resampling of score grids, separable, with gradient. Resizing of images and label maps is left to
//! `vitpcm-masks`.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::resize::{Between, Taps};
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// The sampling positions of a resized grid.
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
    let (_, height, width, _) = scores.dims4()?;
    if height == 0 || width == 0 || out_height == 0 || out_width == 0 {
        bail!("resize_grid: cannot resize {height} x {width} to {out_height} x {out_width}");
    }
    let rows = sampling_matrix(height, out_height, rule);
    let columns = sampling_matrix(width, out_width, rule);
    if run_on_cpu(&[scores]) {
        let op =
            Resize { rows: Taps::from_matrix(&rows, height), columns: Taps::from_matrix(&columns, width) };
        return scores.contiguous()?.apply_op1(op);
    }
    let rows = Tensor::from_vec(rows, (out_height, height), scores.device())?;
    let columns = Tensor::from_vec(columns, (out_width, width), scores.device())?;
    composed::resample(scores, &rows, &columns)
}

/// Two passes, rows then columns; the gradient runs them backwards with transposed taps.
struct Resize {
    rows: Taps,
    columns: Taps,
}

impl CustomOp1 for Resize {
    fn name(&self) -> &'static str {
        "resize-grid"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (batch, _, width, classes) = layout.shape().dims4()?;
        let (out_height, out_width) = (self.rows.outputs(), self.columns.outputs());
        let mut between = output(batch * out_height * width * classes);
        self.rows.apply(width * classes, floats(storage, layout)?, &mut between);
        let mut resized = output(batch * out_height * out_width * classes);
        self.columns.apply(classes, &between, &mut resized);
        Ok((CpuStorage::F32(resized), (batch, out_height, out_width, classes).into()))
    }

    fn bwd(&self, scores: &Tensor, _resized: &Tensor, grad_resized: &Tensor) -> Result<Option<Tensor>> {
        let (batch, _, width, classes) = scores.dims4()?;
        let grad_resized = grad_resized.contiguous()?;
        let mut between = output(batch * self.rows.outputs() * width * classes);
        self.columns.transposed().apply(classes, Floats::of(&grad_resized)?.get()?, &mut between);
        let mut grad_scores = output(scores.elem_count());
        self.rows.transposed().apply(width * classes, &between, &mut grad_scores);
        Ok(Some(tensor(grad_scores, scores.dims())?))
    }
}

/// The matrix `[to, from]` that resamples one axis; every row sums to 1.
pub(crate) fn sampling_matrix(from: usize, to: usize, rule: ResizeRule) -> Vec<f32> {
    let mut matrix = vec![0f32; to * from];
    for (position, row) in matrix.chunks_exact_mut(from).enumerate() {
        match rule {
            ResizeRule::HalfPixel if to < from => fill_triangle(row, position, from as f64 / to as f64),
            ResizeRule::HalfPixel | ResizeRule::HalfPixelUnfiltered => {
                let source = (position as f64 + 0.5) * from as f64 / to as f64 - 0.5;
                fill_between_two(row, Between::at(source, from));
            }
            ResizeRule::AlignCorners => {
                fill_between_two(row, Between::corners(position, to, from));
            }
        }
    }
    matrix
}

fn fill_between_two(row: &mut [f32], Between { first, second, share }: Between) {
    row[first] += (1.0 - share) as f32;
    row[second] += share as f32;
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
