//! Uploads of batches to the device. To an NVIDIA GPU they go through page-locked memory: copies from pageable memory
//! block the caller, for up to half a training step.

use candle_core::{Device, Result, Tensor};

/// Copies tensors from the CPU to a device.
#[derive(Debug)]
pub struct Uploader {
    device: Device,
    #[cfg(feature = "cuda")]
    staging: crate::cuda::Staging,
}

impl Uploader {
    /// For this device.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            #[cfg(feature = "cuda")]
            staging: crate::cuda::Staging::default(),
        }
    }

    /// The same tensor on the device, without its graph.
    pub fn upload(&mut self, tensor: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = &self.device
            && let Some(uploaded) = self.staging.upload(tensor, device)?
        {
            return Ok(uploaded);
        }
        Ok(tensor.detach().to_device(&self.device)?.detach())
    }
}
