//! Page-locked memory through which tensors go to the GPU while both sides work on.

use std::collections::{HashMap, VecDeque};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};
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
    buffers: HashMap<usize, VecDeque<Buffer>>,
}

/// Page-locked memory, and when the last copy out of it is done. The event is ours: cudarc's own is recorded only where
/// it keeps several streams in order, which [`super::open_cuda`] turns off.
#[derive(Debug)]
struct Buffer {
    memory: PinnedHostSlice<f32>,
    copied: CudaEvent,
}

impl Buffer {
    fn new(len: usize, stream: &CudaStream) -> Result<Self> {
        let context = stream.context();
        // SAFETY: all of it is written before anything reads it, in `Staging::upload`.
        let memory = unsafe { context.alloc_pinned(len) }.w()?;
        // Who waits for it sleeps.
        let copied = context.new_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC)).w()?;
        Ok(Self { memory, copied })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A copy may still be waiting for its turn. Where the GPU has failed, nothing reads the memory any more.
        let _ = self.copied.synchronize();
    }
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
            0..BUFFERS => Buffer::new(values.len(), &stream)?,
            _ => buffers.pop_front().expect("there are some"),
        };
        // Until the copy out of this buffer is done that was asked for before the last.
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
