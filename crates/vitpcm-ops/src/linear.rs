//! Linear layers, with GELU where the network has one behind.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::linear::{self as kernels, LinearShape};
use crate::cpu::matmul::Finish;
use crate::cpu::simd::SimdPath;
use crate::gelu::gelu;
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// `x · weightᵀ + bias` over the last dimension.
///
/// # Shapes
/// x `[..., in]`, weight `[out, in]`, bias `[out]`; result `[..., out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    apply(x, weight, bias, Tail::None)
}

/// [`linear`] followed by [`gelu`].
pub fn linear_gelu(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    // The gradient of GELU needs what went into it: with a graph, two operations keep it; without, it never exists.
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
    let mut tensors = vec![x, weight];
    tensors.extend(bias);
    if !run_on_cpu(&tensors) {
        return match tail {
            Tail::None => composed::linear(x, weight, bias),
            Tail::Gelu => composed::linear_gelu(x, weight, bias),
        };
    }
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, Linear { tail }),
        None => x.apply_op2(&weight, Linear { tail }),
    }
}

struct Linear {
    tail: Tail,
}

impl Linear {
    fn forward(
        &self,
        x: (&CpuStorage, &Layout),
        weight: (&CpuStorage, &Layout),
        bias: Option<&[f32]>,
    ) -> Result<(CpuStorage, Shape)> {
        let (out_features, in_features) = weight.1.shape().dims2()?;
        let mut dims = x.1.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = out_features;
        }
        let shape = Shape::from(dims);
        let mut y = output(shape.elem_count());
        let linear =
            LinearShape { rows: shape.elem_count() / out_features.max(1), in_features, out_features };
        let finish = match (self.tail, bias) {
            (Tail::Gelu, bias) => Finish::Gelu(bias),
            (Tail::None, Some(bias)) => Finish::Bias(bias),
            (Tail::None, None) => Finish::Keep,
        };
        let (x, weight) = (floats(x.0, x.1)?, floats(weight.0, weight.1)?);
        kernels::forward(SimdPath::detect(), linear, x, weight, finish, &mut y);
        Ok((CpuStorage::F32(y), shape))
    }

    /// The gradients of x and weight, and the gradient of the result made contiguous.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        grad_y: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        if let Tail::Gelu = self.tail {
            bail!("linear with a fused GELU is for inference only");
        }
        let (out_features, in_features) = weight.dims2()?;
        let rows = grad_y.elem_count() / out_features.max(1);
        let shape = LinearShape { rows, in_features, out_features };
        let path = SimdPath::detect();
        let grad_y = Floats::of(grad_y)?;
        let grad_x = if x.track_op() {
            let mut grad_x = output(x.elem_count());
            kernels::backward_x(path, shape, Floats::of(weight)?.get()?, grad_y.get()?, &mut grad_x);
            Some(tensor(grad_x, x.dims())?)
        } else {
            None
        };
        let grad_weight = if weight.track_op() {
            let mut grad_weight = output(weight.elem_count());
            kernels::backward_weight(path, shape, Floats::of(x)?.get()?, grad_y.get()?, &mut grad_weight);
            Some(tensor(grad_weight, weight.dims())?)
        } else {
            None
        };
        Ok((grad_x, grad_weight))
    }
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, x_layout), (weight, weight_layout), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.backward(x, weight, &grad_y.contiguous()?)
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
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
        self.forward((x, x_layout), (weight, weight_layout), Some(floats(bias, bias_layout)?))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad_y = grad_y.contiguous()?;
        let (grad_x, grad_weight) = self.backward(x, weight, &grad_y)?;
        let grad_bias = if bias.track_op() {
            let mut grad_bias = output(bias.elem_count());
            kernels::backward_bias(Floats::of(&grad_y)?.get()?, &mut grad_bias);
            Some(tensor(grad_bias, bias.dims())?)
        } else {
            None
        };
        Ok((grad_x, grad_weight, grad_bias))
    }
}
