//! GPU memory for kernels: read-only views of tensors, and arrays to write.

use std::marker::PhantomData;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Shape, Storage, Tensor, bail};
use half::bf16;

/// Whether our CUDA kernels support these tensors.
pub(crate) fn run_on_cuda(tensors: &[&Tensor]) -> bool {
    let is_float = |tensor: &&Tensor| matches!(tensor.dtype(), DType::F32 | DType::BF16);
    tensors.iter().all(|tensor| tensor.device().is_cuda() && is_float(tensor))
}

/// Contiguous read-only values on a GPU.
#[derive(Clone)]
pub(crate) struct View<'a> {
    pub(crate) pointer: u64,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
    pub(crate) device: CudaDevice,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> View<'a> {
    /// An argument of a custom operation.
    pub(crate) fn new(storage: &'a CudaStorage, layout: &Layout) -> Result<Self> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a kernel was given a tensor that is not contiguous")
        };
        let stream = storage.device().cuda_stream();
        let first = match &storage.slice {
            CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
            CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
            CudaStorageSlice::U32(slice) => slice.device_ptr(&stream).0,
            CudaStorageSlice::U8(slice) => slice.device_ptr(&stream).0,
            _ => bail!("a CUDA kernel was given values of {:?}", storage.dtype()),
        };
        Ok(Self {
            pointer: first + (start * storage.dtype().size_in_bytes()) as u64,
            dtype: storage.dtype(),
            len: end - start,
            device: storage.device().clone(),
            lifetime: PhantomData,
        })
    }

    /// A contiguous tensor. Its memory lives as long as the tensor does.
    pub(crate) fn of(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => {
                let View { pointer, dtype, len, device, .. } = View::new(storage, layout)?;
                Ok(Self { pointer, dtype, len, device, lifetime: PhantomData })
            }
            _ => bail!("a CUDA kernel was given a tensor of another device"),
        }
    }

    /// The part from element `start` on.
    pub(crate) fn skip(&self, start: usize) -> Self {
        let pointer = self.pointer + (start * self.dtype.size_in_bytes()) as u64;
        Self { pointer, len: self.len - start, ..self.clone() }
    }

    /// Checks the element type.
    pub(crate) fn expect(self, dtype: DType) -> Result<Self> {
        if self.dtype != dtype {
            bail!("a CUDA kernel was given {:?}, expected {dtype:?}", self.dtype);
        }
        Ok(self)
    }
}

/// Memory that kernels write.
pub(crate) struct Array {
    storage: CudaStorage,
    pub(crate) pointer: u64,
    len: usize,
}

impl Array {
    /// Uninitialised memory for a kernel's output; kernels write every element before anything reads it.
    pub(crate) fn new(device: &CudaDevice, dtype: DType, len: usize) -> Result<Self> {
        // CUDA refuses empty allocations.
        let room = len.max(1);
        // SAFETY: every bit pattern is a valid number, and memory is written before it is read (see above).
        let storage = unsafe {
            match dtype {
                DType::F32 => CudaStorage::wrap_cuda_slice(device.alloc::<f32>(room)?, device.clone()),
                DType::BF16 => CudaStorage::wrap_cuda_slice(device.alloc::<bf16>(room)?, device.clone()),
                DType::U32 => CudaStorage::wrap_cuda_slice(device.alloc::<u32>(room)?, device.clone()),
                _ => bail!("no CUDA kernel writes {dtype:?}"),
            }
        };
        let pointer = View::new(&storage, &Layout::contiguous(room))?.pointer;
        Ok(Self { storage, pointer, len })
    }

    /// Zeros of f32.
    pub(crate) fn zeros(device: &CudaDevice, len: usize) -> Result<Self> {
        let storage = CudaStorage::wrap_cuda_slice(device.alloc_zeros::<f32>(len.max(1))?, device.clone());
        let pointer = View::new(&storage, &Layout::contiguous(len.max(1)))?.pointer;
        Ok(Self { storage, pointer, len })
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
            pointer: self.pointer,
            dtype: self.storage.dtype(),
            len: self.len,
            device: self.storage.device().clone(),
            lifetime: PhantomData,
        }
    }

    pub(crate) fn into_storage(self) -> CudaStorage {
        self.storage
    }

    /// A tensor without a graph.
    pub(crate) fn into_tensor(self, shape: impl Into<Shape>) -> Tensor {
        Tensor::from_storage(Storage::Cuda(self.storage), shape, BackpropOp::none(), false)
    }
}
