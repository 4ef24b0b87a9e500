//! Cross entropy of logits on a grid with finer labels.

use candle_core::{DType, Result, bail};

use super::launch::{Argument, CROSS_ENTROPY, Threads, launch};
use super::{Array, View};
use crate::cpu::cross_entropy::LabelledGrid;

/// Most classes that the kernels support; labels are bytes.
const MAX_CLASSES: usize = 256;

fn sizes(shape: LabelledGrid) -> Result<Argument> {
    let LabelledGrid { grid: [height, width], size: [rows, columns], classes } = shape;
    if classes > MAX_CLASSES {
        bail!("cross_entropy: {classes} classes, expected at most {MAX_CLASSES}");
    }
    Ok(Argument::LabelledGrid([height, width, rows, columns, classes].map(|size| size as i32)))
}

/// One f32 loss per label.
pub(crate) fn forward(shape: LabelledGrid, logits: &View<'_>, labels: &View<'_>) -> Result<Array> {
    let labels = labels.clone().expect(DType::U8)?;
    let losses = Array::new(&logits.device, DType::F32, labels.len)?;
    let arguments = [
        Argument::Pointer(logits.pointer),
        Argument::Pointer(labels.pointer),
        Argument::Pointer(losses.pointer),
        sizes(shape)?,
        Argument::Long(labels.len as i64),
    ];
    let threads = Threads::warp_a_row(labels.len);
    // SAFETY: logits, labels and losses are for the same number of images, with the given sizes.
    unsafe { launch(&logits.device, CROSS_ENTROPY, "cross_entropy", threads, &arguments) }?;
    Ok(losses)
}

/// The gradient of the logits, from logits, labels and the gradient of the losses.
pub(crate) fn backward(shape: LabelledGrid, views: &[View<'_>; 3]) -> Result<Array> {
    let [logits, labels, grad_losses] = views;
    let (labels, grad_losses) = (labels.clone().expect(DType::U8)?, grad_losses.clone().expect(DType::F32)?);
    let num_points = logits.len / shape.classes.max(1);
    let grad_logits = Array::new(&logits.device, DType::F32, logits.len)?;
    let arguments = [
        Argument::Pointer(logits.pointer),
        Argument::Pointer(labels.pointer),
        Argument::Pointer(grad_losses.pointer),
        Argument::Pointer(grad_logits.pointer),
        sizes(shape)?,
        Argument::Long(num_points as i64),
    ];
    let threads = Threads::warp_a_row(num_points);
    // SAFETY: as for `forward`; the gradient is as large as the logits.
    unsafe { launch(&logits.device, CROSS_ENTROPY, "cross_entropy_backward", threads, &arguments) }?;
    Ok(grad_logits)
}
