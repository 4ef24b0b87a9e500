//! The second half of an atrous 3×3 convolution to few classes: after the products (a linear layer to nine numbers per
//! class), the sum over neighbours. With many channels and few classes this moves a hundredth of the memory of im2col.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::neighbour_sums::{self as kernels, MAX_RATES, NeighbourShape, TAPS};
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// For each pixel, sums the contributions of its 3×3 neighbours, each through its own tap (row-major); nothing comes
/// from beyond the edge. Each rate is a distance between neighbours in pixels, and the sums of all rates are added. The
/// result is f32.
///
/// # Shapes
/// products `[B, H, W, columns]`: for every rate nine taps per class, adjacent for each class; further columns are
/// ignored. Result `[B, H, W, classes]`.
pub fn neighbour_sums(products: &Tensor, classes: usize, rates: &[usize]) -> Result<Tensor> {
    let (_, _, _, columns) = products.dims4()?;
    let is_rate = |rate: &usize| (1..=i32::MAX as usize).contains(rate);
    if classes == 0 || columns < rates.len() * classes * TAPS || !rates.iter().all(is_rate) {
        bail!(
            "neighbour_sums: {columns} products per pixel for {classes} classes at rates {rates:?}, \
             expected nine per class and rate"
        );
    }
    if rates.is_empty() || rates.len() > MAX_RATES {
        bail!("neighbour_sums: {} rates, expected 1 to {MAX_RATES}", rates.len());
    }
    if !has_kernels(&[products]) {
        return composed::neighbour_sums(products, classes, rates);
    }
    products.contiguous()?.apply_op1(NeighbourSums { classes, rates: rates.to_vec() })
}

struct NeighbourSums {
    classes: usize,
    rates: Vec<usize>,
}

impl NeighbourSums {
    fn shapes(&self, dims: &[usize]) -> (NeighbourShape<'_>, [usize; 4]) {
        let [batch, height, width, columns] = [dims[0], dims[1], dims[2], dims[3]];
        let Self { classes, rates } = self;
        let shape = NeighbourShape { height, width, columns, classes: *classes, rates };
        (shape, [batch, height, width, *classes])
    }
}

impl CustomOp1 for NeighbourSums {
    fn name(&self) -> &'static str {
        "neighbour-sums"
    }

    fn cpu_fwd(&self, products: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (shape, result) = self.shapes(layout.dims());
        let mut sums = output(result.iter().product());
        kernels::forward(&shape, floats(products, layout)?, &mut sums);
        Ok((CpuStorage::F32(sums), result.as_slice().into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        products: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let (shape, result) = self.shapes(layout.dims());
        let sums = cuda::neighbour_sums::forward(&shape, &View::new(products, layout)?)?;
        Ok((sums.into_storage(), result.as_slice().into()))
    }

    fn bwd(&self, products: &Tensor, _sums: &Tensor, grad_sums: &Tensor) -> Result<Option<Tensor>> {
        let (shape, _) = self.shapes(products.dims());
        let grad_sums = grad_sums.to_dtype(DType::F32)?.contiguous()?;
        #[cfg(feature = "cuda")]
        if products.device().is_cuda() {
            let grad = cuda::neighbour_sums::backward(&shape, &View::of(&grad_sums)?, products.dtype())?;
            return Ok(Some(grad.into_tensor(products.dims())));
        }
        let mut grad_products = output(products.elem_count());
        kernels::backward(&shape, Floats::of(&grad_sums)?.get()?, &mut grad_products);
        Ok(Some(tensor(grad_products, products.dims())?))
    }
}
