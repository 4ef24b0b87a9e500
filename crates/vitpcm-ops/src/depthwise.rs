//! Depthwise convolutions: the first half of Xception's separable convolutions; the second half is a 1×1 convolution.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::depthwise::{self as kernels, DepthwiseShape, Taps};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// A 3×3 depthwise convolution with dilation and zero padding. The result has the type of x.
///
/// # Shapes
/// x and result `[B, H, W, C]`, weight `[3, 3, C]`, f32.
pub fn depthwise(x: &Tensor, weight: &Tensor, dilation: usize) -> Result<Tensor> {
    let (_, _, _, channels) = x.dims4()?;
    if weight.dims() != [3, 3, channels] || weight.dtype() != DType::F32 || dilation == 0 {
        bail!("depthwise: weight {:?} with dilation {dilation} does not fit x {:?}", weight.dims(), x.dims());
    }
    if !has_kernels(&[x, weight]) {
        return composed::depthwise(x, weight, dilation);
    }
    x.contiguous()?.apply_op2(&weight.contiguous()?, Depthwise { dilation })
}

struct Depthwise {
    dilation: usize,
}

impl Depthwise {
    fn shape(&self, x: &[usize]) -> DepthwiseShape {
        DepthwiseShape { height: x[1], width: x[2], channels: x[3], dilation: self.dilation }
    }
}

impl CustomOp2 for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (floats(x, x_layout)?, floats(weight, weight_layout)?);
        let mut y = output(x.len());
        kernels::convolve(self.shape(x_layout.dims()), Taps::Forward, x, weight, &mut y);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        x_layout: &Layout,
        weight: &candle_core::CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let shape = self.shape(x_layout.dims());
        let (x, weight) = (View::new(x, x_layout)?, View::new(weight, weight_layout)?);
        let y = cuda::depthwise::convolve(shape, Taps::Forward, &x, &weight)?;
        Ok((y.into_storage(), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        grad_y: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let shape = self.shape(x.dims());
        let grad_y = grad_y.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let grad_view = View::of(&grad_y)?.expect(x.dtype())?;
            let grad_x = match x.track_op() {
                true => {
                    let grad =
                        cuda::depthwise::convolve(shape, Taps::Backward, &grad_view, &View::of(weight)?)?;
                    Some(grad.into_tensor(x.dims()))
                }
                false => None,
            };
            let grad_weight = match weight.track_op() {
                true => {
                    let grad = cuda::depthwise::backward_weight(shape, &View::of(x)?, &grad_view)?;
                    Some(grad.into_tensor(weight.dims()))
                }
                false => None,
            };
            return Ok((grad_x, grad_weight));
        }
        let grad_values = Floats::of(&grad_y)?;
        let grad_x = match x.track_op() {
            true => {
                let mut grad_x = output(x.elem_count());
                let weight = Floats::of(weight)?;
                kernels::convolve(shape, Taps::Backward, grad_values.get()?, weight.get()?, &mut grad_x);
                Some(tensor(grad_x, x.dims())?)
            }
            false => None,
        };
        let grad_weight = match weight.track_op() {
            true => {
                let mut grad_weight = output(weight.elem_count());
                let x = Floats::of(x)?;
                kernels::backward_weight(shape, x.get()?, grad_values.get()?, &mut grad_weight);
                Some(tensor(grad_weight, weight.dims())?)
            }
            false => None,
        };
        Ok((grad_x, grad_weight))
    }
}
