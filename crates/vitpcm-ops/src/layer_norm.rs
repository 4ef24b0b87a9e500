//! Layer norm over the last dimension.

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::layer_norm as kernels;
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// Normalises the last dimension to mean 0 and variance 1 (biased, plus `eps`), then scales and shifts.
///
/// # Shapes
/// x `[..., d]`, weight and bias `[d]`; result as x.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    layer_norm_to(x, weight, bias, eps, x.dtype())
}

/// [`layer_norm`] with output in another type, for the product that follows.
pub fn layer_norm_to(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64, dtype: DType) -> Result<Tensor> {
    let columns = x.dims().last().copied().unwrap_or(0);
    if weight.dims() != [columns] || bias.dims() != [columns] {
        bail!(
            "layer_norm: weight {:?} and bias {:?} do not fit x {:?}",
            weight.dims(),
            bias.dims(),
            x.dims()
        );
    }
    let run_on_cpu = run_on_cpu(&[x, weight, bias]) && dtype == DType::F32;
    #[cfg(feature = "cuda")]
    let run_on_cuda = cuda::run_on_cuda(&[x, weight, bias])
        && [x, weight, bias].iter().all(|tensor| tensor.dtype() == DType::F32)
        && matches!(dtype, DType::F32 | DType::BF16)
        && columns <= cuda::layer_norm::MAX_COLUMNS;
    #[cfg(not(feature = "cuda"))]
    let run_on_cuda = false;
    if run_on_cpu || run_on_cuda {
        let op = LayerNorm { eps: eps as f32, dtype };
        x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, op)
    } else {
        composed::layer_norm(x, weight, bias, eps)?.to_dtype(dtype)
    }
}

struct LayerNorm {
    eps: f32,
    /// Type of the result; f32 on the CPU.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    dtype: DType,
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = floats(x, x_layout)?;
        let weight = floats(weight, weight_layout)?;
        let bias = floats(bias, bias_layout)?;
        let mut y = output(x.len());
        let norm = kernels::LayerNorm { weight, bias, eps: self.eps };
        kernels::forward(SimdPath::detect(), norm, x, &mut y);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        x_layout: &Layout,
        weight: &candle_core::CudaStorage,
        weight_layout: &Layout,
        bias: &candle_core::CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (weight, bias) = (View::new(weight, weight_layout)?, View::new(bias, bias_layout)?);
        let y = cuda::layer_norm::forward(&View::new(x, x_layout)?, &weight, &bias, self.eps, self.dtype)?;
        Ok((y.into_storage(), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (grad_x, grad_weight, grad_bias) =
            gradients(x, weight, bias, self.eps, &grad_y.contiguous()?, None)?;
        let of = |argument: &Tensor, grad: Tensor| argument.track_op().then_some(grad);
        Ok((of(x, grad_x), of(weight, grad_weight), of(bias, grad_bias)))
    }
}

/// The gradients of [`layer_norm`]'s x, weight and bias; the first includes the gradient `around` the norm (the
/// residual path). All tensors are contiguous.
pub(crate) fn gradients(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
    grad_y: &Tensor,
    around: Option<&Tensor>,
) -> Result<(Tensor, Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let around = around.map(|around| View::of(around)?.expect(DType::F32)).transpose()?;
        let (x_view, weight_view, grad_y) = (View::of(x)?, View::of(weight)?, View::of(grad_y)?);
        let (grad_x, grads) =
            cuda::layer_norm::backward(&x_view, &weight_view, &grad_y, around.as_ref(), eps)?;
        let columns = weight.elem_count();
        let grads = grads.into_tensor(2 * columns);
        let part = |index: usize| grads.narrow(0, index * columns, columns);
        return Ok((grad_x.into_tensor(x.dims()), part(0)?, part(1)?));
    }
    let mut grad_x = output(x.elem_count());
    let mut grad_weight = output(weight.elem_count());
    let mut grad_bias = output(bias.elem_count());
    {
        let (x, grad_y) = (Floats::of(x)?, Floats::of(grad_y)?);
        let (weight, bias) = (Floats::of(weight)?, Floats::of(bias)?);
        let norm = kernels::LayerNorm { weight: weight.get()?, bias: bias.get()?, eps };
        let grads = kernels::Gradients { x: &mut grad_x, weight: &mut grad_weight, bias: &mut grad_bias };
        kernels::backward(SimdPath::detect(), norm, x.get()?, grad_y.get()?, grads);
    }
    let mut grad_x = tensor(grad_x, x.dims())?;
    if let Some(around) = around {
        grad_x = (grad_x + around)?;
    }
    Ok((grad_x, tensor(grad_weight, weight.dims())?, tensor(grad_bias, bias.dims())?))
}
