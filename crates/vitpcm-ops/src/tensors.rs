//! Conversions between candle's tensors and the kernels' slices.

use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, StorageRef, Tensor, bail};

/// Whether we have kernels for these tensors; otherwise operations are composed of candle's own.
pub(crate) fn has_kernels(tensors: &[&Tensor]) -> bool {
    #[cfg(feature = "cuda")]
    if crate::cuda::run_on_cuda(tensors) {
        return true;
    }
    run_on_cpu(tensors)
}

/// Whether our CPU kernels support these tensors.
pub(crate) fn run_on_cpu(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| tensor.device().is_cpu() && tensor.dtype() == DType::F32)
}

/// The floats of a contiguous argument of a custom op.
pub(crate) fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => bail!("a kernel was given a tensor that is not contiguous"),
    }
}

/// A contiguous f32 tensor on the CPU, locked for reading.
pub(crate) struct Floats<'a> {
    storage: StorageRef<'a>,
    start: usize,
    end: usize,
}

impl<'a> Floats<'a> {
    /// `tensor` must be contiguous.
    pub(crate) fn of(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a kernel was given a tensor that is not contiguous")
        };
        Ok(Self { storage, start, end })
    }

    pub(crate) fn get(&self) -> Result<&[f32]> {
        match &*self.storage {
            Storage::Cpu(storage) => Ok(&storage.as_slice::<f32>()?[self.start..self.end]),
            _ => bail!("a CPU kernel was given a tensor of another device"),
        }
    }
}

/// A tensor on the CPU from a kernel's output.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Memory for a kernel's output: floats of unspecified value. Kernels write every element before anything reads it;
/// zeroing first would cost a pass over memory, as long as many of the operations themselves.
pub(crate) fn output(len: usize) -> Vec<f32> {
    if cfg!(miri) {
        return vec![0.0; len];
    }
    let mut values: Vec<f32> = Vec::with_capacity(len);
    let pointer = values.as_mut_ptr();
    // SAFETY: the assembly is empty and touches nothing. The compiler cannot look into it and must assume that it
    // stored a float at each place of the capacity; every bit pattern is a valid float, so all count as written.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags));
        values.set_len(len);
    }
    values
}

/// Helpers for the tests of several operations.
#[cfg(test)]
pub(crate) mod testing {
    use candle_core::{Device, Tensor};

    use crate::{random_bits, uniform};

    /// Uniform noise from −0.5 to 0.5.
    pub(crate) fn noise(dims: &[usize], seed: u64) -> Tensor {
        let count = dims.iter().product::<usize>() as u64;
        let values: Vec<f32> = (0..count).map(|i| uniform(random_bits(seed, i)) - 0.5).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).expect("a tensor")
    }

    /// Equal up to rounding, and not all zeros, which would prove nothing.
    #[track_caller]
    pub(crate) fn assert_close(a: &Tensor, b: &Tensor) {
        assert_eq!(a.dims(), b.dims());
        let values = |tensor: &Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).unwrap();
        let (a, b) = (values(a), values(b));
        let largest = b.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest > 0.0);
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * largest.max(1.0)));
    }
}
