//! Multi-head self-attention from packed queries, keys and values.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::attention::{self as kernels, AttentionShape};
use crate::cpu::attention_backward::{self, AttentionPass};
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// Multi-head self-attention from packed queries, keys and values, scaled by `1/sqrt(D / num_heads)`. No matrix of
/// tokens by tokens is kept for the gradient; on the CPU none ever exists.
///
/// # Shapes
/// qkv `[B, N, 3·D]`: queries, keys and values one after the other, each head-major, as timm's fused `qkv`
/// layer emits them; result `[B, N, D]`, head-major.
pub fn attention(qkv: &Tensor, num_heads: usize) -> Result<Tensor> {
    let shape = shape_of(qkv, num_heads)?;
    if !has_attention_kernels(qkv, shape.head_dim) {
        return composed::attention(qkv, num_heads);
    }
    let log_sums = if qkv.track_op() { LogSums::Keep(Mutex::new(Vec::new())) } else { LogSums::Drop };
    qkv.contiguous()?.apply_op1(Attention { shape, log_sums })
}

fn shape_of(qkv: &Tensor, num_heads: usize) -> Result<AttentionShape> {
    let (batch, tokens, packed) = qkv.dims3()?;
    if num_heads == 0 || packed == 0 || packed % (3 * num_heads) != 0 {
        bail!("attention: qkv has {packed} features, which do not split into 3 x {num_heads} heads");
    }
    Ok(AttentionShape { batch, tokens, heads: num_heads, head_dim: packed / (3 * num_heads) })
}

/// Whether there are kernels for a tensor of this device and type with heads of so many features: those of CUDA move four
/// features at a time.
pub(crate) fn has_attention_kernels(x: &Tensor, head_dim: usize) -> bool {
    has_kernels(&[x]) && (!x.device().is_cuda() || head_dim.is_multiple_of(4))
}

/// Attention without a graph, for tensors that [`has_attention_kernels`], and what [`Attention::bwd`] needs of it.
pub(crate) fn attention_to_go_back(qkv: &Tensor, num_heads: usize) -> Result<(Tensor, Attention)> {
    let shape = shape_of(qkv, num_heads)?;
    let operation = Attention { shape, log_sums: LogSums::Keep(Mutex::new(Vec::new())) };
    Ok((qkv.apply_op1_no_bwd(&operation)?, operation))
}

pub(crate) struct Attention {
    shape: AttentionShape,
    log_sums: LogSums,
}

/// The rows' log-sum-exp, all that backward needs besides input and output.
enum LogSums {
    Keep(Mutex<Vec<f32>>),
    Drop,
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
            LogSums::Drop => kernels::forward(SimdPath::detect(), self.shape, qkv, &mut y, None),
        }
        Ok((CpuStorage::F32(y), (self.shape.batch, self.shape.tokens, self.shape.features()).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let y = cuda::attention::forward(self.shape, &View::new(storage, layout)?)?;
        Ok((y.into_storage(), (self.shape.batch, self.shape.tokens, self.shape.features()).into()))
    }

    fn bwd(&self, qkv: &Tensor, y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad_y = grad_y.contiguous()?;
        #[cfg(feature = "cuda")]
        if qkv.device().is_cuda() {
            let grad_qkv = cuda::attention::backward(self.shape, &View::of(qkv)?, &View::of(&grad_y)?)?;
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
