//! The operations as compositions of candle's own: what devices without a kernel of ours run.
//! Correct and differentiable everywhere, fast nowhere.

use candle_core::{D, Result, Tensor, bail};

/// `x · weightᵀ + bias` over the last dimension.
///
/// # Shapes
/// x `[..., in]`, weight `[out, in]`, bias `[out]`; result `[..., out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (out_features, in_features) = weight.dims2()?;
    let mut shape = x.dims().to_vec();
    let Some(last) = shape.last_mut() else {
        bail!("linear: x has no dimension")
    };
    *last = out_features;
    let rows = x.elem_count() / in_features.max(1);
    let product = x
        .contiguous()?
        .reshape((rows, in_features))?
        .matmul(&weight.t()?)?;
    let sum = match bias {
        Some(bias) => product.broadcast_add(bias)?,
        None => product,
    };
    sum.reshape(shape)
}

/// [`linear`] followed by [`gelu`].
pub fn linear_gelu(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    gelu(&linear(x, weight, bias)?)
}

/// The exact GELU, `x · Φ(x)` with Φ the normal distribution function (erf, not the tanh approximation).
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    let phi = ((x / std::f64::consts::SQRT_2)?.erf()? + 1.0)?;
    (x * phi)? * 0.5
}

/// Normalises the last dimension to mean 0 and variance 1 (biased, plus `eps`), then scales and shifts.
///
/// # Shapes
/// x `[..., d]`, weight and bias `[d]`; result as x.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normalised = centred.broadcast_div(&(variance + eps)?.sqrt()?)?;
    normalised.broadcast_mul(weight)?.broadcast_add(bias)
}

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    // The maximum only guards against overflow; it has no part in the gradient.
    let exponentials = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

/// Multi-head self-attention from packed queries, keys and values, scaled by `1/sqrt(D / num_heads)`.
///
/// # Shapes
/// qkv `[B, N, 3·D]`: queries, keys and values one after the other, each head-major, as timm's fused `qkv`
/// layer emits them; result `[B, N, D]`, head-major.
pub fn attention(qkv: &Tensor, num_heads: usize) -> Result<Tensor> {
    let (batch, tokens, packed) = qkv.dims3()?;
    if num_heads == 0 || packed % (3 * num_heads) != 0 {
        bail!("attention: qkv has {packed} features, which do not split into 3 x {num_heads} heads");
    }
    let head_dim = packed / (3 * num_heads);
    let qkv = qkv
        .reshape((batch, tokens, 3, num_heads, head_dim))?
        .permute((2, 0, 3, 1, 4))?;
    let query = (qkv.get(0)?.contiguous()? * (1.0 / (head_dim as f64).sqrt()))?;
    let key = qkv.get(1)?.contiguous()?;
    let value = qkv.get(2)?.contiguous()?;
    let weights = softmax(&query.matmul(&key.t()?)?)?;
    weights
        .matmul(&value)?
        .transpose(1, 2)?
        .reshape((batch, tokens, num_heads * head_dim))
}

/// The maximum of each class over the grid; its gradient goes to the first cell that attains it (row by row).
///
/// # Shapes
/// scores `[B, H, W, C]`; result `[B, C]`.
pub fn max_over_grid(scores: &Tensor) -> Result<Tensor> {
    let (batch, height, width, classes) = scores.dims4()?;
    let cells = scores.reshape((batch, height * width, classes))?;
    let first = cells.detach().contiguous()?.argmax_keepdim(1)?;
    cells.contiguous()?.gather(&first, 1)?.squeeze(1)
}

/// The mean of the `k` largest values of each class over the grid.
///
/// # Shapes
/// scores `[B, H, W, C]`, `1 <= k <= H·W`; result `[B, C]`.
pub fn top_k_over_grid(scores: &Tensor, k: usize) -> Result<Tensor> {
    let (batch, height, width, classes) = scores.dims4()?;
    if k == 0 || k > height * width {
        bail!(
            "top_k_over_grid: k is {k}, expected 1 to {} (a {height} x {width} grid)",
            height * width
        );
    }
    let by_class = scores
        .reshape((batch, height * width, classes))?
        .transpose(1, 2)?
        .contiguous()?;
    let order = by_class.detach().arg_sort_last_dim(false)?;
    by_class.gather(&order.narrow(2, 0, k)?.contiguous()?, 2)?.mean(2)
}
