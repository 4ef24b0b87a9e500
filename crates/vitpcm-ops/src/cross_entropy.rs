//! Cross entropy between logits on a grid and labels, which may be finer than the grid.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::cross_entropy::{self as kernels, LabelledGrid};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// −ln of each label's probability, from logits resized bilinearly to the labels (with aligned corners); 0 for labels
/// that are no class.
///
/// # Shapes
/// logits `[B, H, W, classes]`; labels `[B, Y, X]`, u8; result `[B, Y, X]`, f32.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let ((batch, height, width, _), (images, rows, columns)) = (logits.dims4()?, labels.dims3()?);
    let fits = [height, width, rows, columns].iter().all(|&size| size > 0) && batch == images;
    if !fits || labels.dtype() != DType::U8 {
        bail!(
            "cross_entropy: logits {:?}, labels {:?} of {:?}",
            logits.dims(),
            labels.dims(),
            labels.dtype()
        );
    }
    if logits.dtype() != DType::F32 || !has_kernels(&[logits]) {
        return composed::cross_entropy(logits, labels);
    }
    logits.contiguous()?.apply_op1(CrossEntropy { labels: labels.contiguous()? })
}

struct CrossEntropy {
    labels: Tensor,
}

impl CrossEntropy {
    fn grid(&self, logits: &[usize]) -> LabelledGrid {
        let labels = self.labels.dims();
        LabelledGrid { grid: [logits[1], logits[2]], size: [labels[1], labels[2]], classes: logits[3] }
    }

    fn labels_on_cpu(&self) -> Result<Vec<u8>> {
        self.labels.flatten_all()?.to_vec1::<u8>()
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut losses = output(self.labels.elem_count());
        let labels = self.labels_on_cpu()?;
        kernels::forward(self.grid(layout.dims()), floats(logits, layout)?, &labels, &mut losses);
        Ok((CpuStorage::F32(losses), self.labels.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (grid, labels) = (self.grid(layout.dims()), View::of(&self.labels)?);
        let losses = cuda::cross_entropy::forward(grid, &View::new(logits, layout)?, &labels)?;
        Ok((losses.into_storage(), self.labels.shape().clone()))
    }

    fn bwd(&self, logits: &Tensor, _losses: &Tensor, grad_losses: &Tensor) -> Result<Option<Tensor>> {
        let (grid, grad_losses) = (self.grid(logits.dims()), grad_losses.contiguous()?);
        #[cfg(feature = "cuda")]
        if logits.device().is_cuda() {
            let views = [View::of(logits)?, View::of(&self.labels)?, View::of(&grad_losses)?];
            let grad = cuda::cross_entropy::backward(grid, &views)?;
            return Ok(Some(grad.into_tensor(logits.dims())));
        }
        let mut grad_logits = vec![0f32; logits.elem_count()];
        let (scores, grads, labels) = (Floats::of(logits)?, Floats::of(&grad_losses)?, self.labels_on_cpu()?);
        kernels::backward(grid, scores.get()?, &labels, grads.get()?, &mut grad_logits);
        Ok(Some(tensor(grad_logits, logits.dims())?))
    }
}
