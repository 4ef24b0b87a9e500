//! Max pooling.

use candle_core::Result;

use super::launch::{Argument, MAX_POOL, Threads, kernel_for, launch};
use super::{Array, View};
use crate::cpu::max_pool::PoolShape;

fn sizes(shape: PoolShape, count: usize) -> [Argument; 7] {
    let PoolShape { rows, columns, channels } = shape;
    let int = |value: usize| Argument::Int(value as i32);
    [
        int(rows.inputs),
        int(columns.inputs),
        int(channels),
        int(rows.stride),
        int(rows.before),
        int(columns.before),
        Argument::Long(count as i64),
    ]
}

pub(crate) fn forward(shape: PoolShape, x: &View<'_>) -> Result<Array> {
    let PoolShape { rows, columns, channels } = shape;
    let images = x.len / (rows.inputs * columns.inputs * channels).max(1);
    let count = images * rows.outputs() * columns.outputs() * channels;
    let pooled = Array::new(&x.device, x.dtype, count)?;
    let mut arguments = vec![Argument::Pointer(x.pointer), Argument::Pointer(pooled.pointer)];
    arguments.extend(sizes(shape, count));
    let name = kernel_for("max_pool", x.dtype);
    // SAFETY: x is whole images of the given sizes, `pooled` has `count` elements.
    unsafe { launch(&x.device, MAX_POOL, &name, Threads::striding(count), &arguments) }?;
    Ok(pooled)
}

/// The gradient of x.
pub(crate) fn backward(
    shape: PoolShape,
    x: &View<'_>,
    pooled: &View<'_>,
    grad_pooled: &View<'_>,
) -> Result<Array> {
    let grad_pooled = grad_pooled.clone().expect(x.dtype)?;
    let grad_x = Array::new(&x.device, x.dtype, x.len)?;
    let mut arguments = vec![
        Argument::Pointer(x.pointer),
        Argument::Pointer(pooled.pointer),
        Argument::Pointer(grad_pooled.pointer),
        Argument::Pointer(grad_x.pointer),
    ];
    arguments.extend(sizes(shape, x.len));
    let name = kernel_for("max_pool_backward", x.dtype);
    // SAFETY: x and its gradient are whole images of the given sizes, `pooled` and its gradient have the size of
    // `forward`'s result.
    unsafe { launch(&x.device, MAX_POOL, &name, Threads::striding(x.len), &arguments) }?;
    Ok(grad_x)
}
