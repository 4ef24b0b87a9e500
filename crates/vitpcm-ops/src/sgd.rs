//! A step of stochastic gradient descent with momentum and weight decay on one parameter, in place.

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor, bail};
use rayon::prelude::*;

use crate::adam::{CHUNK, floats_mut};
use crate::tensors::{Floats, floats};

/// Coefficients of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdStep {
    /// The learning rate.
    pub rate: f32,
    /// Momentum.
    pub momentum: f32,
    /// Weight decay: this times the weight is added to its gradient.
    pub weight_decay: f32,
}

/// `v ← momentum · v + g + weight_decay · w`, `w ← w − rate · v` (PyTorch's form).
///
/// All three tensors are contiguous f32, of one shape, and share no memory.
pub fn sgd_step(weight: &Tensor, velocity: &Tensor, gradient: &Tensor, step: SgdStep) -> Result<()> {
    if [velocity, gradient].iter().any(|tensor| tensor.dims() != weight.dims()) {
        bail!("sgd: the parameter {:?}, its velocity and its gradient differ in shape", weight.dims());
    }
    let gradient = gradient.contiguous()?;
    #[cfg(feature = "cuda")]
    if crate::cuda::run_on_cuda(&[weight]) {
        return crate::cuda::sgd::sgd_step(weight, velocity, &gradient, step);
    }
    if !weight.device().is_cpu() {
        return composed(weight, velocity, &gradient, step);
    }
    {
        let gradient = Floats::of(&gradient)?;
        velocity.inplace_op2(weight, &Accelerate { step, gradient: gradient.get()? })?;
    }
    weight.inplace_op2(velocity, &Move(step))
}

/// With candle's own operations.
fn composed(weight: &Tensor, velocity: &Tensor, gradient: &Tensor, step: SgdStep) -> Result<()> {
    let decay = (weight.detach() * f64::from(step.weight_decay))?;
    let moved = ((velocity * f64::from(step.momentum))? + gradient)?.add(&decay)?;
    velocity.slice_set(&moved, 0, 0)?;
    weight.slice_set(&(weight.detach() - (moved * f64::from(step.rate))?)?, 0, 0)
}

struct Accelerate<'a> {
    step: SgdStep,
    gradient: &'a [f32],
}

impl InplaceOp2 for Accelerate<'_> {
    fn name(&self) -> &'static str {
        "sgd-velocity"
    }

    fn cpu_fwd(
        &self,
        velocity: &mut CpuStorage,
        velocity_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<()> {
        let (velocity, weight) = (floats_mut(velocity, velocity_layout)?, floats(weight, weight_layout)?);
        let SgdStep { momentum, weight_decay, .. } = self.step;
        let sources = weight.par_chunks(CHUNK).zip(self.gradient.par_chunks(CHUNK));
        velocity.par_chunks_mut(CHUNK).zip(sources).for_each(|(velocity, (weight, gradient))| {
            for ((velocity, weight), gradient) in velocity.iter_mut().zip(weight).zip(gradient) {
                *velocity = *velocity * momentum + (gradient + weight * weight_decay);
            }
        });
        Ok(())
    }
}

struct Move(SgdStep);

impl InplaceOp2 for Move {
    fn name(&self) -> &'static str {
        "sgd-weight"
    }

    fn cpu_fwd(
        &self,
        weight: &mut CpuStorage,
        weight_layout: &Layout,
        velocity: &CpuStorage,
        velocity_layout: &Layout,
    ) -> Result<()> {
        let (weight, velocity) = (floats_mut(weight, weight_layout)?, floats(velocity, velocity_layout)?);
        let rate = self.0.rate;
        weight.par_chunks_mut(CHUNK).zip(velocity.par_chunks(CHUNK)).for_each(|(weight, velocity)| {
            for (weight, velocity) in weight.iter_mut().zip(velocity) {
                *weight -= rate * velocity;
            }
        });
        Ok(())
    }
}
