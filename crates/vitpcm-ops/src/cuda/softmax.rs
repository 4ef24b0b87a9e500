//! Softmax over the last dimension of f32 scores.

use candle_core::{DType, Result};

use super::launch::{Argument, SOFTMAX, Threads, launch};
use super::{Array, View};

pub(crate) fn forward(columns: usize, x: &View<'_>) -> Result<Array> {
    let rows = x.len / columns.max(1);
    let y = Array::new(&x.device, DType::F32, x.len)?;
    let arguments = [
        Argument::Pointer(x.pointer),
        Argument::Pointer(y.pointer),
        Argument::Long(rows as i64),
        Argument::Int(columns as i32),
    ];
    // SAFETY: x and y are `rows` rows of `columns`.
    unsafe { launch(&x.device, SOFTMAX, "class_softmax", Threads::warp_a_row(rows), &arguments) }?;
    Ok(y)
}

pub(crate) fn backward(columns: usize, y: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let rows = y.len / columns.max(1);
    let grad_x = Array::new(&y.device, DType::F32, y.len)?;
    let arguments = [
        Argument::Pointer(y.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(grad_x.pointer),
        Argument::Long(rows as i64),
        Argument::Int(columns as i32),
    ];
    // SAFETY: all three are `rows` rows of `columns`.
    unsafe { launch(&y.device, SOFTMAX, "class_softmax_backward", Threads::warp_a_row(rows), &arguments) }?;
    Ok(grad_x)
}
