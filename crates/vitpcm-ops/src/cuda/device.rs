//! Opening a GPU.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::{CudaDevice, Device, Result};

/// The GPU with this index, set up for a program that uses a single stream.
pub fn open_cuda(ordinal: usize) -> Result<Device> {
    super::libraries::check()?;
    // One stream for all threads: candle's default is one per thread, and our operations may run on any.
    let device = CudaDevice::new_with_stream(ordinal)?;
    // SAFETY: there is only this stream, which keeps everything in order.
    unsafe { device.disable_event_tracking() };
    keep_freed_memory(ordinal)?;
    Ok(Device::Cuda(device))
}

/// By default the driver releases all free memory whenever the host waits for the GPU and maps it again in the next
/// step, which costs milliseconds.
fn keep_freed_memory(ordinal: usize) -> Result<()> {
    let gpu = result::device::get(ordinal as i32).w()?;
    let mut pool = std::ptr::null_mut();
    let mut threshold = u64::MAX;
    // SAFETY: the device exists, and the attribute is a u64 that the driver copies.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, gpu).result().w()?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()).result().w()?;
    }
    Ok(())
}
