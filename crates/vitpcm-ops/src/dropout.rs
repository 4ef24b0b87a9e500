//! Dropout with a mask computed from a key and a position: it is never stored, backward recomputes it, and every device
//! drops the same elements.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::cpu::dropout as kernels;
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::tensors::{Floats, floats, has_kernels, tensor};

/// Which elements are dropped: element `i` if `random_bits(key, position + i)`, as a number in [0, 1), is below `rate`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutMask {
    /// The stream of random numbers.
    pub key: u64,
    /// Position in the stream where the mask starts.
    pub position: u64,
    /// Fraction of elements set to zero, in [0, 1).
    pub rate: f32,
}

impl DropoutMask {
    /// The mask, if its rate is valid.
    pub(crate) fn checked(mask: Option<Self>) -> Result<Option<Self>> {
        match mask {
            Some(mask) if !(0.0..1.0).contains(&mask.rate) => {
                bail!("dropout: the rate is {}, expected at least 0 and less than 1", mask.rate)
            }
            _ => Ok(mask),
        }
    }

    /// Factor on the kept elements, which preserves the expectation.
    pub(crate) fn kept(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }

    fn factor(&self, index: usize) -> f32 {
        let bits = random_bits(self.key, self.position.wrapping_add(index as u64));
        if uniform(bits) >= self.rate { self.kept() } else { 0.0 }
    }
}

/// Number `position` of the stream `key`: SplitMix64 (Steele, Lea, Flood 2014) from the state `key`.
#[inline(always)]
pub fn random_bits(key: u64, position: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut z = key.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Random bits as a number in [0, 1), a multiple of 2⁻²⁴.
pub fn uniform(bits: u64) -> f32 {
    const STEP: f32 = 1.0 / (1 << 24) as f32;
    (bits >> 40) as f32 * STEP
}

/// Sets the dropped elements to zero and divides the others by `1 - rate`.
pub fn dropout(x: &Tensor, mask: DropoutMask) -> Result<Tensor> {
    DropoutMask::checked(Some(mask))?;
    if has_kernels(&[x]) {
        x.contiguous()?.apply_op1(Dropout(mask))
    } else {
        let factors = (0..x.elem_count()).map(|index| mask.factor(index)).collect();
        let factors = Tensor::from_vec::<_, f32>(factors, x.dims(), x.device())?.to_dtype(x.dtype())?;
        x * factors
    }
}

/// Applies [`dropout`] if there is a mask.
pub(crate) fn dropped(x: Tensor, mask: Option<DropoutMask>) -> Result<Tensor> {
    match mask {
        Some(mask) => dropout(&x, mask),
        None => Ok(x),
    }
}

struct Dropout(DropoutMask);

impl Dropout {
    fn on_cpu(&self, x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        kernels::apply(SimdPath::detect(), self.0, &mut y);
        y
    }
}

impl CustomOp1 for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.on_cpu(floats(storage, layout)?)), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let y = cuda::elementwise::dropout(&cuda::View::new(storage, layout)?, self.0)?;
        Ok((y.into_storage(), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad_y = grad_y.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let grad_x = cuda::elementwise::dropout(&cuda::View::of(&grad_y)?, self.0)?;
            return Ok(Some(grad_x.into_tensor(x.dims())));
        }
        let grad_x = self.on_cpu(Floats::of(&grad_y)?.get()?);
        Ok(Some(tensor(grad_x, x.dims())?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn the_bits_are_those_of_splitmix64() {
        // First outputs of SplitMix64 from state 1234567, as published with its reference implementation.
        assert_eq!(random_bits(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(random_bits(1_234_567, 1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_gradient_passes_where_values_pass() {
        let mask = DropoutMask { key: 5, position: 11, rate: 0.25 };
        let x = Var::ones(100_000, candle_core::DType::F32, &Device::Cpu).unwrap();
        let y = dropout(&x, mask).unwrap();
        let grad = y.sum_all().unwrap().backward().unwrap();
        let (y, grad) = (y.to_vec1::<f32>().unwrap(), grad.get(&x).unwrap().to_vec1::<f32>().unwrap());
        assert_eq!(y, grad);
        assert!(y.iter().enumerate().all(|(index, &value)| value == mask.factor(index)));
        let dropped = y.iter().filter(|&&value| value == 0.0).count() as f64 / y.len() as f64;
        // Five standard errors at 100,000 values.
        assert!((dropped - 0.25).abs() < 0.007, "{dropped}");
    }
}
