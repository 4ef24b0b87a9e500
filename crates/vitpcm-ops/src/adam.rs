//! Optimiser updates in place: a step of Adam, and an exponential moving average.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, Tensor, bail};
use rayon::prelude::*;

use crate::tensors::floats;

/// Coefficients of a step, with bias correction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamStep {
    /// Decay of the mean gradient (β₁).
    pub beta1: f32,
    /// Decay of the mean squared gradient (β₂).
    pub beta2: f32,
    /// The learning rate divided by 1 − β₁ᵗ.
    pub rate: f32,
    /// √(1 − β₂ᵗ).
    pub root_correction2: f32,
    /// Keeps the divisor above zero.
    pub eps: f32,
}

/// Elements per task.
pub(crate) const CHUNK: usize = 1 << 14;

/// A parameter with its Adam state and gradient: four f32 tensors of one shape that share no memory. All but the
/// gradient are contiguous.
#[derive(Debug, Clone, Copy)]
pub struct AdamParameter<'a> {
    /// The parameter (w).
    pub weight: &'a Tensor,
    /// Moving mean of the gradient (m).
    pub mean: &'a Tensor,
    /// Moving mean of the squared gradient (v).
    pub mean_square: &'a Tensor,
    /// The gradient (g).
    pub gradient: &'a Tensor,
}

/// One step for every parameter: `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `w ← w − rate · m / (√v /
/// root_correction2 + eps)`.
///
/// All parameters are on one device.
pub fn adam_step(parameters: &[AdamParameter<'_>], step: AdamStep) -> Result<()> {
    for AdamParameter { weight, mean, mean_square, gradient } in parameters {
        if [mean, mean_square, gradient].iter().any(|tensor| tensor.dims() != weight.dims()) {
            bail!("adam: the parameter {:?}, its means and its gradient differ in shape", weight.dims());
        }
    }
    #[cfg(feature = "cuda")]
    if parameters.iter().all(|parameter| crate::cuda::run_on_cuda(&[parameter.weight])) {
        return crate::cuda::adam::adam_step(parameters, step);
    }
    parameters.iter().try_for_each(|&parameter| step_of_one(parameter, step))
}

fn step_of_one(parameter: AdamParameter<'_>, step: AdamStep) -> Result<()> {
    let AdamParameter { weight, mean, mean_square, gradient } = parameter;
    let gradient = gradient.contiguous()?;
    if !weight.device().is_cpu() {
        return composed(weight, mean, mean_square, &gradient, step);
    }
    mean.inplace_op2(&gradient, &Follow { decay: step.beta1, power: Power::One })?;
    mean_square.inplace_op2(&gradient, &Follow { decay: step.beta2, power: Power::Two })?;
    weight.inplace_op3(mean, mean_square, &Descend(step))
}

/// One step of an exponential moving average: `mean ← decay · mean + (1 − decay) · value`.
///
/// Both are contiguous f32, of one shape, and share no memory.
pub fn follow(mean: &Tensor, value: &Tensor, decay: f32) -> Result<()> {
    if mean.dims() != value.dims() {
        bail!("follow: the mean {:?} and the value {:?} differ in shape", mean.dims(), value.dims());
    }
    #[cfg(feature = "cuda")]
    if crate::cuda::run_on_cuda(&[mean, value]) {
        return crate::cuda::adam::follow(mean, value, decay);
    }
    if mean.device().is_cpu() {
        mean.inplace_op2(value, &Follow { decay, power: Power::One })
    } else {
        composed_follow(mean, value, decay)
    }
}

fn composed_follow(mean: &Tensor, value: &Tensor, decay: f32) -> Result<()> {
    let moved = ((mean * f64::from(decay))? + (value * f64::from(1.0 - decay))?)?;
    mean.slice_set(&moved, 0, 0)
}

/// With candle's own operations.
fn composed(
    weight: &Tensor,
    mean: &Tensor,
    mean_square: &Tensor,
    gradient: &Tensor,
    step: AdamStep,
) -> Result<()> {
    composed_follow(mean, gradient, step.beta1)?;
    composed_follow(mean_square, &gradient.sqr()?, step.beta2)?;
    let divisor = ((mean_square.sqrt()? / f64::from(step.root_correction2))? + f64::from(step.eps))?;
    let change = ((mean / divisor)? * f64::from(step.rate))?;
    weight.slice_set(&(weight.detach() - change)?, 0, 0)
}

/// Mutable access to a tensor's floats.
pub(crate) fn floats_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&mut values[start..end]),
        _ => bail!("an optimiser's step was given a tensor that is not contiguous f32"),
    }
}

#[derive(Clone, Copy)]
enum Power {
    One,
    Two,
}

/// A moving average of the gradient or its square.
struct Follow {
    decay: f32,
    power: Power,
}

impl InplaceOp2 for Follow {
    fn name(&self) -> &'static str {
        "adam-mean"
    }

    fn cpu_fwd(
        &self,
        mean: &mut CpuStorage,
        mean_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let (mean, gradient) = (floats_mut(mean, mean_layout)?, floats(gradient, gradient_layout)?);
        let Self { decay, power } = *self;
        mean.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).for_each(|(mean, gradient)| match power {
            Power::One => {
                mean.iter_mut().zip(gradient).for_each(|(mean, &g)| *mean = *mean * decay + g * (1.0 - decay))
            }
            Power::Two => mean
                .iter_mut()
                .zip(gradient)
                .for_each(|(mean, &g)| *mean = *mean * decay + g * g * (1.0 - decay)),
        });
        Ok(())
    }
}

struct Descend(AdamStep);

impl InplaceOp3 for Descend {
    fn name(&self) -> &'static str {
        "adam-weight"
    }

    fn cpu_fwd(
        &self,
        weight: &mut CpuStorage,
        weight_layout: &Layout,
        mean: &CpuStorage,
        mean_layout: &Layout,
        mean_square: &CpuStorage,
        mean_square_layout: &Layout,
    ) -> Result<()> {
        let weight = floats_mut(weight, weight_layout)?;
        let (mean, mean_square) = (floats(mean, mean_layout)?, floats(mean_square, mean_square_layout)?);
        let AdamStep { rate, root_correction2, eps, .. } = self.0;
        let means = mean.par_chunks(CHUNK).zip(mean_square.par_chunks(CHUNK));
        weight.par_chunks_mut(CHUNK).zip(means).for_each(|(weight, (mean, mean_square))| {
            for ((weight, &m), &v) in weight.iter_mut().zip(mean).zip(mean_square) {
                *weight -= m / (v.sqrt() / root_correction2 + eps) * rate;
            }
        });
        Ok(())
    }
}
