//! A step of SGD on one parameter, in place.

use candle_core::{DType, Result, Tensor, bail};

use super::View;
use super::launch::{Argument, ELEMENTWISE, Threads, launch};
use crate::sgd::SgdStep;

pub(crate) fn sgd_step(weight: &Tensor, velocity: &Tensor, gradient: &Tensor, step: SgdStep) -> Result<()> {
    let view = |tensor| View::of(tensor)?.expect(DType::F32);
    let (weight, velocity, gradient) = (view(weight)?, view(velocity)?, view(gradient)?);
    if [velocity.len, gradient.len] != [weight.len; 2] {
        bail!("sgd: the parameter, its velocity and its gradient differ in size");
    }
    let arguments = [
        Argument::Pointer(weight.pointer),
        Argument::Pointer(velocity.pointer),
        Argument::Pointer(gradient.pointer),
        Argument::Long(weight.len as i64),
        Argument::Float(step.rate),
        Argument::Float(step.momentum),
        Argument::Float(step.weight_decay),
    ];
    // SAFETY: all three have the length passed to the kernel. The first two are written although candle lends them for
    // reading: all readers run before or after this launch on the same stream.
    unsafe { launch(&weight.device, ELEMENTWISE, "sgd", Threads::striding(weight.len), &arguments) }
}
