//! Page-locked memory through which tensors go to the GPU while both sides work on.

use std::collections::{HashMap, VecDeque};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PinnedHostSlice;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, Result, Storage, Tensor};
use rayon::prelude::*;

/// Buffers of each length: one is filled while the other may still be on its way.
const BUFFERS: usize = 2;
/// Numbers that a thread copies at a time.
const PIECE: usize = 1 << 18;

/// Buffers, by how many numbers they hold.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    buffers: HashMap<usize, VecDeque<PinnedHostSlice<f32>>>,
}

impl Staging {
    /// The tensor on the GPU, or nothing where it does not lie in one piece of f32 on the CPU.
    pub(crate) fn upload(&mut self, tensor: &Tensor, device: &CudaDevice) -> Result<Option<Tensor>> {
        let (storage, layout) = tensor.storage_and_layout();
        let (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) =
            (&*storage, layout.contiguous_offsets())
        else {
            return Ok(None);
        };
        let values = &values[start..end];
        if values.is_empty() {
            return Ok(None);
        }
        let stream = device.cuda_stream();
        let buffers = self.buffers.entry(values.len()).or_default();
        let mut buffer = match buffers.len() {
            // SAFETY: all of it is written below before anything reads it.
            0..BUFFERS => unsafe { stream.context().alloc_pinned(values.len()) }.w()?,
            _ => buffers.pop_front().expect("there are some"),
        };
        // Waits until the copy out of this buffer is done that was asked for before the last.
        let staged = buffer.as_mut_slice().w()?;
        let pieces = staged.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE));
        pieces.for_each(|(staged, values)| staged.copy_from_slice(values));
        let uploaded = stream.clone_htod(&buffer).w()?;
        buffers.push_back(buffer);
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(uploaded, device.clone()));
        Ok(Some(Tensor::from_storage(storage, tensor.shape(), BackpropOp::none(), false)))
    }
}
