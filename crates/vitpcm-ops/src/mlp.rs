//! The dense parts of a transformer block in training: linear layers with what stands before and behind them in one
//! operation, so that neither GELU's output nor what goes into dropout is kept for backward.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::cpu::linear::{self as kernels, LinearShape};
use crate::cpu::matmul::Finish;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::SimdPath;
use crate::cpu::{dropout as dropout_kernels, mlp as mlp_kernels};
use crate::dropout::{DropoutMask, dropout};
use crate::linear::{linear, linear_gelu};
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// The parameters of a transformer's MLP.
#[derive(Debug, Clone, Copy)]
pub struct MlpWeights<'a> {
    /// First layer, `[hidden, in]`.
    pub fc1_weight: &'a Tensor,
    /// Its bias, `[hidden]`.
    pub fc1_bias: &'a Tensor,
    /// Second layer, `[out, hidden]`.
    pub fc2_weight: &'a Tensor,
    /// Its bias, `[out]`.
    pub fc2_bias: &'a Tensor,
}

/// The masks of an MLP's two dropouts; none, and nothing is dropped.
#[derive(Debug, Clone, Copy, Default)]
pub struct MlpDropout {
    /// Behind GELU.
    pub hidden: Option<DropoutMask>,
    /// Behind the second layer.
    pub output: Option<DropoutMask>,
}

/// The MLP of a transformer block: linear layer, GELU, dropout, linear layer, dropout.
///
/// # Shapes
/// x `[..., in]`; result `[..., out]`.
pub fn mlp(x: &Tensor, weights: MlpWeights<'_>, masks: MlpDropout) -> Result<Tensor> {
    let MlpWeights { fc1_weight, fc1_bias, fc2_weight, fc2_bias } = weights;
    let tensors = [x, fc1_weight, fc1_bias, fc2_weight, fc2_bias];
    if run_on_cpu(&tensors) && tensors.iter().any(|tensor| tensor.track_op()) {
        let hidden = linear(x, fc1_weight, Some(fc1_bias))?;
        let before = Before::GeluAndDropout(masks.hidden);
        return Dropped { before, mask: masks.output }.apply(&hidden, fc2_weight, fc2_bias);
    }
    let hidden = dropped(linear_gelu(x, fc1_weight, Some(fc1_bias))?, masks.hidden)?;
    dropped(linear(&hidden, fc2_weight, Some(fc2_bias))?, masks.output)
}

/// [`linear`] followed by [`dropout`] where there is a mask.
///
/// # Shapes
/// x `[..., in]`, weight `[out, in]`, bias `[out]`; result `[..., out]`.
pub fn linear_dropout(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    mask: Option<DropoutMask>,
) -> Result<Tensor> {
    if mask.is_some() && run_on_cpu(&[x, weight, bias]) {
        return Dropped { before: Before::Nothing, mask }.apply(x, weight, bias);
    }
    dropped(linear(x, weight, Some(bias))?, mask)
}

/// [`dropout`] where there is a mask.
pub(crate) fn dropped(x: Tensor, mask: Option<DropoutMask>) -> Result<Tensor> {
    match mask {
        Some(mask) => dropout(&x, mask),
        None => Ok(x),
    }
}

/// What happens to the input of a linear layer first.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    GeluAndDropout(Option<DropoutMask>),
}

/// A linear layer with its surroundings: `dropout(before(x) · weightᵀ + bias)`. Backward computes `before(x)` again.
struct Dropped {
    before: Before,
    mask: Option<DropoutMask>,
}

impl Dropped {
    fn apply(self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let (out_features, in_features) = weight.dims2()?;
        if x.dims().last() != Some(&in_features) || bias.dims() != [out_features] {
            let (x, bias) = (x.dims(), bias.dims());
            bail!("linear: x {x:?} and bias {bias:?} do not fit weight [{out_features}, {in_features}]");
        }
        x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, self)
    }

    /// Calls `run` with the linear layer's input.
    fn with_input<R>(&self, path: SimdPath, x: &[f32], run: impl FnOnce(&[f32]) -> R) -> R {
        match self.before {
            Before::Nothing => run(x),
            Before::GeluAndDropout(mask) => {
                let mut hidden = Scratch::take(x.len());
                mlp_kernels::activate(path, mask, x, &mut hidden);
                run(&hidden)
            }
        }
    }
}

impl CustomOp3 for Dropped {
    fn name(&self) -> &'static str {
        "linear-dropout"
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
        let path = SimdPath::detect();
        let (out_features, in_features) = weight_layout.shape().dims2()?;
        let mut dims = x_layout.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = out_features;
        }
        let x = floats(x, x_layout)?;
        let shape = LinearShape { rows: x.len() / in_features.max(1), in_features, out_features };
        let (weight, bias) = (floats(weight, weight_layout)?, floats(bias, bias_layout)?);
        let mut y = output(shape.rows * out_features);
        self.with_input(path, x, |x| kernels::forward(path, shape, x, weight, Finish::Bias(bias), &mut y));
        if let Some(mask) = self.mask {
            dropout_kernels::apply(path, mask, &mut y);
        }
        Ok((CpuStorage::F32(y), dims.into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let path = SimdPath::detect();
        let (out_features, in_features) = weight.dims2()?;
        let shape = LinearShape { rows: x.elem_count() / in_features.max(1), in_features, out_features };
        let grad_y = grad_y.contiguous()?;
        let (grad_y, x_floats) = (Floats::of(&grad_y)?, Floats::of(x)?);
        let mut kept = Scratch::take(if self.mask.is_some() { grad_y.get()?.len() } else { 0 });
        let grad_y = match self.mask {
            None => grad_y.get()?,
            Some(mask) => {
                kept.copy_from_slice(grad_y.get()?);
                dropout_kernels::apply(path, mask, &mut kept);
                &kept
            }
        };
        let mut grad_weight = weight.track_op().then(|| output(weight.elem_count()));
        if let Some(grad_weight) = &mut grad_weight {
            self.with_input(path, x_floats.get()?, |x| {
                kernels::backward_weight(path, shape, x, grad_y, grad_weight);
            });
        }
        let mut grad_bias = bias.track_op().then(|| output(bias.elem_count()));
        if let Some(grad_bias) = &mut grad_bias {
            kernels::backward_bias(grad_y, grad_bias);
        }
        let mut grad_x = x.track_op().then(|| output(x.elem_count()));
        if let Some(grad_x) = &mut grad_x {
            let weight = Floats::of(weight)?;
            match self.before {
                Before::Nothing => kernels::backward_x(path, shape, weight.get()?, grad_y, grad_x),
                Before::GeluAndDropout(mask) => {
                    let mut grad_hidden = Scratch::take(x.elem_count());
                    kernels::backward_x(path, shape, weight.get()?, grad_y, &mut grad_hidden);
                    mlp_kernels::activate_backward(path, mask, x_floats.get()?, &mut grad_hidden, grad_x);
                }
            }
        }
        let made =
            |grad: Option<Vec<f32>>, like: &Tensor| grad.map(|grad| tensor(grad, like.dims())).transpose();
        Ok((made(grad_x, x)?, made(grad_weight, weight)?, made(grad_bias, bias)?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::gelu::gelu;

    fn variable(dims: &[usize]) -> Tensor {
        let noise = Tensor::randn(0f32, 0.5, dims, &Device::Cpu).unwrap();
        Var::from_tensor(&noise).unwrap().as_tensor().clone()
    }

    #[track_caller]
    fn assert_same(found: &Tensor, expected: &Tensor) {
        let difference = (found - expected).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
        assert!(difference.to_scalar::<f32>().unwrap() < 1e-5, "{difference}");
    }

    /// Values and gradients of one function of the tensors equal those of another.
    #[track_caller]
    fn assert_same_with_gradients(
        found: impl Fn() -> Result<Tensor>,
        expected: impl Fn() -> Result<Tensor>,
        variables: &[&Tensor],
    ) {
        let (found, expected) = (found().unwrap(), expected().unwrap());
        assert_same(&found, &expected);
        let weights = Tensor::randn(0f32, 1.0, found.dims(), &Device::Cpu).unwrap();
        let gradients = |y: &Tensor| (y * &weights).unwrap().sum_all().unwrap().backward().unwrap();
        let (found, expected) = (gradients(&found), gradients(&expected));
        for variable in variables {
            assert_same(found.get(variable).unwrap(), expected.get(variable).unwrap());
        }
    }

    #[test]
    fn the_mlp_and_its_gradients_are_those_of_its_parts() {
        let (x, w1, b1) = (variable(&[2, 7, 5]), variable(&[33, 5]), variable(&[33]));
        let (w2, b2) = (variable(&[6, 33]), variable(&[6]));
        let weights = MlpWeights { fc1_weight: &w1, fc1_bias: &b1, fc2_weight: &w2, fc2_bias: &b2 };
        let hidden_mask = DropoutMask { key: 3, position: 100, rate: 0.3 };
        let output_mask = DropoutMask { key: 3, position: 1000, rate: 0.2 };
        for masks in [
            MlpDropout::default(),
            MlpDropout { hidden: Some(hidden_mask), output: None },
            MlpDropout { hidden: Some(hidden_mask), output: Some(output_mask) },
        ] {
            assert_same_with_gradients(
                || mlp(&x, weights, masks),
                || {
                    let hidden = dropped(gelu(&linear(&x, &w1, Some(&b1))?)?, masks.hidden)?;
                    dropped(linear(&hidden, &w2, Some(&b2))?, masks.output)
                },
                &[&x, &w1, &b1, &w2, &b2],
            );
        }
    }

    #[test]
    fn a_linear_layer_with_dropout_is_one_followed_by_the_other() {
        let (x, weight, bias) = (variable(&[3, 40, 9]), variable(&[70, 9]), variable(&[70]));
        let mask = Some(DropoutMask { key: 8, position: 5, rate: 0.4 });
        assert_same_with_gradients(
            || linear_dropout(&x, &weight, &bias, mask),
            || dropped(linear(&x, &weight, Some(&bias))?, mask),
            &[&x, &weight, &bias],
        );
    }
}
