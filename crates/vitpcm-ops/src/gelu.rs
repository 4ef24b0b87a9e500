//! The exact GELU, `x · Φ(x)` with Φ the normal distribution function (erf, not the tanh approximation).

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::composed;
use crate::cpu::gelu as kernels;
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// The exact GELU of every element.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    if has_kernels(&[x]) { x.contiguous()?.apply_op1(Gelu) } else { composed::gelu(x) }
}

pub(crate) struct Gelu;

impl CustomOp1 for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = floats(storage, layout)?;
        let mut y = output(x.len());
        kernels::forward(SimdPath::detect(), x, &mut y);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let y = cuda::elementwise::gelu(&View::new(storage, layout)?)?;
        Ok((y.into_storage(), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad_y = grad_y.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let grad_x = cuda::elementwise::gelu_backward(&View::of(x)?, &View::of(&grad_y)?)?;
            return Ok(Some(grad_x.into_tensor(x.dims())));
        }
        let mut grad_x = output(x.elem_count());
        kernels::backward(
            SimdPath::detect(),
            Floats::of(x)?.get()?,
            Floats::of(&grad_y)?.get()?,
            &mut grad_x,
        );
        Ok(Some(tensor(grad_x, x.dims())?))
    }
}
