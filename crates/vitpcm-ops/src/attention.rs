//! Multi-head self-attention from packed queries, keys and values.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::attention::{self as kernels, AttentionShape};
use crate::cpu::attention_backward::{self, AttentionPass};
use crate::cpu::simd::SimdPath;
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// Multi-head self-attention from packed queries, keys and values, scaled by `1/sqrt(D / num_heads)`. No matrix of
/// tokens by tokens is ever stored.
///
/// # Shapes
/// qkv `[B, N, 3·D]`: queries, keys and values one after the other, each head-major, as timm's fused `qkv`
/// layer emits them; result `[B, N, D]`, head-major.
pub fn attention(qkv: &Tensor, num_heads: usize) -> Result<Tensor> {
    let (batch, tokens, packed) = qkv.dims3()?;
    if num_heads == 0 || packed == 0 || packed % (3 * num_heads) != 0 {
        bail!("attention: qkv has {packed} features, which do not split into 3 x {num_heads} heads");
    }
    if !run_on_cpu(&[qkv]) {
        return composed::attention(qkv, num_heads);
    }
    let shape = AttentionShape { batch, tokens, heads: num_heads, head_dim: packed / (3 * num_heads) };
    let log_sums = if qkv.track_op() { LogSums::Keep(Mutex::new(Vec::new())) } else { LogSums::Drop };
    qkv.contiguous()?.apply_op1(Attention { shape, log_sums })
}

struct Attention {
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

    fn bwd(&self, qkv: &Tensor, y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let LogSums::Keep(log_sums) = &self.log_sums else {
            bail!("attention was run on a tensor without a graph");
        };
        let log_sums = log_sums.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let grad_y = grad_y.contiguous()?;
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
