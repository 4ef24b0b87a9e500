//! Convolutions with frozen batch norm: convolution, norm, residual and ReLU as one operation, which keeps one array
//! for backward instead of four.

use candle_core::{CpuStorage, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::conv as kernels;
use crate::cpu::conv::ConvShape;
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::one_node::sum;
use crate::optional_third::{self, Gradients, OptionalThird};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// Geometry of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Stride in pixels.
    pub stride: usize,
    /// Zero padding.
    pub padding: usize,
    /// Dilation in pixels.
    pub dilation: usize,
}

/// The activation after a convolution and its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    None,
    /// ReLU.
    Relu,
}

/// What follows a convolution: `activation(scale · result + shift + residual)`.
#[derive(Debug, Clone)]
pub struct ConvNorm {
    /// The convolution's geometry.
    pub window: Window,
    /// A factor per channel, f32; has no gradient.
    pub scale: Tensor,
    /// An offset per channel, f32; has no gradient.
    pub shift: Tensor,
    /// The final activation.
    pub activation: Activation,
}

/// A convolution with its frozen batch norm, an optional residual, and the activation. The result has the type of x.
///
/// # Shapes
/// x `[B, H, W, C]`, weight `[O, k, k, C]`, scale and shift `[O]`, residual and result `[B, H', W', O]`.
pub fn conv_norm(x: &Tensor, weight: &Tensor, norm: &ConvNorm, residual: Option<&Tensor>) -> Result<Tensor> {
    let shape = shape_of(x.dims(), weight.dims(), norm.window)?;
    let result = [shape.batch, shape.out_height(), shape.out_width(), shape.out_channels];
    let fits = |tensor: &Tensor| tensor.dims() == [shape.out_channels] && tensor.dtype() == DType::F32;
    if !fits(&norm.scale) || !fits(&norm.shift) {
        bail!("conv_norm: expected scale and shift of {} f32", shape.out_channels);
    }
    if residual.is_some_and(|residual| residual.dims() != result || residual.dtype() != x.dtype()) {
        bail!("conv_norm: the residual is {:?}, expected {result:?}", residual.map(Tensor::dims));
    }
    let mut tensors = vec![x, weight];
    tensors.extend(residual);
    if !has_kernels(&tensors) {
        return composed::conv_norm(x, weight, norm, residual);
    }
    let norm = ConvNorm {
        scale: norm.scale.contiguous()?.detach(),
        shift: norm.shift.contiguous()?.detach(),
        ..norm.clone()
    };
    optional_third::apply(norm, x, weight, residual)
}

fn shape_of(x: &[usize], weight: &[usize], window: Window) -> Result<ConvShape> {
    let (&[batch, height, width, channels], &[out_channels, kernel, kernel_width, in_channels]) = (x, weight)
    else {
        bail!("conv_norm: x {x:?} and weight {weight:?}, expected [B, H, W, C] and [O, k, k, C]");
    };
    let Window { stride, padding, dilation } = window;
    if in_channels != channels || kernel != kernel_width || kernel == 0 || stride == 0 || dilation == 0 {
        bail!("conv_norm: weight {weight:?} with {window:?} does not fit x {x:?}");
    }
    Ok(ConvShape { batch, height, width, channels, out_channels, kernel, stride, padding, dilation })
}

impl OptionalThird for ConvNorm {
    const NAME: &'static str = "conv-norm";

    fn forward(
        &self,
        x: (&CpuStorage, &Layout),
        weight: (&CpuStorage, &Layout),
        residual: Option<&[f32]>,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = shape_of(x.1.dims(), weight.1.dims(), self.window)?;
        let mut y = output(shape.rows() * shape.out_channels);
        let (x, weight) = (floats(x.0, x.1)?, floats(weight.0, weight.1)?);
        kernels::forward(SimdPath::detect(), &shape, x, weight, &mut y);
        let (scale, shift) = (Floats::of(&self.scale)?, Floats::of(&self.shift)?);
        kernels::finish(self.activation, scale.get()?, shift.get()?, residual, &mut y);
        Ok((CpuStorage::F32(y), result_shape(&shape)))
    }

    #[cfg(feature = "cuda")]
    fn forward_on_cuda(
        &self,
        x: (&candle_core::CudaStorage, &Layout),
        weight: (&candle_core::CudaStorage, &Layout),
        residual: Option<View<'_>>,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let shape = shape_of(x.1.dims(), weight.1.dims(), self.window)?;
        let (x, weight) = (View::new(x.0, x.1)?, View::new(weight.0, weight.1)?);
        let y = cuda::conv::forward(&shape, &x, &weight)?;
        let (scale, shift) = (View::of(&self.scale)?, View::of(&self.shift)?);
        cuda::conv::finish(self.activation, &scale, &shift, residual.as_ref(), &y)?;
        Ok((y.into_storage(), result_shape(&shape)))
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        residual: Option<&Tensor>,
        y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<Gradients> {
        let residual = match residual.is_some_and(Tensor::track_op) {
            true => Residual::Trained,
            false => Residual::None,
        };
        let (grad, grad_residual) =
            self.product_gradient(&y.contiguous()?, &grad_y.contiguous()?, residual)?;
        let grad_x = x.track_op().then(|| self.x_gradient(x, weight, &grad, None));
        let grad_weight = weight.track_op().then(|| self.weight_gradient(x, weight, &grad, None));
        Ok((grad_x.transpose()?, grad_weight.transpose()?, grad_residual))
    }
}

impl ConvNorm {
    /// The gradients of the convolution's result and of a residual. All tensors here and below are contiguous.
    pub(crate) fn product_gradient(
        &self,
        y: &Tensor,
        grad_y: &Tensor,
        residual: Residual,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let residual = residual == Residual::Trained;
        #[cfg(feature = "cuda")]
        if y.device().is_cuda() {
            let scale = View::of(&self.scale)?;
            let (grad_residual, grad) = cuda::conv::finish_backward(
                self.activation,
                &scale,
                &View::of(y)?,
                &View::of(grad_y)?,
                residual,
            )?;
            return Ok((grad.into_tensor(y.dims()), grad_residual.map(|grad| grad.into_tensor(y.dims()))));
        }
        let mut grad = output(y.elem_count());
        let mut grad_residual = residual.then(|| output(y.elem_count()));
        kernels::finish_backward(
            self.activation,
            Floats::of(&self.scale)?.get()?,
            Floats::of(y)?.get()?,
            Floats::of(grad_y)?.get()?,
            grad_residual.as_deref_mut(),
            &mut grad,
        );
        let grad_residual = grad_residual.map(|grad| tensor(grad, y.dims())).transpose()?;
        Ok((tensor(grad, y.dims())?, grad_residual))
    }

    /// The gradient of x from that of the convolution's result, added to `onto`.
    pub(crate) fn x_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        grad: &Tensor,
        onto: Option<Tensor>,
    ) -> Result<Tensor> {
        let shape = shape_of(x.dims(), weight.dims(), self.window)?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let (weight, grad) = (View::of(weight)?, View::of(grad)?);
            return match onto {
                Some(onto) if shape.is_pointwise() => {
                    cuda::conv::add_backward_x(&shape, &weight, &grad, &View::of(&onto)?)?;
                    Ok(onto)
                }
                onto => sum(cuda::conv::backward_x(&shape, &weight, &grad)?.into_tensor(x.dims()), onto),
            };
        }
        let mut grad_x = output(x.elem_count());
        let (weight, grad) = (Floats::of(weight)?, Floats::of(grad)?);
        kernels::backward_x(SimdPath::detect(), &shape, weight.get()?, grad.get()?, &mut grad_x);
        sum(tensor(grad_x, x.dims())?, onto)
    }

    /// The gradient of the weight from that of the convolution's result, added to `onto`.
    pub(crate) fn weight_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        grad: &Tensor,
        onto: Option<Tensor>,
    ) -> Result<Tensor> {
        let shape = shape_of(x.dims(), weight.dims(), self.window)?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let (x, grad) = (View::of(x)?, View::of(grad)?);
            return match onto {
                Some(onto) if onto.dtype() == DType::F32 => {
                    cuda::conv::add_backward_weight(&shape, &x, &grad, &View::of(&onto)?)?;
                    Ok(onto)
                }
                onto => {
                    let grad = cuda::conv::backward_weight(&shape, &x, &grad)?.into_tensor(weight.dims());
                    sum(grad.to_dtype(weight.dtype())?, onto)
                }
            };
        }
        let mut grad_weight = output(weight.elem_count());
        let (x, grad) = (Floats::of(x)?, Floats::of(grad)?);
        kernels::backward_weight(SimdPath::detect(), &shape, x.get()?, grad.get()?, &mut grad_weight);
        sum(tensor(grad_weight, weight.dims())?, onto)
    }
}

/// Whether a convolution's residual needs a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residual {
    /// There is no residual, or it is constant.
    None,
    /// It needs one.
    Trained,
}

fn result_shape(shape: &ConvShape) -> Shape {
    (shape.batch, shape.out_height(), shape.out_width(), shape.out_channels).into()
}
