//! Convolutions by im2col, some images at a time, and cuBLAS; 1×1 convolutions are products as they are. Gradients are
//! gathered, not scattered, so they are deterministic.

use candle_core::{CudaDevice, DType, Result};

use super::gemm::{Matrix, Product, Sum, gemm};
use super::launch::{Argument, CONV, Threads, kernel_for, launch};
use super::linear::{self, Weight};
use super::{Array, View};
use crate::conv::Activation;
use crate::cpu::conv::ConvShape;
use crate::cpu::linear::LinearShape;

/// Limit on the columns in bytes; larger batches are split by images.
const COLUMN_BYTES: usize = 1 << 30;

/// The equivalent linear layer over pixels, for pointwise convolutions.
fn linear_shape(shape: &ConvShape) -> LinearShape {
    LinearShape { rows: shape.rows(), in_features: shape.channels, out_features: shape.out_channels }
}

fn geometry(shape: &ConvShape) -> Argument {
    let values = [
        shape.height,
        shape.width,
        shape.channels,
        shape.out_height(),
        shape.out_width(),
        shape.kernel,
        shape.stride,
        shape.padding,
        shape.dilation,
    ];
    Argument::Geometry(values.map(|value| value as i32))
}

/// Parts of a batch whose columns stay within the limit: first image and number of images.
fn parts_of(shape: &ConvShape, dtype: DType) -> impl Iterator<Item = (usize, usize)> + use<> {
    let image_bytes = shape.out_pixels() * shape.column_len() * dtype.size_in_bytes();
    let batch = shape.batch;
    let images = (COLUMN_BYTES / image_bytes.max(1)).clamp(1, batch.max(1));
    (0..batch).step_by(images).map(move |first| (first, images.min(batch - first)))
}

/// Memory for the columns of the largest part.
fn columns_array(shape: &ConvShape, device: &CudaDevice, dtype: DType) -> Result<Array> {
    let images = parts_of(shape, dtype).map(|(_, images)| images).max().unwrap_or(0);
    Array::new(device, dtype, images * shape.out_pixels() * shape.column_len())
}

/// im2col of some images.
fn unfold(shape: &ConvShape, x: &View<'_>, (first, images): (usize, usize), columns: &Array) -> Result<()> {
    let rows = images * shape.out_pixels();
    let arguments = [
        Argument::Pointer(x.pointer),
        Argument::Pointer(columns.pointer),
        geometry(shape),
        Argument::Long((first * shape.out_pixels()) as i64),
        Argument::Long(rows as i64),
    ];
    let threads = Threads::grid((rows.div_ceil(8), 1), (32, 8));
    // SAFETY: x is the whole batch, and `columns` has room for the part.
    unsafe { launch(&x.device, CONV, &kernel_for("unfold", x.dtype), threads, &arguments) }
}

/// The result `[rows, out_channels]`, in the type of x.
pub(crate) fn forward(shape: &ConvShape, x: &View<'_>, weight: &View<'_>) -> Result<Array> {
    if shape.is_pointwise() {
        return linear::forward(linear_shape(shape), x, weight, None);
    }
    let (len, outputs) = (shape.column_len(), shape.out_channels);
    let weight = Weight::of(weight, x.dtype)?;
    let y = Array::new(&x.device, x.dtype, shape.rows() * outputs)?;
    let columns = columns_array(shape, &x.device, x.dtype)?;
    for part in parts_of(shape, x.dtype) {
        unfold(shape, x, part, &columns)?;
        let (first, images) = part;
        let a = Matrix::new(columns.pointer, x.dtype, len);
        let b = Matrix::new(weight.pointer(), x.dtype, len).transposed();
        let c = Matrix::new(y.view().skip(first * shape.out_pixels() * outputs).pointer, x.dtype, outputs);
        // SAFETY: the columns are [rows, len], the weight [out, len], the part of y [rows, out].
        unsafe { gemm(&x.device, Product::new(images * shape.out_pixels(), outputs, len), a, b, c) }?;
    }
    Ok(y)
}

/// The gradient of x, in the type of `grad_y`.
pub(crate) fn backward_x(shape: &ConvShape, weight: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    if shape.is_pointwise() {
        return linear::backward_x(linear_shape(shape), weight, grad_y);
    }
    let (len, outputs, dtype) = (shape.column_len(), shape.out_channels, grad_y.dtype);
    let (device, image_pixels) = (&grad_y.device, shape.height * shape.width);
    let weight = Weight::of(weight, dtype)?;
    let grad_x = Array::new(device, dtype, shape.batch * image_pixels * shape.channels)?;
    let columns = columns_array(shape, device, dtype)?;
    for (first, images) in parts_of(shape, dtype) {
        let a = Matrix::new(grad_y.skip(first * shape.out_pixels() * outputs).pointer, dtype, outputs);
        let b = Matrix::new(weight.pointer(), dtype, len);
        let c = Matrix::new(columns.pointer, dtype, len);
        // SAFETY: the part of grad_y is [rows, out], the weight [out, len], the columns [rows, len].
        unsafe { gemm(device, Product::new(images * shape.out_pixels(), len, outputs), a, b, c) }?;
        let pixels = images * image_pixels;
        let arguments = [
            Argument::Pointer(columns.pointer),
            Argument::Pointer(grad_x.view().skip(first * image_pixels * shape.channels).pointer),
            geometry(shape),
            Argument::Long(pixels as i64),
        ];
        let threads = Threads::striding((pixels * shape.channels).div_ceil(4));
        // SAFETY: the columns are those of `pixels / image_pixels` images, as many as are written.
        unsafe { launch(device, CONV, &kernel_for("fold", dtype), threads, &arguments) }?;
    }
    Ok(grad_x)
}

/// Adds the gradient of x to `onto`, for pointwise convolutions.
pub(crate) fn add_backward_x(
    shape: &ConvShape,
    weight: &View<'_>,
    grad_y: &View<'_>,
    grad_x: &View<'_>,
) -> Result<()> {
    linear::x_product(linear_shape(shape), weight, grad_y, grad_x, Sum::Onto)
}

/// The gradient of the weight, f32.
pub(crate) fn backward_weight(shape: &ConvShape, x: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let grad_weight = Array::new(&x.device, DType::F32, shape.out_channels * shape.column_len())?;
    weight_products(shape, x, grad_y, &grad_weight.view(), Sum::New)?;
    Ok(grad_weight)
}

/// Adds the gradient of the weight to existing f32 values.
pub(crate) fn add_backward_weight(
    shape: &ConvShape,
    x: &View<'_>,
    grad_y: &View<'_>,
    grad_weight: &View<'_>,
) -> Result<()> {
    weight_products(shape, x, grad_y, grad_weight, Sum::Onto)
}

fn weight_products(
    shape: &ConvShape,
    x: &View<'_>,
    grad_y: &View<'_>,
    grad_weight: &View<'_>,
    mut sum: Sum,
) -> Result<()> {
    if shape.is_pointwise() {
        return linear::weight_product(linear_shape(shape), x, grad_y, grad_weight, sum);
    }
    let (len, outputs) = (shape.column_len(), shape.out_channels);
    let x = x.clone().expect(grad_y.dtype)?;
    let (device, dtype) = (&x.device, x.dtype);
    let columns = columns_array(shape, device, dtype)?;
    for part in parts_of(shape, dtype) {
        unfold(shape, &x, part, &columns)?;
        let (first, images) = part;
        let grad_part = grad_y.skip(first * shape.out_pixels() * outputs);
        let a = Matrix::new(grad_part.pointer, dtype, outputs).transposed();
        let b = Matrix::new(columns.pointer, dtype, len);
        let c = Matrix::new(grad_weight.pointer, DType::F32, len);
        let product = Product { sum, ..Product::new(outputs, len, images * shape.out_pixels()) };
        // SAFETY: the part of grad_y is [rows, out], the columns [rows, len], the gradient [out, len].
        unsafe { gemm(device, product, a, b, c) }?;
        sum = Sum::Onto;
    }
    Ok(())
}

fn relu(activation: Activation) -> Argument {
    Argument::Int(match activation {
        Activation::None => 0,
        Activation::Relu => 1,
    })
}

/// `y ← activation(scale · y + shift + residual)` in place.
pub(crate) fn finish(
    activation: Activation,
    scale: &View<'_>,
    shift: &View<'_>,
    residual: Option<&View<'_>>,
    y: &Array,
) -> Result<()> {
    let y = y.view();
    let arguments = [
        Argument::Pointer(y.pointer),
        Argument::Pointer(scale.pointer),
        Argument::Pointer(shift.pointer),
        Argument::Pointer(residual.map_or(0, |residual| residual.pointer)),
        relu(activation),
        Argument::Int(scale.len as i32),
        Argument::Long(y.len as i64),
    ];
    let name = kernel_for("finish", y.dtype);
    // SAFETY: y and the residual are rows as long as scale and shift, of one type; the custom operation checks it.
    unsafe { launch(&y.device, CONV, &name, Threads::striding(y.len.div_ceil(8)), &arguments) }
}

/// The gradients of the residual, if `wanted`, and of the convolution's result.
pub(crate) fn finish_backward(
    activation: Activation,
    scale: &View<'_>,
    y: &View<'_>,
    grad_y: &View<'_>,
    wanted: bool,
) -> Result<(Option<Array>, Array)> {
    let grad_y = grad_y.clone().expect(y.dtype)?;
    let grad_residual = wanted.then(|| Array::new(&y.device, y.dtype, y.len)).transpose()?;
    let grad_product = Array::new(&y.device, y.dtype, y.len)?;
    let arguments = [
        Argument::Pointer(y.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(scale.pointer),
        Argument::Pointer(grad_residual.as_ref().map_or(0, |grad| grad.pointer)),
        Argument::Pointer(grad_product.pointer),
        relu(activation),
        Argument::Int(scale.len as i32),
        Argument::Long(y.len as i64),
    ];
    let name = kernel_for("finish_backward", y.dtype);
    // SAFETY: all arrays are rows as long as the scale, of one type.
    unsafe { launch(&y.device, CONV, &name, Threads::striding(y.len.div_ceil(8)), &arguments) }?;
    Ok((grad_residual, grad_product))
}
