//! The epilogues of a transformer block's linear layers, forward and backward, without a graph: GELU and dropout within
//! the MLP; dropout, LayerScale and the residual sum at the end of a branch. On the CPU they are separate operations;
//! on a GPU, where each would be a pass over memory, one kernel after the product.

use candle_core::{CustomOp1, DType, Result, Tensor, bail};

use crate::add_scaled::{add_scaled, branch_gradient, scale_gradient};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::dropout::{DropoutMask, dropped};
use crate::gelu::{Gelu, gelu};
use crate::linear::{bias_gradient, linear};
use crate::transformer_block::Affine;

/// How a residual branch ends: `x + scale · dropout(linear(input))`.
#[derive(Clone, Copy)]
pub(crate) struct BranchEnd<'a> {
    pub(crate) layer: &'a Affine,
    pub(crate) mask: Option<DropoutMask>,
    pub(crate) scale: Option<&'a Tensor>,
}

/// What a pass keeps besides its result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    /// The branch before its scale, if it has one.
    ForBackward,
}

/// The gradients of a [`BranchEnd`], except those of the linear layer's weight and input.
pub(crate) struct BranchGradients {
    /// Of the linear layer's output.
    pub(crate) product: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) scale: Option<Tensor>,
}

impl BranchEnd<'_> {
    /// Records a graph if an argument has one. x is f32.
    pub(crate) fn forward(&self, x: &Tensor, input: &Tensor, keep: Keep) -> Result<(Tensor, Option<Tensor>)> {
        let Self { layer, mask, scale } = *self;
        #[cfg(feature = "cuda")]
        if self.is_one_kernel(x, input) {
            return self.forward_on_cuda(x, input, keep);
        }
        let branch = dropped(linear(input, &layer.weight, Some(&layer.bias))?, mask)?;
        let y = add_scaled(x, &branch, scale)?;
        Ok((y, (keep == Keep::ForBackward && scale.is_some()).then_some(branch)))
    }

    /// `branch` is what [`BranchEnd::forward`] kept; the product's gradient has type `dtype`.
    pub(crate) fn backward(
        &self,
        branch: Option<&Tensor>,
        grad_y: &Tensor,
        dtype: DType,
    ) -> Result<BranchGradients> {
        let Self { layer, mask, scale } = *self;
        let scaled = match (scale, branch) {
            (None, _) => None,
            (Some(scale), Some(branch)) => Some((scale, branch)),
            (Some(_), None) => bail!("the branch before a LayerScale was not kept"),
        };
        #[cfg(feature = "cuda")]
        if grad_y.device().is_cuda() {
            let columns = layer.bias.elem_count();
            let views = scaled
                .map(|(scale, branch)| Ok::<_, candle_core::Error>((View::of(scale)?, View::of(branch)?)));
            let views = views.transpose()?;
            let views = views.as_ref().map(|(scale, branch)| (scale, branch));
            let (product, sums) =
                cuda::column_sums::branch_backward(&View::of(grad_y)?, views, mask, columns, dtype)?;
            let sums = sums.into_tensor(2 * columns);
            let scale = scale.map(|_| sums.narrow(0, columns, columns)).transpose()?;
            let bias = sums.narrow(0, 0, columns)?;
            return Ok(BranchGradients { product: product.into_tensor(grad_y.dims()), bias, scale });
        }
        let of_scale = scaled.map(|(scale, branch)| scale_gradient(scale, branch, grad_y)).transpose()?;
        let product = dropped(branch_gradient(scale, grad_y, dtype)?, mask)?;
        let bias = bias_gradient(&layer.bias, &product)?;
        Ok(BranchGradients { product, bias, scale: of_scale })
    }

    #[cfg(feature = "cuda")]
    fn is_one_kernel(&self, x: &Tensor, input: &Tensor) -> bool {
        let Affine { weight, bias } = self.layer;
        let f32s = [Some(x), Some(bias), self.scale];
        let mut all = f32s.iter().flatten().copied().chain([input, weight]);
        f32s.iter().flatten().all(|tensor| tensor.dtype() == DType::F32)
            && all.all(|tensor| cuda::run_on_cuda(&[tensor]) && !tensor.track_op())
    }

    #[cfg(feature = "cuda")]
    fn forward_on_cuda(&self, x: &Tensor, input: &Tensor, keep: Keep) -> Result<(Tensor, Option<Tensor>)> {
        use cuda::elementwise::{Branch, Kept};

        let Self { layer, mask, scale } = *self;
        let (out_features, _) = layer.weight.dims2()?;
        if x.dims().last() != Some(&out_features)
            || x.elem_count() * input.dim(input.rank() - 1)? != input.elem_count() * out_features
            || layer.bias.dims() != [out_features]
            || scale.is_some_and(|scale| scale.dims() != [out_features])
        {
            bail!(
                "a branch of {:?} by {:?} does not fit x {:?}",
                input.dims(),
                layer.weight.dims(),
                x.dims()
            );
        }
        let (x, bias) = (x.contiguous()?, layer.bias.contiguous()?);
        let scale = scale.map(Tensor::contiguous).transpose()?;
        let product = product(input, &layer.weight)?;
        let keeps = keep == Keep::ForBackward && scale.is_some();
        let branch = Branch {
            bias: Some(View::of(&bias)?),
            mask: DropoutMask::checked(mask)?,
            scale: scale.as_ref().map(View::of).transpose()?,
            kept: if keeps { Kept::In(&product) } else { Kept::Nowhere },
        };
        let y = cuda::elementwise::add_scaled(&View::of(&x)?, &product.view(), &branch, out_features)?;
        Ok((y.into_tensor(x.dims()), keeps.then(|| product.into_tensor(x.dims()))))
    }
}

/// The product of a linear layer, without its bias.
#[cfg(feature = "cuda")]
fn product(input: &Tensor, weight: &Tensor) -> Result<cuda::Array> {
    let (out_features, in_features) = weight.dims2()?;
    if input.dims().last() != Some(&in_features) {
        bail!("linear: x {:?} does not fit weight [{out_features}, {in_features}]", input.dims());
    }
    let (input, weight) = (input.contiguous()?, weight.contiguous()?);
    let rows = input.elem_count() / in_features.max(1);
    let shape = crate::cpu::linear::LinearShape { rows, in_features, out_features };
    cuda::linear::forward(shape, &View::of(&input)?, &View::of(&weight)?, None)
}

/// A linear layer followed by GELU and dropout, without a graph. Returns GELU's input and dropout's output.
pub(crate) fn activate(x: &Tensor, layer: &Affine, mask: Option<DropoutMask>) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if cuda::run_on_cuda(&[x, &layer.weight, &layer.bias]) {
        let bias = layer.bias.contiguous()?;
        let hidden = product(x, &layer.weight)?;
        let activated = cuda::elementwise::activate(&hidden, &View::of(&bias)?, DropoutMask::checked(mask)?)?;
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = bias.elem_count();
        }
        return Ok((hidden.into_tensor(dims.as_slice()), activated.into_tensor(dims.as_slice())));
    }
    let hidden = linear(x, &layer.weight, Some(&layer.bias))?;
    let activated = dropped(gelu(&hidden)?, mask)?;
    Ok((hidden, activated))
}

/// What [`activate_backward`] returns.
pub(crate) struct ActivateGradients {
    /// Dropout's output, recomputed.
    pub(crate) activated: Tensor,
    pub(crate) hidden: Tensor,
    pub(crate) bias: Tensor,
}

/// Backward of [`activate`]. Nothing else may hold `grad`: on a GPU it is overwritten with the gradient of `hidden`.
pub(crate) fn activate_backward(
    bias: &Tensor,
    hidden: &Tensor,
    grad: Tensor,
    mask: Option<DropoutMask>,
) -> Result<ActivateGradients> {
    #[cfg(feature = "cuda")]
    if hidden.device().is_cuda() {
        let columns = bias.elem_count();
        let (activated, of_bias) =
            cuda::column_sums::activate_backward(&View::of(hidden)?, &View::of(&grad)?, mask, columns)?;
        let (activated, of_bias) = (activated.into_tensor(hidden.dims()), of_bias.into_tensor(columns));
        return Ok(ActivateGradients { activated, hidden: grad, bias: of_bias });
    }
    let grad = dropped(grad, mask)?;
    let Some(of_hidden) = Gelu.bwd(hidden, hidden, &grad)? else { bail!("GELU has a gradient") };
    drop(grad);
    let bias = bias_gradient(bias, &of_hidden)?;
    let activated = dropped(gelu(hidden)?, mask)?;
    Ok(ActivateGradients { activated, hidden: of_hidden, bias })
}
