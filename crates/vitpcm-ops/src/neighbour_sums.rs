//! The second half of an atrous 3×3 convolution to few classes: products first (a linear layer to nine numbers a
//! class), then the sum over neighbours. With many channels and few classes that moves a hundredth of what laying the
//! neighbours' channels side by side would.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::neighbour_sums::{self as kernels, NeighbourShape, TAPS};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// Sums over each pixel's 3×3 neighbours, `dilation` pixels apart, what they contribute through their tap (row by row
/// from the upper left); beyond the edge there is nothing. The result is f32.
///
/// # Shapes
/// products `[B, H, W, classes · 9]`, the taps of a class together; result `[B, H, W, classes]`.
pub fn neighbour_sums(products: &Tensor, dilation: usize) -> Result<Tensor> {
    let (_, _, _, columns) = products.dims4()?;
    if columns == 0 || !columns.is_multiple_of(TAPS) || dilation == 0 {
        bail!("neighbour_sums: {columns} products a pixel with dilation {dilation}, expected nine a class");
    }
    if !has_kernels(&[products]) {
        return composed::neighbour_sums(products, dilation);
    }
    products.contiguous()?.apply_op1(NeighbourSums { dilation })
}

struct NeighbourSums {
    dilation: usize,
}

impl NeighbourSums {
    fn shapes(&self, dims: &[usize]) -> (NeighbourShape, [usize; 4]) {
        let [batch, height, width, classes] = [dims[0], dims[1], dims[2], dims[3] / TAPS];
        let shape = NeighbourShape { height, width, classes, dilation: self.dilation };
        (shape, [batch, height, width, classes])
    }
}

impl CustomOp1 for NeighbourSums {
    fn name(&self) -> &'static str {
        "neighbour-sums"
    }

    fn cpu_fwd(&self, products: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (shape, result) = self.shapes(layout.dims());
        let mut sums = output(result.iter().product());
        kernels::forward(shape, floats(products, layout)?, &mut sums);
        Ok((CpuStorage::F32(sums), result.as_slice().into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        products: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (shape, result) = self.shapes(layout.dims());
        let sums = cuda::neighbour_sums::forward(shape, &View::new(products, layout)?)?;
        Ok((sums.into_storage(), result.as_slice().into()))
    }

    fn bwd(&self, products: &Tensor, _sums: &Tensor, grad_sums: &Tensor) -> Result<Option<Tensor>> {
        let (shape, _) = self.shapes(products.dims());
        let grad_sums = grad_sums.to_dtype(DType::F32)?.contiguous()?;
        #[cfg(feature = "cuda")]
        if products.device().is_cuda() {
            let grad = cuda::neighbour_sums::backward(shape, &View::of(&grad_sums)?, products.dtype())?;
            return Ok(Some(grad.into_tensor(products.dims())));
        }
        let mut grad_products = output(products.elem_count());
        kernels::backward(shape, Floats::of(&grad_sums)?.get()?, &mut grad_products);
        Ok(Some(tensor(grad_products, products.dims())?))
    }
}
