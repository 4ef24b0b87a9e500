//! The sum of a residual stream and a branch, scaled by LayerScale where the network has one.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use crate::tensors::{floats, output, run_on_cpu};

/// `x + scale · branch`.
///
/// # Shapes
/// x and branch `[..., d]`, scale `[d]`; result as x.
pub fn add_scaled(x: &Tensor, branch: &Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
    if x.dims() != branch.dims() {
        bail!("add_scaled: branch {:?} does not fit x {:?}", branch.dims(), x.dims());
    }
    match scale {
        Some(scale) => x + branch.broadcast_mul(scale)?,
        None if run_on_cpu(&[x, branch]) => x.contiguous()?.apply_op2(&branch.contiguous()?, Add),
        None => x + branch,
    }
}

/// The plain sum, on rayon's threads: candle's own runs on threads of another pool, which then compete with these.
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
