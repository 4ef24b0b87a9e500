//! Layer norm of an f32 tensor, with f32 or bf16 output.

use candle_core::{DType, Result};

use super::column_sums::norm_sums;
use super::launch::{Argument, LAYER_NORM, Threads, kernel_for, launch};
use super::{Array, View};

/// Widest rows that the kernels support.
pub(crate) const MAX_COLUMNS: usize = 4096;

/// The kernel with enough registers for a row.
fn kernel(name: &str, columns: usize, dtype: DType) -> String {
    let width = match columns {
        0..=384 if columns.is_multiple_of(4) => "384",
        0..=1024 if columns.is_multiple_of(4) => "1024",
        _ => "any",
    };
    kernel_for(&format!("{name}_{width}"), dtype)
}

pub(crate) fn forward(
    x: &View<'_>,
    weight: &View<'_>,
    bias: &View<'_>,
    eps: f32,
    dtype: DType,
) -> Result<Array> {
    let (rows, columns) = (x.len / weight.len.max(1), weight.len);
    let y = Array::new(&x.device, dtype, x.len)?;
    let arguments = [
        Argument::Pointer(x.pointer),
        Argument::Pointer(weight.pointer),
        Argument::Pointer(bias.pointer),
        Argument::Pointer(y.pointer),
        Argument::Int(rows as i32),
        Argument::Int(columns as i32),
        Argument::Float(eps),
    ];
    // SAFETY: x and y are rows as long as weight and bias; the custom operation checks it.
    unsafe {
        launch(
            &x.device,
            LAYER_NORM,
            &kernel("layer_norm", columns, dtype),
            Threads::warp_a_row(rows),
            &arguments,
        )
    }?;
    Ok(y)
}

/// The gradient of x, including that of the residual path, and those of weight and bias, concatenated.
pub(crate) fn backward(
    x: &View<'_>,
    weight: &View<'_>,
    grad_y: &View<'_>,
    around: Option<&View<'_>>,
    eps: f32,
) -> Result<(Array, Array)> {
    let (rows, columns) = (x.len / weight.len.max(1), weight.len);
    let grad_x = Array::new(&x.device, DType::F32, x.len)?;
    let statistics = Array::new(&x.device, DType::F32, 2 * rows)?;
    let arguments = [
        Argument::Pointer(x.pointer),
        Argument::Pointer(weight.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(around.map_or(0, |around| around.pointer)),
        Argument::Pointer(grad_x.pointer),
        Argument::Pointer(statistics.pointer),
        Argument::Int(rows as i32),
        Argument::Int(columns as i32),
        Argument::Float(eps),
    ];
    let name = kernel("layer_norm_backward", columns, grad_y.dtype);
    // SAFETY: as in `forward`; the statistics are two numbers per row.
    unsafe { launch(&x.device, LAYER_NORM, &name, Threads::warp_a_row(rows), &arguments) }?;
    let parameters = norm_sums(x, &statistics.view(), grad_y, columns)?;
    Ok((grad_x, parameters))
}
