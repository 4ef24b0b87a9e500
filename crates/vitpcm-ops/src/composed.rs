//! The operations composed of candle's own, for devices without our kernels. Correct and differentiable everywhere,
//! fast nowhere.

use candle_core::{D, DType, Result, Tensor, bail};

use crate::conv::{Activation, ConvNorm, Window};
use crate::hv_bilstm::{HvBiLstmWeights, LstmWeights};
use crate::max_pool::PoolWindows;
use crate::resize::{ResizeRule, resize_grid};

/// `x · weightᵀ + bias` over the last dimension.
///
/// # Shapes
/// x `[..., in]`, weight `[out, in]`, bias `[out]`; result `[..., out]`.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (out_features, in_features) = weight.dims2()?;
    let mut shape = x.dims().to_vec();
    let Some(last) = shape.last_mut() else { bail!("linear: x has no dimension") };
    *last = out_features;
    let rows = x.elem_count() / in_features.max(1);
    let product = x.contiguous()?.reshape((rows, in_features))?.matmul(&weight.t()?)?;
    let sum = match bias {
        Some(bias) => product.broadcast_add(bias)?,
        None => product,
    };
    sum.reshape(shape)
}

/// [`linear`] followed by [`gelu`].
pub(crate) fn linear_gelu(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    gelu(&linear(x, weight, bias)?)
}

/// The exact GELU, `x · Φ(x)` with Φ the normal distribution function (erf, not the tanh approximation).
pub(crate) fn gelu(x: &Tensor) -> Result<Tensor> {
    let phi = ((x / std::f64::consts::SQRT_2)?.erf()? + 1.0)?;
    (x * phi)? * 0.5
}

/// Normalises the last dimension to mean 0 and variance 1 (biased, plus `eps`), then scales and shifts.
///
/// # Shapes
/// x `[..., d]`, weight and bias `[d]`; result as x.
pub(crate) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normalised = centred.broadcast_div(&(variance + eps)?.sqrt()?)?;
    normalised.broadcast_mul(weight)?.broadcast_add(bias)
}

/// Softmax over the last dimension.
pub(crate) fn softmax(x: &Tensor) -> Result<Tensor> {
    // The maximum only prevents overflow and has no gradient.
    let exponentials = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

/// Multi-head self-attention from packed queries, keys and values, scaled by `1/sqrt(D / num_heads)`.
///
/// # Shapes
/// qkv `[B, N, 3·D]`: queries, keys and values concatenated, each head-major, as timm's fused `qkv` layer emits them;
/// result `[B, N, D]`, head-major.
pub(crate) fn attention(qkv: &Tensor, num_heads: usize) -> Result<Tensor> {
    let (batch, tokens, packed) = qkv.dims3()?;
    let head_dim = packed / (3 * num_heads);
    let qkv = qkv.reshape((batch, tokens, 3, num_heads, head_dim))?.permute((2, 0, 3, 1, 4))?;
    let query = (qkv.get(0)?.contiguous()? * (1.0 / (head_dim as f64).sqrt()))?;
    let key = qkv.get(1)?.contiguous()?;
    let value = qkv.get(2)?.contiguous()?;
    let weights = softmax(&query.matmul(&key.t()?)?)?;
    weights.matmul(&value)?.transpose(1, 2)?.reshape((batch, tokens, num_heads * head_dim))
}

/// The maximum of each class over the grid.
///
/// # Shapes
/// scores `[B, H, W, C]`; result `[B, C]`.
pub(crate) fn max_over_grid(scores: &Tensor) -> Result<Tensor> {
    let (batch, height, width, classes) = scores.dims4()?;
    let by_class = scores.reshape((batch, height * width, classes))?.transpose(1, 2)?.contiguous()?;
    let largest = by_class.detach().argmax_keepdim(2)?;
    by_class.gather(&largest, 2)?.squeeze(2)
}

/// Resamples a grid's rows by `rows` `[out_height, H]` and its columns by `columns` `[out_width, W]`.
pub(crate) fn resample(scores: &Tensor, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
    let (batch, height, width, classes) = scores.dims4()?;
    let (out_height, out_width) = (rows.dim(0)?, columns.dim(0)?);
    let mixed_columns = scores
        .transpose(2, 3)?
        .contiguous()?
        .reshape((batch * height * classes, width))?
        .matmul(&columns.t()?)?
        .reshape((batch, height, classes * out_width))?;
    let mixed = mixed_columns
        .transpose(1, 2)?
        .contiguous()?
        .reshape((batch * classes * out_width, height))?
        .matmul(&rows.t()?)?
        .reshape((batch, classes, out_width, out_height))?;
    mixed.permute((0, 3, 2, 1))?.contiguous()
}

/// See [`crate::conv_norm()`].
pub(crate) fn conv_norm(
    x: &Tensor,
    weight: &Tensor,
    norm: &ConvNorm,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let Window { stride, padding, dilation } = norm.window;
    let weight = weight.to_dtype(x.dtype())?.permute((0, 3, 1, 2))?.contiguous()?;
    let mut convolved = x.permute((0, 3, 1, 2))?.contiguous()?.conv2d(&weight, padding, 1, dilation, 1)?;
    // candle's strided convolution has a wrong gradient if height and width leave different remainders.
    for axis in [2, 3] {
        if stride > 1 {
            let kept = Tensor::arange_step(0, convolved.dim(axis)? as u32, stride as u32, x.device())?;
            convolved = convolved.index_select(&kept, axis)?;
        }
    }
    let [scale, shift] = [&norm.scale, &norm.shift].map(|part| part.to_dtype(x.dtype()));
    let mut y = convolved.permute((0, 2, 3, 1))?.broadcast_mul(&scale?)?.broadcast_add(&shift?)?;
    if let Some(residual) = residual {
        y = (y + residual)?;
    }
    match norm.activation {
        Activation::None => Ok(y),
        Activation::Relu => y.relu(),
    }
}

/// See [`crate::max_pool()`]; equal pixels share the gradient.
pub(crate) fn max_pool(x: &Tensor, windows: PoolWindows) -> Result<Tensor> {
    let mut pooled = x.clone();
    for axis in [1, 2] {
        let along = windows.axis(pooled.dim(axis)?);
        // Replicating the edge adds no value that is not already in the window.
        let padded = pooled.pad_with_same(axis, along.before, 2)?;
        let (stride, span) = (along.stride as u32, (along.stride * along.outputs()) as u32);
        let part = |start: u32| {
            padded.index_select(&Tensor::arange_step(start, start + span, stride, x.device())?, axis)
        };
        pooled = part(0)?.maximum(&part(1)?)?.maximum(&part(2)?)?;
    }
    Ok(pooled)
}

/// See [`crate::depthwise()`].
pub(crate) fn depthwise(x: &Tensor, weight: &Tensor, dilation: usize) -> Result<Tensor> {
    let (_, height, width, _) = x.dims4()?;
    let padded = x.pad_with_zeros(1, dilation, dilation)?.pad_with_zeros(2, dilation, dilation)?;
    let weight = weight.to_dtype(x.dtype())?.flatten(0, 1)?;
    let part = |tap: usize| {
        let (row, column) = (tap / 3 * dilation, tap % 3 * dilation);
        padded.narrow(1, row, height)?.narrow(2, column, width)?.broadcast_mul(&weight.get(tap)?)
    };
    (1..9).try_fold(part(0)?, |sum, tap| sum + part(tap)?)
}

/// See [`crate::cross_entropy()`].
pub(crate) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (_, rows, columns) = labels.dims3()?;
    let logits = resize_grid(logits, rows, columns, ResizeRule::AlignCorners)?;
    // The maximum only prevents overflow and has no gradient.
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let classes = Tensor::arange(0u32, logits.dim(D::Minus1)? as u32, logits.device())?;
    let is_label =
        labels.to_dtype(DType::U32)?.unsqueeze(3)?.broadcast_eq(&classes)?.to_dtype(logits.dtype())?;
    (shifted.broadcast_sub(&log_sum)? * is_label)?.sum(D::Minus1)?.neg()
}

/// See [`crate::neighbour_sums()`].
pub(crate) fn neighbour_sums(products: &Tensor, classes: usize, rates: &[usize]) -> Result<Tensor> {
    let (batch, height, width, _) = products.dims4()?;
    let mut sum = Tensor::zeros((batch, height, width, classes), DType::F32, products.device())?;
    for (index, &rate) in rates.iter().enumerate() {
        let of_rate = products.narrow(3, index * classes * 9, classes * 9)?.to_dtype(DType::F32)?;
        let of_rate = of_rate.reshape(vec![batch, height, width, classes, 9])?;
        let padded = of_rate.pad_with_zeros(1, rate, rate)?.pad_with_zeros(2, rate, rate)?;
        for tap in 0..9 {
            let (row, column) = (tap / 3 * rate, tap % 3 * rate);
            let shifted = padded.narrow(1, row, height)?.narrow(2, column, width)?.narrow(4, tap, 1)?;
            sum = (sum + shifted.squeeze(4)?)?;
        }
    }
    Ok(sum)
}

#[derive(Clone, Copy)]
enum Direction {
    Forward,
    Backward,
}

/// The four LSTMs of the HV-BiLSTM, one after the other.
pub(crate) fn hv_bilstm(grid: &Tensor, weights: &HvBiLstmWeights) -> Result<Tensor> {
    let columns = grid.transpose(1, 2)?;
    let row_forward = along_rows(grid, &weights.row_forward, Direction::Forward)?;
    let row_backward = along_rows(grid, &weights.row_backward, Direction::Backward)?;
    let column_forward =
        along_rows(&columns, &weights.column_forward, Direction::Forward)?.transpose(1, 2)?;
    let column_backward =
        along_rows(&columns, &weights.column_backward, Direction::Backward)?.transpose(1, 2)?;
    Tensor::cat(&[row_forward, row_backward, column_forward, column_backward], 3)
}

fn along_rows(grid: &Tensor, weights: &LstmWeights, direction: Direction) -> Result<Tensor> {
    let (batch, height, width, _) = grid.dims4()?;
    let units = weights.weight_hh.dim(1)?;
    let bias = (&weights.bias_ih + &weights.bias_hh)?;
    let projected = linear(grid, &weights.weight_ih, Some(&bias))?;
    let recurrent = weights.weight_hh.t()?;
    let mut hidden = Tensor::zeros((batch * height, units), grid.dtype(), grid.device())?;
    let mut cell = hidden.clone();
    let mut outputs = vec![hidden.clone(); width];
    for step in 0..width {
        let position = match direction {
            Direction::Forward => step,
            Direction::Backward => width - 1 - step,
        };
        let input = projected.narrow(2, position, 1)?.reshape((batch * height, 4 * units))?;
        let gates = (input + hidden.matmul(&recurrent)?)?;
        let gate = |index: usize| gates.narrow(1, index * units, units);
        let kept = (sigmoid(&gate(1)?)? * &cell)?;
        cell = (kept + (sigmoid(&gate(0)?)? * gate(2)?.tanh()?)?)?;
        hidden = (sigmoid(&gate(3)?)? * cell.tanh()?)?;
        outputs[position] = hidden.clone();
    }
    Tensor::stack(&outputs, 1)?.reshape((batch, height, width, units))
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ResizeRule;

    fn noise(dims: &[usize]) -> Var {
        Var::from_tensor(&Tensor::randn(0f32, 1.0, dims, &Device::Cpu).expect("noise")).expect("a variable")
    }

    /// Compares values and gradients of a composition with those of the operation.
    #[track_caller]
    fn check(
        inputs: &[Var],
        composed: impl Fn(&[Var]) -> Result<Tensor>,
        operation: impl Fn(&[Var]) -> Result<Tensor>,
    ) {
        let (composed, operation) =
            (composed(inputs).expect("composition"), operation(inputs).expect("operation"));
        assert_close(&composed, &operation);
        let cotangent = noise(composed.dims());
        let gradients = |output: &Tensor| {
            let loss = (output * cotangent.as_tensor()).and_then(|product| product.sum_all());
            loss.and_then(|loss| loss.backward()).expect("gradients")
        };
        let (of_composed, of_operation) = (gradients(&composed), gradients(&operation));
        for input in inputs {
            assert_close(of_composed.get(input).expect("one"), of_operation.get(input).expect("other"));
        }
    }

    #[track_caller]
    fn assert_close(a: &Tensor, b: &Tensor) {
        assert_eq!(a.dims(), b.dims());
        let values =
            |tensor: &Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("floats");
        for (a, b) in values(a).into_iter().zip(values(b)) {
            assert!((a - b).abs() <= 3e-5 * b.abs().max(1.0), "{a} {b}");
        }
    }

    #[test]
    fn every_composition_equals_its_operation_in_values_and_gradients() {
        let layer = [noise(&[2, 5, 12]), noise(&[7, 12]), noise(&[7])];
        check(&layer, |v| linear(&v[0], &v[1], Some(&v[2])), |v| crate::linear(&v[0], &v[1], Some(&v[2])));
        check(
            &layer,
            |v| linear_gelu(&v[0], &v[1], Some(&v[2])),
            |v| crate::linear_gelu(&v[0], &v[1], Some(&v[2])),
        );
        check(&layer[..2], |v| linear(&v[0], &v[1], None), |v| crate::linear(&v[0], &v[1], None));
        check(&layer[..1], |v| softmax(&v[0]), |v| crate::softmax(&v[0]));
        let norm = [noise(&[3, 21]), noise(&[21]), noise(&[21])];
        check(
            &norm,
            |v| layer_norm(&v[0], &v[1], &v[2], 1e-6),
            |v| crate::layer_norm(&v[0], &v[1], &v[2], 1e-6),
        );
        check(&[noise(&[2, 9, 36])], |v| attention(&v[0], 3), |v| crate::attention(&v[0], 3));
        let window = Window { stride: 2, padding: 2, dilation: 2 };
        let [scale, shift] = [noise(&[5]), noise(&[5])].map(|part| part.as_tensor().clone());
        let norm = ConvNorm { window, scale, shift, activation: Activation::Relu };
        let convolution = [noise(&[2, 7, 6, 3]), noise(&[5, 3, 3, 3]), noise(&[2, 4, 3, 5])];
        check(
            &convolution,
            |v| conv_norm(&v[0], &v[1], &norm, Some(&v[2])),
            |v| crate::conv_norm(&v[0], &v[1], &norm, Some(&v[2])),
        );
        for size in [(7, 6), (2, 1), (8, 9)] {
            for windows in [PoolWindows::EverySecond, PoolWindows::EverySecondSame, PoolWindows::Every] {
                let x = [noise(&[2, size.0, size.1, 3])];
                check(&x, |v| max_pool(&v[0], windows), |v| crate::max_pool(&v[0], windows));
            }
            for dilation in [1, 2, 4] {
                let convolution = [noise(&[2, size.0, size.1, 5]), noise(&[3, 3, 5])];
                check(
                    &convolution,
                    |v| depthwise(&v[0], &v[1], dilation),
                    |v| crate::depthwise(&v[0], &v[1], dilation),
                );
            }
        }
        for size in [(4, 5), (13, 11), (1, 1)] {
            let labels: Vec<u8> = (0..2 * size.0 * size.1).map(|i| [0, 6, 255, 3, 7, 1][i % 6]).collect();
            let labels = Tensor::from_vec(labels, (2, size.0, size.1), &Device::Cpu).unwrap();
            let logits = [noise(&[2, 4, 5, 7])];
            check(&logits, |v| cross_entropy(&v[0], &labels), |v| crate::cross_entropy(&v[0], &labels));
        }
        let products = [noise(&[2, 5, 6, 4 * 9])];
        check(&products, |v| neighbour_sums(&v[0], 2, &[2, 1]), |v| crate::neighbour_sums(&v[0], 2, &[2, 1]));
        let scores = [noise(&[2, 4, 5, 6])];
        check(&scores, |v| max_over_grid(&v[0]), |v| crate::max_over_grid(&v[0]));
    }

    #[test]
    fn the_composed_hv_bilstm_equals_the_operation() {
        let mut inputs = vec![noise(&[2, 3, 4, 6])];
        for _ in 0..4 {
            inputs.extend([noise(&[20, 6]), noise(&[20, 5]), noise(&[20]), noise(&[20])]);
        }
        let weights = |v: &[Var]| {
            let direction = |index: usize| {
                let [weight_ih, weight_hh, bias_ih, bias_hh] =
                    [1, 2, 3, 4].map(|part| v[4 * index + part].as_tensor().clone());
                LstmWeights { weight_ih, weight_hh, bias_ih, bias_hh }
            };
            HvBiLstmWeights {
                row_forward: direction(0),
                row_backward: direction(1),
                column_forward: direction(2),
                column_backward: direction(3),
            }
        };
        check(
            &inputs,
            |v| hv_bilstm(&v[0], &weights(v)),
            |v| crate::hv_bilstm(&v[0], &weights(v), crate::Products::Exact),
        );
    }

    #[test]
    fn composed_resampling_equals_the_operation() {
        let rows = crate::resize::sampling_matrix(4, 7, ResizeRule::HalfPixel);
        let columns = crate::resize::sampling_matrix(5, 3, ResizeRule::HalfPixel);
        let rows = Tensor::from_vec(rows, (7, 4), &Device::Cpu).expect("rows");
        let columns = Tensor::from_vec(columns, (3, 5), &Device::Cpu).expect("columns");
        check(
            &[noise(&[2, 4, 5, 6])],
            |v| resample(&v[0], &rows, &columns),
            |v| crate::resize_grid(&v[0], 7, 3, ResizeRule::HalfPixel),
        );
    }
}
