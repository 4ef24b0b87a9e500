//! Linear layers, optionally followed by GELU.

use std::borrow::Cow;

use candle_core::{CpuStorage, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::bf16::Factors;
use crate::cpu::linear::{self as kernels, LinearShape};
use crate::cpu::matmul::Finish;
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::gelu::gelu;
use crate::optional_third::{self, Gradients, OptionalThird};
use crate::tensors::{Floats, floats, has_kernels, output, run_on_cpu, tensor};

/// `x · weightᵀ + bias` over the last dimension. A product runs in the type of x on a GPU, of the weight on the CPU, where x and the
/// result are f32.
///
/// # Shapes
/// x `[..., in]`, weight `[out, in]`, bias `[out]`; result `[..., out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    apply(x, weight, bias, Tail::None)
}

/// [`linear`] followed by [`gelu`].
pub fn linear_gelu(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    // GELU's gradient needs its input: with a graph, two operations keep it; without, it is never stored.
    if x.track_op() || weight.track_op() || bias.is_some_and(Tensor::track_op) {
        gelu(&linear(x, weight, bias)?)
    } else {
        apply(x, weight, bias, Tail::Gelu)
    }
}

#[derive(Clone, Copy)]
enum Tail {
    None,
    Gelu,
}

fn apply(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, tail: Tail) -> Result<Tensor> {
    let (out_features, in_features) = weight.dims2()?;
    if x.dims().last() != Some(&in_features) || bias.is_some_and(|bias| bias.dims() != [out_features]) {
        bail!(
            "linear: x {:?} and bias {:?} do not fit weight [{out_features}, {in_features}]",
            x.dims(),
            bias.map(Tensor::dims)
        );
    }
    let mut tensors = vec![x];
    // The CPU takes weights in bf16 as well.
    tensors.extend((!is_rounded(weight)).then_some(weight));
    tensors.extend(bias);
    // Biases are added in f32.
    let bias_fits = bias.is_none_or(|bias| bias.dtype() == DType::F32);
    if !has_kernels(&tensors) || !bias_fits {
        return match tail {
            Tail::None => composed::linear(x, weight, bias),
            Tail::Gelu => composed::linear_gelu(x, weight, bias),
        };
    }
    optional_third::apply(Linear { tail }, x, weight, bias)
}

struct Linear {
    tail: Tail,
}

impl OptionalThird for Linear {
    const NAME: &'static str = "linear";

    fn forward(
        &self,
        x: (&CpuStorage, &Layout),
        weight: (&CpuStorage, &Layout),
        bias: Option<&[f32]>,
    ) -> Result<(CpuStorage, Shape)> {
        let (out_features, in_features) = weight.1.shape().dims2()?;
        let shape = result_shape(x.1, out_features);
        let mut y = output(shape.elem_count());
        let linear =
            LinearShape { rows: shape.elem_count() / out_features.max(1), in_features, out_features };
        let finish = match (self.tail, bias) {
            (Tail::Gelu, bias) => Finish::Gelu(bias),
            (Tail::None, Some(bias)) => Finish::Bias(bias),
            (Tail::None, None) => Finish::Keep,
        };
        let (path, x) = (SimdPath::detect(), floats(x.0, x.1)?);
        let (factors, weight) = weight_floats(weight.0, weight.1)?;
        kernels::forward(path, factors, linear, x, &weight, finish, &mut y);
        Ok((CpuStorage::F32(y), shape))
    }

    #[cfg(feature = "cuda")]
    fn forward_on_cuda(
        &self,
        x: (&candle_core::CudaStorage, &Layout),
        weight: (&candle_core::CudaStorage, &Layout),
        bias: Option<View<'_>>,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (out_features, in_features) = weight.1.shape().dims2()?;
        let result = result_shape(x.1, out_features);
        let (x, weight) = (View::new(x.0, x.1)?, View::new(weight.0, weight.1)?);
        let shape = LinearShape { rows: x.len / in_features.max(1), in_features, out_features };
        use cuda::elementwise::Tail as After;
        let y = match (&bias, self.tail) {
            (Some(bias), Tail::None) => cuda::linear::forward(shape, &x, &weight, Some((bias, After::Bias)))?,
            (Some(bias), Tail::Gelu) => {
                cuda::linear::forward(shape, &x, &weight, Some((bias, After::BiasGelu)))?
            }
            (None, Tail::None) => cuda::linear::forward(shape, &x, &weight, None)?,
            (None, Tail::Gelu) => {
                cuda::elementwise::gelu(&cuda::linear::forward(shape, &x, &weight, None)?.view())?
            }
        };
        Ok((y.into_storage(), result))
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        _y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<Gradients> {
        if let Tail::Gelu = self.tail {
            bail!("linear with a fused GELU is for inference only");
        }
        let grad_y = grad_y.contiguous()?;
        let grad_x = x.track_op().then(|| x_gradient(x, weight, &grad_y)).transpose()?;
        let gradient = || weight_gradient(x, weight, weight.dtype(), &grad_y);
        let grad_weight = weight.track_op().then(gradient).transpose()?;
        let trained = bias.filter(|bias| bias.track_op());
        let grad_bias = trained.map(|bias| bias_gradient(bias, &grad_y)).transpose()?;
        Ok((grad_x, grad_weight, grad_bias))
    }
}

/// The shape of x with the last dimension replaced.
fn result_shape(x: &Layout, out_features: usize) -> Shape {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = out_features;
    }
    dims.into()
}

fn shape_of(weight: &Tensor, grad_y: &Tensor) -> Result<LinearShape> {
    let (out_features, in_features) = weight.dims2()?;
    Ok(LinearShape { rows: grad_y.elem_count() / out_features.max(1), in_features, out_features })
}

/// The gradient of [`linear`]'s x. All tensors here and below are contiguous.
pub(crate) fn x_gradient(x: &Tensor, weight: &Tensor, grad_y: &Tensor) -> Result<Tensor> {
    let shape = shape_of(weight, grad_y)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let grad_x = cuda::linear::backward_x(shape, &View::of(weight)?, &View::of(grad_y)?)?;
        return Ok(grad_x.into_tensor(x.dims()));
    }
    let mut grad_x = output(x.elem_count());
    let (storage, layout) = weight.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else {
        bail!("a CPU kernel was given a tensor of another device")
    };
    let (factors, weight) = weight_floats(storage, layout)?;
    let grad_y = Floats::of(grad_y)?;
    kernels::backward_x(SimdPath::detect(), factors, shape, &weight, grad_y.get()?, &mut grad_x);
    tensor(grad_x, x.dims())
}

/// The gradient of [`linear`]'s weight, on the CPU by a product of this type.
pub(crate) fn weight_gradient(
    x: &Tensor,
    weight: &Tensor,
    products: DType,
    grad_y: &Tensor,
) -> Result<Tensor> {
    let shape = shape_of(weight, grad_y)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let grad_weight = cuda::linear::backward_weight(shape, &View::of(x)?, &View::of(grad_y)?)?;
        return grad_weight.into_tensor(weight.dims()).to_dtype(weight.dtype());
    }
    let mut grad_weight = output(weight.elem_count());
    let (x, grad_y) = (Floats::of(x)?, Floats::of(grad_y)?);
    let factors = if products == DType::BF16 { Factors::Bf16 } else { Factors::F32 };
    kernels::backward_weight(SimdPath::detect(), factors, shape, x.get()?, grad_y.get()?, &mut grad_weight);
    tensor(grad_weight, weight.dims())
}

/// The weight converted for products of type `dtype`, so that several products round it only once.
pub(crate) fn rounded(weight: &Tensor, dtype: DType) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if weight.dtype() != dtype && cuda::run_on_cuda(&[weight]) && matches!(dtype, DType::F32 | DType::BF16) {
        let weight = weight.contiguous()?;
        return Ok(cuda::elementwise::cast(&View::of(&weight)?, dtype)?.into_tensor(weight.dims()));
    }
    match run_on_cpu(&[weight]) && dtype == DType::BF16 {
        true => weight.to_dtype(dtype),
        false => Ok(weight.clone()),
    }
}

/// Whether the weight is in bf16 for the CPU's kernels.
fn is_rounded(weight: &Tensor) -> bool {
    weight.device().is_cpu() && weight.dtype() == DType::BF16
}

/// A contiguous weight for the CPU's kernels, which pack and round it anew.
fn weight_floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<(Factors, Cow<'a, [f32]>)> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::BF16(weight), Some((start, end))) => {
            let widened = weight[start..end].iter().map(|weight| weight.to_f32());
            Ok((Factors::Bf16, widened.collect()))
        }
        _ => Ok((Factors::F32, Cow::Borrowed(floats(storage, layout)?))),
    }
}

/// The gradient of [`linear`]'s bias.
pub(crate) fn bias_gradient(bias: &Tensor, grad_y: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if bias.device().is_cuda() {
        let grad_bias = cuda::linear::backward_bias(bias.elem_count(), &View::of(grad_y)?)?;
        return Ok(grad_bias.into_tensor(bias.dims()));
    }
    let mut grad_bias = output(bias.elem_count());
    kernels::backward_bias(Floats::of(grad_y)?.get()?, &mut grad_bias);
    tensor(grad_bias, bias.dims())
}
