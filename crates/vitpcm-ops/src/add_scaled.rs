//! Adds a residual branch, scaled by LayerScale if the network has it, to the residual stream.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use crate::cuda::{View, column_sums::product_sums, elementwise};
use crate::tensors::{floats, output, run_on_cpu};

/// `x + scale · branch`. The branch may be bf16 while x is f32; the result has the type of x.
///
/// # Shapes
/// x and branch `[..., d]`, scale `[d]`; result as x.
pub fn add_scaled(x: &Tensor, branch: &Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
    let columns = x.dims().last().copied().unwrap_or(0);
    if x.dims() != branch.dims() || scale.is_some_and(|scale| scale.dims() != [columns]) {
        bail!(
            "add_scaled: branch {:?} and scale {:?} do not fit x {:?}",
            branch.dims(),
            scale.map(Tensor::dims),
            x.dims()
        );
    }
    #[cfg(feature = "cuda")]
    if crate::cuda::run_on_cuda(&[x, branch]) && x.dtype() == DType::F32 {
        return crate::optional_third::apply(on_cuda::AddScaled, x, branch, scale);
    }
    let branch = branch.to_dtype(x.dtype())?;
    match scale {
        Some(scale) => x + branch.broadcast_mul(scale)?,
        None if run_on_cpu(&[x, &branch]) => x.contiguous()?.apply_op2(&branch.contiguous()?, Add),
        None => x + branch,
    }
}

/// The gradient of [`add_scaled`]'s branch, in the branch's type. The gradient of x is `grad_y` itself.
pub(crate) fn branch_gradient(scale: Option<&Tensor>, grad_y: &Tensor, dtype: DType) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if grad_y.device().is_cuda() {
        let columns = grad_y.dims().last().copied().unwrap_or(1);
        let scale = scale.map(View::of).transpose()?;
        let grad = elementwise::add_scaled_backward(&View::of(grad_y)?, scale.as_ref(), columns, dtype)?;
        return Ok(grad.into_tensor(grad_y.dims()));
    }
    match scale {
        Some(scale) => grad_y.broadcast_mul(scale)?.to_dtype(dtype),
        None => grad_y.to_dtype(dtype),
    }
}

/// The gradient of [`add_scaled`]'s scale.
pub(crate) fn scale_gradient(scale: &Tensor, branch: &Tensor, grad_y: &Tensor) -> Result<Tensor> {
    let columns = scale.elem_count();
    #[cfg(feature = "cuda")]
    if grad_y.device().is_cuda() {
        let sums = product_sums(&View::of(grad_y)?, &View::of(branch)?, columns)?;
        return Ok(sums.into_tensor(scale.dims()));
    }
    (grad_y * branch.to_dtype(grad_y.dtype())?)?.reshape(((), columns))?.sum(0)
}

/// The plain sum on rayon's threads: candle's own uses another thread pool, which would compete with them.
struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        branch: &CpuStorage,
        branch_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        const CHUNK: usize = 1 << 14;
        let (x, branch) = (floats(x, x_layout)?, floats(branch, branch_layout)?);
        let mut sum = output(x.len());
        let sources = x.par_chunks(CHUNK).zip(branch.par_chunks(CHUNK));
        sum.par_chunks_mut(CHUNK).zip(sources).for_each(|(sum, (x, branch))| {
            for ((sum, x), branch) in sum.iter_mut().zip(x).zip(branch) {
                *sum = x + branch;
            }
        });
        Ok((CpuStorage::F32(sum), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        branch: &Tensor,
        _sum: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((x.track_op().then(|| grad.clone()), branch.track_op().then(|| grad.clone())))
    }
}

/// One kernel instead of up to three, and no f32 copy of the branch.
#[cfg(feature = "cuda")]
mod on_cuda {
    use candle_core::{CpuStorage, CudaStorage, Layout, Result, Shape, Tensor, bail};

    use super::{branch_gradient, scale_gradient};
    use crate::cuda::View;
    use crate::cuda::elementwise::{self, Branch};
    use crate::optional_third::{Gradients, OptionalThird};

    pub(super) struct AddScaled;

    impl OptionalThird for AddScaled {
        const NAME: &'static str = "add-scaled";

        fn forward(
            &self,
            _x: (&CpuStorage, &Layout),
            _branch: (&CpuStorage, &Layout),
            _scale: Option<&[f32]>,
        ) -> Result<(CpuStorage, Shape)> {
            bail!("add_scaled is composed on the CPU")
        }

        fn forward_on_cuda(
            &self,
            x: (&CudaStorage, &Layout),
            branch: (&CudaStorage, &Layout),
            scale: Option<View<'_>>,
        ) -> Result<(CudaStorage, Shape)> {
            let columns = x.1.dims().last().copied().unwrap_or(1);
            let shape = x.1.shape().clone();
            let (x, branch) = (View::new(x.0, x.1)?, View::new(branch.0, branch.1)?);
            let scale = Branch { scale, ..Branch::default() };
            Ok((elementwise::add_scaled(&x, &branch, &scale, columns)?.into_storage(), shape))
        }

        fn backward(
            &self,
            _x: &Tensor,
            branch: &Tensor,
            scale: Option<&Tensor>,
            _y: &Tensor,
            grad_y: &Tensor,
        ) -> Result<Gradients> {
            let grad_y = grad_y.contiguous()?;
            let grad_branch = branch_gradient(scale, &grad_y, branch.dtype())?;
            let trained = scale.filter(|scale| scale.track_op());
            let grad_scale = trained.map(|scale| scale_gradient(scale, branch, &grad_y)).transpose()?;
            Ok((Some(grad_y), Some(grad_branch), grad_scale))
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn sum_and_gradients_are_those_of_candles_operations() {
        let noise = |dims: &[usize]| Var::randn(0f32, 1.0, dims, &Device::Cpu).unwrap();
        let (x, branch, scale) = (noise(&[2, 9000, 3]), noise(&[2, 9000, 3]), noise(&[3]));
        for scale in [None, Some(scale.as_tensor())] {
            let found = add_scaled(&x, &branch, scale).unwrap();
            let scaled = scale.map(|scale| branch.broadcast_mul(scale).unwrap());
            let expected = (x.as_tensor() + scaled.as_ref().unwrap_or(&branch)).unwrap();
            let difference = (&found - &expected).unwrap().abs().unwrap().sum_all().unwrap();
            assert_eq!(difference.to_scalar::<f32>().unwrap(), 0.0);
            let found = found.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let expected = expected.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            for variable in [&x, &branch] {
                let difference = (found.get(variable).unwrap() - expected.get(variable).unwrap()).unwrap();
                assert_eq!(difference.abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap(), 0.0);
            }
        }
    }
}
