//! Pooling of class scores over the grid.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::pooling as kernels;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// The maximum of each class over the grid; its gradient goes to the first maximal cell in row-major order.
///
/// # Shapes
/// scores `[B, H, W, C]`; result `[B, C]`.
pub fn max_over_grid(scores: &Tensor) -> Result<Tensor> {
    let (_, height, width, _) = scores.dims4()?;
    if height * width == 0 {
        bail!("max_over_grid: an empty grid");
    }
    if run_on_cpu(&[scores]) {
        return scores.contiguous()?.apply_op1(Max);
    }
    #[cfg(feature = "cuda")]
    if cuda::run_on_cuda(&[scores]) && scores.dtype() == candle_core::DType::F32 {
        return scores.contiguous()?.apply_op1(on_cuda::Max::default());
    }
    composed::max_over_grid(scores)
}

struct Max;

impl CustomOp1 for Max {
    fn name(&self) -> &'static str {
        "max-over-grid"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (batch, height, width, classes) = layout.shape().dims4()?;
        let mut pooled = output(batch * classes);
        kernels::forward(height * width, classes, floats(storage, layout)?, &mut pooled);
        Ok((CpuStorage::F32(pooled), (batch, classes).into()))
    }

    fn bwd(&self, scores: &Tensor, _pooled: &Tensor, grad_pooled: &Tensor) -> Result<Option<Tensor>> {
        let (_, height, width, classes) = scores.dims4()?;
        let grad_pooled = grad_pooled.contiguous()?;
        let mut grad_scores = output(scores.elem_count());
        let (values, grad_pooled) = (Floats::of(scores)?, Floats::of(&grad_pooled)?);
        kernels::backward(height * width, classes, values.get()?, grad_pooled.get()?, &mut grad_scores);
        Ok(Some(tensor(grad_scores, scores.dims())?))
    }
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use std::sync::OnceLock;

    use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

    use crate::cuda::{Array, View, pooling};

    /// The maximum, with the maximal cells kept for backward.
    #[derive(Default)]
    pub(super) struct Max {
        cells_of_maxima: OnceLock<Array>,
    }

    impl CustomOp1 for Max {
        fn name(&self) -> &'static str {
            "max-over-grid"
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            bail!("the maximum of a GPU's scores")
        }

        fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            let (batch, height, width, classes) = layout.shape().dims4()?;
            let scores = View::new(storage, layout)?;
            let (pooled, cells) = pooling::max_over_grid(height * width, classes, &scores)?;
            self.cells_of_maxima.get_or_init(|| cells);
            Ok((pooled.into_storage(), (batch, classes).into()))
        }

        fn bwd(&self, scores: &Tensor, _: &Tensor, grad_pooled: &Tensor) -> Result<Option<Tensor>> {
            let (_, height, width, classes) = scores.dims4()?;
            let Some(cells) = self.cells_of_maxima.get() else {
                bail!("max_over_grid: backward before forward");
            };
            let grad_pooled = grad_pooled.contiguous()?;
            let grad_scores = pooling::max_over_grid_backward(
                height * width,
                classes,
                &View::of(&grad_pooled)?,
                &cells.view(),
            )?;
            Ok(Some(grad_scores.into_tensor(scores.dims())))
        }
    }
}
