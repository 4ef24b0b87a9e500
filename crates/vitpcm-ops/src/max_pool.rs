//! Max pooling: in the stem of a ResNet, and between the blocks of Xception.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::composed;
use crate::cpu::max_pool::{self as kernels, PoolAxis, PoolShape};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// Stride and position of the 3×3 windows. Pixels beyond the edge do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolWindows {
    /// Stride 2, centred on every second pixel from the first: PyTorch with padding 1.
    EverySecond,
    /// Stride 2 with TensorFlow's padding `same`.
    EverySecondSame,
    /// Stride 1.
    Every,
}

impl PoolWindows {
    pub(crate) fn axis(self, inputs: usize) -> PoolAxis {
        let (stride, before) = match self {
            PoolWindows::EverySecond => (2, 1),
            PoolWindows::EverySecondSame => (2, inputs % 2),
            PoolWindows::Every => (1, 1),
        };
        PoolAxis { inputs, stride, before }
    }
}

/// The maximum of 3×3 pixels. The gradient goes to the first of equal ones in row-major order, as in PyTorch.
///
/// # Shapes
/// x `[B, H, W, C]`; result `[B, H', W', C]`, one value per window: `⌈H/2⌉` or H.
pub fn max_pool(x: &Tensor, windows: PoolWindows) -> Result<Tensor> {
    x.dims4()?;
    if !has_kernels(&[x]) {
        return composed::max_pool(x, windows);
    }
    x.contiguous()?.apply_op1(MaxPool { windows })
}

struct MaxPool {
    windows: PoolWindows,
}

impl MaxPool {
    fn shapes(&self, dims: &[usize]) -> (PoolShape, [usize; 4]) {
        let [batch, channels] = [dims[0], dims[3]];
        let (rows, columns) = (self.windows.axis(dims[1]), self.windows.axis(dims[2]));
        (PoolShape { rows, columns, channels }, [batch, rows.outputs(), columns.outputs(), channels])
    }
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max-pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (shape, result) = self.shapes(layout.dims());
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
        let (shape, result) = self.shapes(layout.dims());
        let pooled = cuda::max_pool::forward(shape, &View::new(x, layout)?)?;
        Ok((pooled.into_storage(), result.as_slice().into()))
    }

    fn bwd(&self, x: &Tensor, pooled: &Tensor, grad_pooled: &Tensor) -> Result<Option<Tensor>> {
        let (shape, _) = self.shapes(x.dims());
        let grad_pooled = grad_pooled.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let (x_view, pooled, grad) = (View::of(x)?, View::of(pooled)?, View::of(&grad_pooled)?);
            let grad_x = cuda::max_pool::backward(shape, &x_view, &pooled, &grad)?;
            return Ok(Some(grad_x.into_tensor(x.dims())));
        }
        let _ = pooled;
        let mut grad_x = output(x.elem_count());
        kernels::backward(shape, Floats::of(x)?.get()?, Floats::of(&grad_pooled)?.get()?, &mut grad_x);
        Ok(Some(tensor(grad_x, x.dims())?))
    }
}
