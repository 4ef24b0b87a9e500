//! Softmax over the last dimension of f32 scores, and cross entropy.

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

/// Rows of `classes` logits and targets, f32, to a loss each.
pub(crate) fn cross_entropy(classes: usize, logits: &View<'_>, targets: &View<'_>) -> Result<Array> {
    let rows = logits.len / classes.max(1);
    let losses = Array::new(&logits.device, DType::F32, rows)?;
    let arguments = [
        Argument::Pointer(logits.pointer),
        Argument::Pointer(targets.pointer),
        Argument::Pointer(losses.pointer),
        Argument::Long(rows as i64),
        Argument::Int(classes as i32),
    ];
    // SAFETY: logits and targets are `rows` rows of `classes`, the losses `rows`.
    unsafe { launch(&logits.device, SOFTMAX, "cross_entropy", Threads::warp_a_row(rows), &arguments) }?;
    Ok(losses)
}

/// The gradient of the logits, by logits, targets and the gradient of the losses.
pub(crate) fn cross_entropy_backward(classes: usize, views: &[View<'_>; 3]) -> Result<Array> {
    let [logits, targets, grad_losses] = views;
    let rows = logits.len / classes.max(1);
    let grad_logits = Array::new(&logits.device, DType::F32, logits.len)?;
    let arguments = [
        Argument::Pointer(logits.pointer),
        Argument::Pointer(targets.pointer),
        Argument::Pointer(grad_losses.pointer),
        Argument::Pointer(grad_logits.pointer),
        Argument::Long(rows as i64),
        Argument::Int(classes as i32),
    ];
    let name = "cross_entropy_backward";
    // SAFETY: logits, targets and the gradient are `rows` rows of `classes`, the losses' gradient `rows`.
    unsafe { launch(&logits.device, SOFTMAX, name, Threads::warp_a_row(rows), &arguments) }?;
    Ok(grad_logits)
}
