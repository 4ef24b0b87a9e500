//! Sums over a pixel's neighbours.

use candle_core::{DType, Result};

use super::launch::{Argument, NEIGHBOUR_SUMS, Threads, kernel_for, launch};
use super::{Array, View};
use crate::cpu::neighbour_sums::{NeighbourShape, TAPS};

fn sizes(shape: NeighbourShape, count: usize) -> [Argument; 5] {
    let NeighbourShape { height, width, classes, dilation } = shape;
    let int = |value: usize| Argument::Int(value as i32);
    [int(height), int(width), int(classes), int(dilation), Argument::Long(count as i64)]
}

/// f32 sums of the products.
pub(crate) fn forward(shape: NeighbourShape, products: &View<'_>) -> Result<Array> {
    let count = products.len / TAPS;
    let sums = Array::new(&products.device, DType::F32, count)?;
    let mut arguments = vec![Argument::Pointer(products.pointer), Argument::Pointer(sums.pointer)];
    arguments.extend(sizes(shape, count));
    let name = kernel_for("neighbour_sums", products.dtype);
    // SAFETY: the products are whole images of the sizes given, the sums a ninth as many.
    unsafe { launch(&products.device, NEIGHBOUR_SUMS, &name, Threads::striding(count), &arguments) }?;
    Ok(sums)
}

/// The gradient of the products, of type `dtype`.
pub(crate) fn backward(shape: NeighbourShape, grad_sums: &View<'_>, dtype: DType) -> Result<Array> {
    let grad_sums = grad_sums.clone().expect(DType::F32)?;
    let count = grad_sums.len * TAPS;
    let grad_products = Array::new(&grad_sums.device, dtype, count)?;
    let mut arguments = vec![Argument::Pointer(grad_sums.pointer), Argument::Pointer(grad_products.pointer)];
    arguments.extend(sizes(shape, count));
    let name = kernel_for("neighbour_sums_backward", dtype);
    // SAFETY: as for `forward`.
    unsafe { launch(&grad_sums.device, NEIGHBOUR_SUMS, &name, Threads::striding(count), &arguments) }?;
    Ok(grad_products)
}
