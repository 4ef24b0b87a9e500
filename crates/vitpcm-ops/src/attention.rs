//! Multi-head self-attention from packed queries, keys and values.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::attention::{self as kernels, AttentionShape};
use crate::cpu::attention_backward::{self, AttentionPass};
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{
    self, View,
    attention::{Attended, Pass},
};
use crate::linear::linear;
use crate::tensors::{Floats, floats, has_kernels, output, tensor};
use crate::transformer_block::Affine;

/// Multi-head self-attention from packed queries, keys and values, scaled by `1/sqrt(D / num_heads)`. The attention
/// matrix is not kept for backward; on the CPU it never exists.
///
/// # Shapes
/// qkv `[B, N, 3·D]`: queries, keys and values concatenated, each head-major, as timm's fused `qkv` layer emits them;
/// result `[B, N, D]`, head-major.
pub fn attention(qkv: &Tensor, num_heads: usize) -> Result<Tensor> {
    let shape = shape_of(qkv, num_heads)?;
    if !has_attention_kernels(qkv, shape.head_dim) {
        return composed::attention(qkv, num_heads);
    }
    let log_sums = if qkv.track_op() { LogSums::keep(qkv) } else { LogSums::Drop };
    qkv.contiguous()?.apply_op1(Attention { shape, bias: None, log_sums })
}

fn shape_of(qkv: &Tensor, num_heads: usize) -> Result<AttentionShape> {
    let (batch, tokens, packed) = qkv.dims3()?;
    if num_heads == 0 || packed == 0 || packed % (3 * num_heads) != 0 {
        bail!("attention: qkv has {packed} features, which do not split into 3 x {num_heads} heads");
    }
    Ok(AttentionShape { batch, tokens, heads: num_heads, head_dim: packed / (3 * num_heads) })
}

/// Whether there are kernels for this device, type and number of features per head: CUDA kernels move four features at
/// a time.
pub(crate) fn has_attention_kernels(x: &Tensor, head_dim: usize) -> bool {
    has_kernels(&[x]) && (!x.device().is_cuda() || head_dim.is_multiple_of(4))
}

/// [`attention`] after the linear layer that makes queries, keys and values. On a GPU without a graph, the kernel adds
/// the layer's bias.
pub(crate) fn attention_of_layer(x: &Tensor, layer: &Affine, num_heads: usize) -> Result<Tensor> {
    let head_dim = layer.bias.elem_count() / (3 * num_heads).max(1);
    let has_graph = [x, &layer.weight, &layer.bias].into_iter().any(Tensor::track_op);
    if has_graph || !x.device().is_cuda() || !has_attention_kernels(x, head_dim) {
        return attention(&linear(x, &layer.weight, Some(&layer.bias))?, num_heads);
    }
    let qkv = linear(x, &layer.weight, None)?;
    let bias = Some(layer.bias.contiguous()?);
    let operation = Attention { shape: shape_of(&qkv, num_heads)?, bias, log_sums: LogSums::Drop };
    qkv.apply_op1_no_bwd(&operation)
}

/// Attention without a graph, for tensors that [`has_attention_kernels`], with the state that [`Attention::bwd`] needs.
pub(crate) fn attention_to_go_back(qkv: &Tensor, num_heads: usize) -> Result<(Tensor, Attention)> {
    let shape = shape_of(qkv, num_heads)?;
    let operation = Attention { shape, bias: None, log_sums: LogSums::keep(qkv) };
    Ok((qkv.apply_op1_no_bwd(&operation)?, operation))
}

pub(crate) struct Attention {
    shape: AttentionShape,
    /// The bias still to be added to queries, keys and values; on GPUs only.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    bias: Option<Tensor>,
    log_sums: LogSums,
}

/// Log-sum-exp of each row, all that backward needs besides input and output.
enum LogSums {
    Keep(Mutex<Vec<f32>>),
    /// Set if the kernels that need them ran.
    #[cfg(feature = "cuda")]
    OnCuda(Box<std::sync::OnceLock<cuda::Array>>),
    Drop,
}

impl LogSums {
    /// Prepared on the device of qkv.
    fn keep(qkv: &Tensor) -> Self {
        #[cfg(feature = "cuda")]
        if qkv.device().is_cuda() {
            return Self::OnCuda(Box::default());
        }
        let _ = qkv;
        Self::Keep(Mutex::new(Vec::new()))
    }
}

impl CustomOp1 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let qkv = floats(storage, layout)?;
        let mut y = output(self.shape.output_len());
        match &self.log_sums {
            LogSums::Keep(kept) => {
                let mut log_sums = output(self.shape.rows());
                kernels::forward(SimdPath::detect(), self.shape, qkv, &mut y, Some(&mut log_sums));
                *kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = log_sums;
            }
            _ => kernels::forward(SimdPath::detect(), self.shape, qkv, &mut y, None),
        }
        Ok((CpuStorage::F32(y), (self.shape.batch, self.shape.tokens, self.shape.features()).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let bias = self.bias.as_ref().map(View::of).transpose()?;
        let qkv = View::new(storage, layout)?;
        let pass = match self.log_sums {
            LogSums::Drop => Pass::Inference,
            LogSums::Keep(_) | LogSums::OnCuda(_) => Pass::Training,
        };
        let Attended { y, log_sums } = cuda::attention::forward(self.shape, &qkv, bias.as_ref(), pass)?;
        if let (LogSums::OnCuda(kept), Some(log_sums)) = (&self.log_sums, log_sums) {
            let _ = kept.set(log_sums);
        }
        Ok((y.into_storage(), (self.shape.batch, self.shape.tokens, self.shape.features()).into()))
    }

    fn bwd(&self, qkv: &Tensor, y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad_y = grad_y.contiguous()?;
        #[cfg(feature = "cuda")]
        if qkv.device().is_cuda() {
            let (view, grad_y) = (View::of(qkv)?, View::of(&grad_y)?);
            let log_sums = match &self.log_sums {
                LogSums::OnCuda(log_sums) => log_sums.get(),
                LogSums::Keep(_) | LogSums::Drop => None,
            };
            let grad_qkv = match log_sums {
                Some(log_sums) => {
                    let (y, log_sums) = (View::of(y)?, log_sums.view());
                    cuda::attention::flash_backward(self.shape, &view, &y, &log_sums, &grad_y)?
                }
                None => cuda::attention::backward(self.shape, &view, &grad_y)?,
            };
            return Ok(Some(grad_qkv.into_tensor(qkv.dims())));
        }
        let LogSums::Keep(log_sums) = &self.log_sums else {
            bail!("attention was run on a tensor without a graph");
        };
        let log_sums = log_sums.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut grad_qkv = output(qkv.elem_count());
        let (packed, y, grad_y) = (Floats::of(qkv)?, Floats::of(y)?, Floats::of(&grad_y)?);
        let pass = AttentionPass {
            qkv: packed.get()?,
            output: y.get()?,
            log_sums: &log_sums,
            grad_output: grad_y.get()?,
        };
        attention_backward::backward(SimdPath::detect(), self.shape, pass, &mut grad_qkv);
        Ok(Some(tensor(grad_qkv, qkv.dims())?))
    }
}
