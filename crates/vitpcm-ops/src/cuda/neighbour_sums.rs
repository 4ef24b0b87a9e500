//! Sums over a pixel's 3×3 neighbours.

use candle_core::{DType, Result};

use super::launch::{Argument, NEIGHBOUR_SUMS, Threads, kernel_for, launch};
use super::{Array, View};
use crate::cpu::neighbour_sums::NeighbourShape;

fn arguments(shape: &NeighbourShape<'_>, pointers: [u64; 2], count: usize) -> Vec<Argument> {
    let NeighbourShape { height, width, columns, classes, rates } = shape;
    let [from, to] = pointers.map(Argument::Pointer);
    let mut geometry = [0; 9];
    let sizes = [height, width, columns, classes, &rates.len()];
    for (target, value) in geometry.iter_mut().zip(sizes.into_iter().chain(rates.iter())) {
        *target = *value as i32;
    }
    vec![from, to, Argument::Geometry(geometry), Argument::Long(count as i64)]
}

/// f32 sums of the products.
pub(crate) fn forward(shape: &NeighbourShape<'_>, products: &View<'_>) -> Result<Array> {
    let count = products.len / shape.columns * shape.classes;
    let sums = Array::new(&products.device, DType::F32, count)?;
    let arguments = arguments(shape, [products.pointer, sums.pointer], count);
    let name = kernel_for("neighbour_sums", products.dtype);
    // SAFETY: the products are whole images of the given sizes, the sums have as many pixels.
    unsafe { launch(&products.device, NEIGHBOUR_SUMS, &name, Threads::striding(count), &arguments) }?;
    Ok(sums)
}

/// The gradient of the products, of type `dtype`.
pub(crate) fn backward(shape: &NeighbourShape<'_>, grad_sums: &View<'_>, dtype: DType) -> Result<Array> {
    let grad_sums = grad_sums.clone().expect(DType::F32)?;
    let count = grad_sums.len / shape.classes * shape.columns;
    let grad_products = Array::new(&grad_sums.device, dtype, count)?;
    let arguments = arguments(shape, [grad_sums.pointer, grad_products.pointer], count);
    let name = kernel_for("neighbour_sums_backward", dtype);
    // SAFETY: as for `forward`.
    unsafe { launch(&grad_sums.device, NEIGHBOUR_SUMS, &name, Threads::striding(count), &arguments) }?;
    Ok(grad_products)
}
