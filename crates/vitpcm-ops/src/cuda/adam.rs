//! A step of Adam on one parameter and a moving average, in place.

use candle_core::{DType, Result, Tensor, bail};

use super::View;
use super::launch::{Argument, ELEMENTWISE, Threads, launch};
use crate::adam::AdamStep;

pub(crate) fn adam_step(
    weight: &Tensor,
    mean: &Tensor,
    mean_square: &Tensor,
    gradient: &Tensor,
    step: AdamStep,
) -> Result<()> {
    let view = |tensor| View::of(tensor)?.expect(DType::F32);
    let (weight, mean, mean_square, gradient) =
        (view(weight)?, view(mean)?, view(mean_square)?, view(gradient)?);
    if [mean.len, mean_square.len, gradient.len] != [weight.len; 3] {
        bail!("adam: the parameter, its means and its gradient differ in size");
    }
    let arguments = [
        Argument::Pointer(weight.pointer),
        Argument::Pointer(mean.pointer),
        Argument::Pointer(mean_square.pointer),
        Argument::Pointer(gradient.pointer),
        Argument::Long(weight.len as i64),
        Argument::Float(step.beta1),
        Argument::Float(step.beta2),
        Argument::Float(step.rate),
        Argument::Float(step.root_correction2),
        Argument::Float(step.eps),
    ];
    // SAFETY: all four have the length that the kernel is told. The first three are written though candle lends them for
    // reading: everything that reads them is behind this launch on the same stream or has been before it.
    unsafe { launch(&weight.device, ELEMENTWISE, "adam", Threads::striding(weight.len), &arguments) }
}

pub(crate) fn follow(mean: &Tensor, value: &Tensor, decay: f32) -> Result<()> {
    let (mean, value) = (View::of(mean)?.expect(DType::F32)?, View::of(value)?.expect(DType::F32)?);
    let arguments = [
        Argument::Pointer(mean.pointer),
        Argument::Pointer(value.pointer),
        Argument::Long(mean.len as i64),
        Argument::Float(decay),
    ];
    // SAFETY: both have one length; the mean is written as in `adam_step`.
    unsafe { launch(&mean.device, ELEMENTWISE, "follow", Threads::striding(mean.len), &arguments) }
}
