//! Softmax over the last dimension.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::composed;
use crate::cpu::simd::SimdPath;
use crate::cpu::softmax as kernels;
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    if run_on_cpu(&[x]) && x.rank() > 0 { x.contiguous()?.apply_op1(Softmax) } else { composed::softmax(x) }
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

    fn bwd(&self, x: &Tensor, y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad_y = grad_y.contiguous()?;
        let columns = x.dims().last().copied().unwrap_or(1);
        let mut grad_x = output(x.elem_count());
        let (y, grad_y) = (Floats::of(y)?, Floats::of(&grad_y)?);
        kernels::backward(SimdPath::detect(), columns, y.get()?, grad_y.get()?, &mut grad_x);
        Ok(Some(tensor(grad_x, x.dims())?))
    }
}
