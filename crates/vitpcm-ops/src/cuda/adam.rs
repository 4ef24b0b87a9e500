//! A step of Adam on many parameters at once, and a moving average, in place.

use candle_core::{DType, Result, Tensor, bail};

use super::View;
use super::launch::{ADAM_PARAMETERS, Argument, ELEMENTWISE, Threads, launch};
use crate::adam::{AdamParameter, AdamStep};

/// All parameters are on one device. They share launches, because a launch takes longer than a small parameter's
/// update.
pub(crate) fn adam_step(parameters: &[AdamParameter<'_>], step: AdamStep) -> Result<()> {
    for parameters in parameters.chunks(ADAM_PARAMETERS) {
        launch_step(parameters, step)?;
    }
    Ok(())
}

/// For up to [`ADAM_PARAMETERS`] parameters.
fn launch_step(parameters: &[AdamParameter<'_>], step: AdamStep) -> Result<()> {
    let gradients = parameters.iter().map(|parameter| parameter.gradient.contiguous());
    let gradients = gradients.collect::<Result<Vec<_>>>()?;
    let mut table = Box::new([[0; ADAM_PARAMETERS]; 5]);
    let (mut device, mut largest) = (None, 0);
    for (index, (parameter, gradient)) in parameters.iter().zip(&gradients).enumerate() {
        let AdamParameter { weight, mean, mean_square, .. } = *parameter;
        for (kind, tensor) in [weight, mean, mean_square, gradient].into_iter().enumerate() {
            let view = View::of(tensor)?.expect(DType::F32)?;
            if view.len != weight.elem_count() {
                bail!("adam: the parameter, its means and its gradient differ in size");
            }
            table[kind][index] = view.pointer;
            device = Some(view.device);
        }
        table[4][index] = weight.elem_count() as u64;
        largest = largest.max(weight.elem_count());
    }
    let Some(device) = device else { return Ok(()) };
    let arguments = [
        Argument::AdamParameters(table),
        Argument::Float(step.beta1),
        Argument::Float(step.beta2),
        Argument::Float(step.rate),
        Argument::Float(step.root_correction2),
        Argument::Float(step.eps),
    ];
    let blocks = largest.div_ceil(4 * 256).min(144);
    let threads = Threads::grid((blocks, parameters.len()), (256, 1));
    // SAFETY: the tensors have the lengths passed to the kernel and, like `gradients`, live beyond the launch; their
    // memory is freed in stream order. The first three are written although candle lends them for reading: all readers
    // run before or after this launch on the same stream.
    unsafe { launch(&device, ELEMENTWISE, "adam", threads, &arguments) }
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
