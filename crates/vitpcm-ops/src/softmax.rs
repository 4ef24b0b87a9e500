//! Softmax over the last dimension.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};

use crate::composed;
use crate::cpu::simd::SimdPath;
use crate::cpu::softmax as kernels;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    if has_kernels(&[x]) && x.dtype() == DType::F32 && x.rank() > 0 {
        x.contiguous()?.apply_op1(Softmax)
    } else {
        composed::softmax(x)
    }
}

struct Softmax;

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = floats(storage, layout)?;
        let columns = layout.dims().last().copied().unwrap_or(1);
        let mut y = output(x.len());
        kernels::forward(SimdPath::detect(), columns, x, &mut y);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let columns = layout.dims().last().copied().unwrap_or(1);
        let y = cuda::softmax::forward(columns, &View::new(storage, layout)?)?;
        Ok((y.into_storage(), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad_y = grad_y.contiguous()?;
        let columns = x.dims().last().copied().unwrap_or(1);
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let grad_x = cuda::softmax::backward(columns, &View::of(y)?, &View::of(&grad_y)?)?;
            return Ok(Some(grad_x.into_tensor(x.dims())));
        }
        let mut grad_x = output(x.elem_count());
        let (y, grad_y) = (Floats::of(y)?, Floats::of(&grad_y)?);
        kernels::backward(SimdPath::detect(), columns, y.get()?, grad_y.get()?, &mut grad_x);
        Ok(Some(tensor(grad_x, x.dims())?))
    }
}
