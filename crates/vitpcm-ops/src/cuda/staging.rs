//! Page-locked staging buffers for asynchronous uploads to the GPU.

use std::collections::{HashMap, VecDeque};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, Result, Storage, Tensor};
use rayon::prelude::*;

/// Buffers per length: one is filled while the other is being copied.
const BUFFERS: usize = 2;
/// Numbers copied per task.
const PIECE: usize = 1 << 18;

/// Buffers by length.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    buffers: HashMap<usize, VecDeque<Buffer>>,
}

/// Page-locked memory, and an event for the end of the last copy from it. The event is our own: cudarc records its
/// events only with several streams, which [`super::open_cuda`] turns off.
#[derive(Debug)]
struct Buffer {
    memory: PinnedHostSlice<f32>,
    copied: CudaEvent,
}

impl Buffer {
    fn new(len: usize, stream: &CudaStream) -> Result<Self> {
        let context = stream.context();
        // SAFETY: `Staging::upload` writes all of it before anything reads it.
        let memory = unsafe { context.alloc_pinned(len) }.w()?;
        // Waiting threads sleep.
        let copied = context.new_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC)).w()?;
        Ok(Self { memory, copied })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A copy may still be pending. If the GPU has failed, nothing reads the memory any more.
        let _ = self.copied.synchronize();
    }
}

impl Staging {
    /// The tensor on the GPU; `None` if it is not contiguous f32 on the CPU.
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
            0..BUFFERS => Buffer::new(values.len(), &stream)?,
            _ => buffers.pop_front().expect("there are some"),
        };
        // Waits for the previous copy from this buffer.
        buffer.copied.synchronize().w()?;
        let staged = buffer.memory.as_mut_slice().w()?;
        let pieces = staged.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE));
        pieces.for_each(|(staged, values)| staged.copy_from_slice(values));
        let uploaded = stream.clone_htod(&buffer.memory).w()?;
        buffer.copied.record(&stream).w()?;
        buffers.push_back(buffer);
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(uploaded, device.clone()));
        Ok(Some(Tensor::from_storage(storage, tensor.shape(), BackpropOp::none(), false)))
    }
}
