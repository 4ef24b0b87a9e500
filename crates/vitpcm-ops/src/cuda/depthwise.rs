//! Depthwise convolutions.

use candle_core::{DType, Result};

use super::column_sums::add_stripes;
use super::launch::{Argument, DEPTHWISE, Threads, kernel_for, launch};
use super::{Array, View};
use crate::cpu::depthwise::{DepthwiseShape, TAPS, Taps};

fn sizes(shape: DepthwiseShape) -> [Argument; 4] {
    let DepthwiseShape { height, width, channels, dilation } = shape;
    [height, width, channels, dilation].map(|value| Argument::Int(value as i32))
}

/// The result or, with backward taps, the gradient of x, in the type of x.
pub(crate) fn convolve(shape: DepthwiseShape, taps: Taps, x: &View<'_>, weight: &View<'_>) -> Result<Array> {
    let y = Array::new(&x.device, x.dtype, x.len)?;
    let mut arguments =
        vec![Argument::Pointer(x.pointer), Argument::Pointer(weight.pointer), Argument::Pointer(y.pointer)];
    arguments.extend(sizes(shape));
    arguments.push(Argument::Int(i32::from(taps == Taps::Backward)));
    arguments.push(Argument::Long(x.len as i64));
    let name = kernel_for("depthwise", x.dtype);
    // SAFETY: x and y are whole images of the given sizes, the weight nine numbers per channel.
    unsafe { launch(&x.device, DEPTHWISE, &name, Threads::striding(x.len), &arguments) }?;
    Ok(y)
}

/// The gradient of the weight, f32.
pub(crate) fn backward_weight(shape: DepthwiseShape, x: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let pixels = x.len / shape.channels.max(1);
    let count = TAPS * shape.channels;
    let channel_blocks = shape.channels.div_ceil(32);
    // A few thousand blocks fill any GPU; more would only add stripes to sum.
    let stripes = (2048 / channel_blocks.max(1)).clamp(1, pixels.div_ceil(64).max(1));
    let partial = Array::new(&x.device, DType::F32, stripes * count)?;
    let mut arguments = vec![
        Argument::Pointer(x.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(partial.pointer),
    ];
    arguments.extend(sizes(shape));
    arguments.push(Argument::Int(pixels as i32));
    let name = kernel_for("depthwise_weight", x.dtype);
    let threads = Threads::grid((channel_blocks, stripes), (32, 8));
    // SAFETY: x and grad_y are whole images of the given sizes, `partial` has room for all stripes.
    unsafe { launch(&x.device, DEPTHWISE, &name, threads, &arguments) }?;
    add_stripes(&partial, stripes, count)
}
