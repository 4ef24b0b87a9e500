//! Operations on two tensors and, in some calls, a third: a residual, a bias, a scale. candle has one trait for two
//! arguments and another for three; an operation implements [`OptionalThird`] once instead.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

#[cfg(feature = "cuda")]
use crate::cuda::View;
use crate::tensors::floats;

/// The gradients of the three arguments, of those that need one.
pub(crate) type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// An operation whose third argument may be missing. The arguments are contiguous.
pub(crate) trait OptionalThird: Send + Sync + 'static {
    const NAME: &'static str;

    fn forward(
        &self,
        first: (&CpuStorage, &Layout),
        second: (&CpuStorage, &Layout),
        third: Option<&[f32]>,
    ) -> Result<(CpuStorage, Shape)>;

    #[cfg(feature = "cuda")]
    fn forward_on_cuda(
        &self,
        first: (&CudaStorage, &Layout),
        second: (&CudaStorage, &Layout),
        third: Option<View<'_>>,
    ) -> Result<(CudaStorage, Shape)>;

    fn backward(
        &self,
        first: &Tensor,
        second: &Tensor,
        third: Option<&Tensor>,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<Gradients>;
}

/// Runs an operation.
pub(crate) fn apply(
    operation: impl OptionalThird,
    first: &Tensor,
    second: &Tensor,
    third: Option<&Tensor>,
) -> Result<Tensor> {
    let (first, second) = (first.contiguous()?, second.contiguous()?);
    match third {
        Some(third) => first.apply_op3(&second, &third.contiguous()?, Node(operation)),
        None => first.apply_op2(&second, Node(operation)),
    }
}

struct Node<Op>(Op);

impl<Op: OptionalThird> CustomOp2 for Node<Op> {
    fn name(&self) -> &'static str {
        Op::NAME
    }

    fn cpu_fwd(
        &self,
        first: &CpuStorage,
        first_layout: &Layout,
        second: &CpuStorage,
        second_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.forward((first, first_layout), (second, second_layout), None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        first: &CudaStorage,
        first_layout: &Layout,
        second: &CudaStorage,
        second_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.0.forward_on_cuda((first, first_layout), (second, second_layout), None)
    }

    fn bwd(
        &self,
        first: &Tensor,
        second: &Tensor,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (first, second, _) = self.0.backward(first, second, None, result, grad)?;
        Ok((first, second))
    }
}

impl<Op: OptionalThird> CustomOp3 for Node<Op> {
    fn name(&self) -> &'static str {
        Op::NAME
    }

    fn cpu_fwd(
        &self,
        first: &CpuStorage,
        first_layout: &Layout,
        second: &CpuStorage,
        second_layout: &Layout,
        third: &CpuStorage,
        third_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let third = floats(third, third_layout)?;
        self.0.forward((first, first_layout), (second, second_layout), Some(third))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        first: &CudaStorage,
        first_layout: &Layout,
        second: &CudaStorage,
        second_layout: &Layout,
        third: &CudaStorage,
        third_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let third = View::new(third, third_layout)?;
        self.0.forward_on_cuda((first, first_layout), (second, second_layout), Some(third))
    }

    fn bwd(
        &self,
        first: &Tensor,
        second: &Tensor,
        third: &Tensor,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<Gradients> {
        self.0.backward(first, second, Some(third), result, grad)
    }
}
