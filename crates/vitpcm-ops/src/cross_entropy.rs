//! Cross entropy between scores of classes and what they should be.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::cross_entropy as kernels;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// `−Σ target · ln softmax(logits)` over the last dimension. Targets need not sum to one: where all are zero, nothing is
/// lost and nothing learned. They get no gradient.
///
/// # Shapes
/// logits and targets `[..., classes]`; result `[...]`.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    if logits.dims() != targets.dims() || logits.rank() == 0 {
        bail!("cross_entropy: logits {:?} and targets {:?}", logits.dims(), targets.dims());
    }
    let targets = targets.detach();
    let are_f32 = logits.dtype() == DType::F32 && targets.dtype() == DType::F32;
    if !are_f32 || !has_kernels(&[logits, &targets]) {
        return composed::cross_entropy(logits, &targets);
    }
    logits.contiguous()?.apply_op2(&targets.contiguous()?, CrossEntropy)
}

struct CrossEntropy;

fn split(dims: &[usize]) -> (Shape, usize) {
    match dims.split_last() {
        Some((&classes, rows)) => (rows.into(), classes),
        None => (().into(), 1),
    }
}

impl CustomOp2 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, classes) = split(logits_layout.dims());
        let mut losses = output(rows.elem_count());
        let (logits, targets) = (floats(logits, logits_layout)?, floats(targets, targets_layout)?);
        kernels::forward(classes, logits, targets, &mut losses);
        Ok((CpuStorage::F32(losses), rows))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &candle_core::CudaStorage,
        logits_layout: &Layout,
        targets: &candle_core::CudaStorage,
        targets_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (rows, classes) = split(logits_layout.dims());
        let (logits, targets) = (View::new(logits, logits_layout)?, View::new(targets, targets_layout)?);
        Ok((cuda::softmax::cross_entropy(classes, &logits, &targets)?.into_storage(), rows))
    }

    fn bwd(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        _losses: &Tensor,
        grad_losses: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (_, classes) = split(logits.dims());
        let grad_losses = grad_losses.contiguous()?;
        #[cfg(feature = "cuda")]
        if logits.device().is_cuda() {
            let views = [View::of(logits)?, View::of(targets)?, View::of(&grad_losses)?];
            let grad = cuda::softmax::cross_entropy_backward(classes, &views)?;
            return Ok((Some(grad.into_tensor(logits.dims())), None));
        }
        let mut grad_logits = output(logits.elem_count());
        let (scores, targets, grads) = (Floats::of(logits)?, Floats::of(targets)?, Floats::of(&grad_losses)?);
        kernels::backward(classes, scores.get()?, targets.get()?, grads.get()?, &mut grad_logits);
        Ok((Some(tensor(grad_logits, logits.dims())?), None))
    }
}
