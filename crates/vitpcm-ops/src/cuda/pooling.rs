//! The maximum of each class over the grid.

use candle_core::{DType, Result};

use super::launch::{Argument, POOLING, Threads, launch};
use super::{Array, View};

/// The maxima and the cells they come from (u32), of scores `[images, cells, classes]`.
pub(crate) fn max_over_grid(cells: usize, classes: usize, scores: &View<'_>) -> Result<(Array, Array)> {
    let images = scores.len / (cells * classes).max(1);
    let pooled = Array::new(&scores.device, DType::F32, images * classes)?;
    let cells_of_maxima = Array::new(&scores.device, DType::U32, images * classes)?;
    let arguments = [
        Argument::Pointer(scores.pointer),
        Argument::Pointer(pooled.pointer),
        Argument::Pointer(cells_of_maxima.pointer),
        Argument::Int(cells as i32),
        Argument::Int(classes as i32),
    ];
    let threads = Threads::grid((images, 1), (32, 16));
    // SAFETY: the scores are images × cells × classes, the outputs images × classes.
    unsafe { launch(&scores.device, POOLING, "max_over_grid", threads, &arguments) }?;
    Ok((pooled, cells_of_maxima))
}

/// The gradient of the scores.
pub(crate) fn max_over_grid_backward(
    cells: usize,
    classes: usize,
    grad_pooled: &View<'_>,
    cells_of_maxima: &View<'_>,
) -> Result<Array> {
    let count = grad_pooled.len;
    let grad_scores = Array::zeros(&grad_pooled.device, count * cells)?;
    let arguments = [
        Argument::Pointer(grad_pooled.pointer),
        Argument::Pointer(cells_of_maxima.pointer),
        Argument::Pointer(grad_scores.pointer),
        Argument::Int(cells as i32),
        Argument::Int(classes as i32),
        Argument::Int(count as i32),
    ];
    // SAFETY: both inputs have `count` elements, the output `cells` times as many; the kernel checks the cells.
    unsafe {
        launch(&grad_pooled.device, POOLING, "max_over_grid_backward", Threads::each(count), &arguments)
    }?;
    Ok(grad_scores)
}
