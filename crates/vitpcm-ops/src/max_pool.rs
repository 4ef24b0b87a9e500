//! Max pooling at the entrance of a ResNet.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::composed;
use crate::cpu::max_pool::{self as kernels, PoolShape, outputs};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// The largest of 3×3 pixels around every second one; pixels beyond the edge do not count. The gradient goes to the
/// first of equal ones, row by row, as in PyTorch.
///
/// # Shapes
/// x `[B, H, W, C]`; result `[B, ⌈H/2⌉, ⌈W/2⌉, C]`.
pub fn max_pool(x: &Tensor) -> Result<Tensor> {
    x.dims4()?;
    if !has_kernels(&[x]) {
        return composed::max_pool(x);
    }
    x.contiguous()?.apply_op1(MaxPool)
}

struct MaxPool;

fn shapes(dims: &[usize]) -> (PoolShape, [usize; 4]) {
    let [batch, height, width, channels] = [dims[0], dims[1], dims[2], dims[3]];
    (PoolShape { height, width, channels }, [batch, outputs(height), outputs(width), channels])
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max-pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (shape, result) = shapes(layout.dims());
        let mut pooled = output(result.iter().product());
        kernels::forward(shape, floats(x, layout)?, &mut pooled);
        Ok((CpuStorage::F32(pooled), result.as_slice().into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (shape, result) = shapes(layout.dims());
        let pooled = cuda::max_pool::forward(shape, &View::new(x, layout)?)?;
        Ok((pooled.into_storage(), result.as_slice().into()))
    }

    fn bwd(&self, x: &Tensor, _pooled: &Tensor, grad_pooled: &Tensor) -> Result<Option<Tensor>> {
        let (shape, _) = shapes(x.dims());
        let grad_pooled = grad_pooled.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let grad_x = cuda::max_pool::backward(shape, &View::of(x)?, &View::of(&grad_pooled)?)?;
            return Ok(Some(grad_x.into_tensor(x.dims())));
        }
        let mut grad_x = output(x.elem_count());
        kernels::backward(shape, Floats::of(x)?.get()?, Floats::of(&grad_pooled)?.get()?, &mut grad_x);
        Ok(Some(tensor(grad_x, x.dims())?))
    }
}
