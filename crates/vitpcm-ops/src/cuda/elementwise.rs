//! Elementwise operations.

use candle_core::{DType, Result};

use super::launch::{Argument, ELEMENTWISE, Threads, kernel_for, launch};
use super::{Array, View};
use crate::dropout::DropoutMask;

pub(crate) fn gelu(x: &View<'_>) -> Result<Array> {
    let y = Array::new(&x.device, x.dtype, x.len)?;
    let arguments =
        [Argument::Pointer(x.pointer), Argument::Pointer(y.pointer), Argument::Long(x.len as i64)];
    let name = kernel_for("gelu", x.dtype);
    // SAFETY: x and y have the length passed to the kernel.
    unsafe { launch(&x.device, ELEMENTWISE, &name, Threads::striding(x.len.div_ceil(4)), &arguments) }?;
    Ok(y)
}

pub(crate) fn gelu_backward(x: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let grad_y = grad_y.clone().expect(x.dtype)?;
    let grad_x = Array::new(&x.device, x.dtype, x.len)?;
    let arguments = [
        Argument::Pointer(x.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(grad_x.pointer),
        Argument::Long(x.len as i64),
    ];
    let name = kernel_for("gelu_backward", x.dtype);
    // SAFETY: all three have the length passed to the kernel.
    unsafe { launch(&x.device, ELEMENTWISE, &name, Threads::striding(x.len.div_ceil(4)), &arguments) }?;
    Ok(grad_x)
}

/// A mask as kernel arguments; rate zero without a mask.
pub(super) fn mask_arguments(mask: Option<DropoutMask>) -> [Argument; 4] {
    let mask = mask.unwrap_or(DropoutMask { key: 0, position: 0, rate: 0.0 });
    [
        Argument::Word(mask.key),
        Argument::Word(mask.position),
        Argument::Float(mask.rate),
        Argument::Float(mask.kept()),
    ]
}

pub(crate) fn dropout(x: &View<'_>, mask: DropoutMask) -> Result<Array> {
    let y = Array::new(&x.device, x.dtype, x.len)?;
    let mut arguments =
        vec![Argument::Pointer(x.pointer), Argument::Pointer(y.pointer), Argument::Long(x.len as i64)];
    arguments.extend(mask_arguments(Some(mask)));
    let name = kernel_for("dropout", x.dtype);
    // SAFETY: x and y have the length passed to the kernel.
    unsafe { launch(&x.device, ELEMENTWISE, &name, Threads::striding(x.len.div_ceil(4)), &arguments) }?;
    Ok(y)
}

/// Converts to another type.
pub(crate) fn cast(x: &View<'_>, dtype: DType) -> Result<Array> {
    let y = Array::new(&x.device, dtype, x.len)?;
    let arguments =
        [Argument::Pointer(x.pointer), Argument::Pointer(y.pointer), Argument::Long(x.len as i64)];
    let name = kernel_for(&kernel_for("cast", x.dtype), dtype);
    // SAFETY: x and y have the length passed to the kernel.
    unsafe { launch(&x.device, ELEMENTWISE, &name, Threads::striding(x.len.div_ceil(4)), &arguments) }?;
    Ok(y)
}

/// What follows a matrix product.
#[derive(Clone, Copy)]
pub(crate) enum Tail {
    Bias,
    BiasGelu,
}

/// Adds a bias (f32) to every row in place.
pub(crate) fn add_bias(y: &Array, bias: &View<'_>, tail: Tail) -> Result<()> {
    let bias = bias.clone().expect(DType::F32)?;
    let view = y.view();
    let name = match tail {
        Tail::Bias => kernel_for("bias", view.dtype),
        Tail::BiasGelu => kernel_for("bias_gelu", view.dtype),
    };
    let columns = bias.len;
    let arguments =
        [Argument::Pointer(y.pointer), Argument::Pointer(bias.pointer), Argument::Int(columns as i32)];
    let threads = Threads::block_a_row(view.len / columns.max(1), columns.div_ceil(4).min(256));
    // SAFETY: y is a whole number of rows as long as the bias.
    unsafe { launch(&view.device, ELEMENTWISE, &name, threads, &arguments) }
}

/// Adds a bias to every row of `hidden` in place; returns `dropout(GELU(hidden))`.
pub(crate) fn activate(hidden: &Array, bias: &View<'_>, mask: Option<DropoutMask>) -> Result<Array> {
    let bias = bias.clone().expect(DType::F32)?;
    let view = hidden.view();
    let (rows, columns) = (view.len / bias.len.max(1), bias.len);
    let activated = Array::new(&view.device, view.dtype, view.len)?;
    let mut arguments = vec![
        Argument::Pointer(hidden.pointer),
        Argument::Pointer(bias.pointer),
        Argument::Pointer(activated.pointer),
        Argument::Int(columns as i32),
    ];
    arguments.extend(mask_arguments(mask));
    let threads = Threads::block_a_row(rows, columns.div_ceil(4).min(256));
    // SAFETY: hidden and activated are a whole number of rows as long as the bias.
    unsafe { launch(&view.device, ELEMENTWISE, &kernel_for("activate", view.dtype), threads, &arguments) }?;
    Ok(activated)
}

/// What is applied to a product before it is added to the residual stream.
#[derive(Default)]
pub(crate) struct Branch<'a> {
    pub(crate) bias: Option<View<'a>>,
    pub(crate) mask: Option<DropoutMask>,
    pub(crate) scale: Option<View<'a>>,
    pub(crate) kept: Kept<'a>,
}

/// Where to store the branch that backward needs, after dropout and before its scale.
#[derive(Default)]
pub(crate) enum Kept<'a> {
    #[default]
    Nowhere,
    In(&'a Array),
}

/// `x + scale · dropout(product + bias)`, x and the result f32.
pub(crate) fn add_scaled(
    x: &View<'_>,
    product: &View<'_>,
    branch: &Branch<'_>,
    columns: usize,
) -> Result<Array> {
    let y = Array::new(&x.device, DType::F32, x.len)?;
    let optional = |view: &Option<View<'_>>| match view {
        Some(view) => Ok(Argument::Pointer(view.clone().expect(DType::F32)?.pointer)),
        None => Ok::<_, candle_core::Error>(Argument::Pointer(0)),
    };
    let mut arguments = vec![
        Argument::Pointer(x.pointer),
        Argument::Pointer(product.pointer),
        optional(&branch.bias)?,
        optional(&branch.scale)?,
        Argument::Pointer(y.pointer),
        Argument::Pointer(match branch.kept {
            Kept::Nowhere => 0,
            Kept::In(array) => array.pointer,
        }),
        Argument::Int(columns as i32),
    ];
    arguments.extend(mask_arguments(branch.mask));
    let name = kernel_for("add_scaled", product.dtype);
    let threads = Threads::block_a_row(x.len / columns.max(1), columns.div_ceil(4).min(256));
    // SAFETY: x, product, the kept branch and y have rows as long as bias and scale; the custom operation checks it.
    unsafe { launch(&x.device, ELEMENTWISE, &name, threads, &arguments) }?;
    Ok(y)
}

/// The gradient of [`add_scaled`]'s branch.
pub(crate) fn add_scaled_backward(
    grad_y: &View<'_>,
    scale: Option<&View<'_>>,
    columns: usize,
    dtype: DType,
) -> Result<Array> {
    let grad_branch = Array::new(&grad_y.device, dtype, grad_y.len)?;
    let arguments = [
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(scale.map_or(0, |scale| scale.pointer)),
        Argument::Pointer(grad_branch.pointer),
        Argument::Int(columns as i32),
    ];
    let name = kernel_for("add_scaled_backward", dtype);
    let threads = Threads::block_a_row(grad_y.len / columns.max(1), columns.div_ceil(4).min(256));
    // SAFETY: as for `add_scaled`.
    unsafe { launch(&grad_y.device, ELEMENTWISE, &name, threads, &arguments) }?;
    Ok(grad_branch)
}
