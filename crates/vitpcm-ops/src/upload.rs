//! Batches on their way to the device. To an NVIDIA GPU they go through page-locked memory: the copy out of plain memory
//! holds up whoever asks for it, and took as long as half a training step.

use candle_core::{Device, Result, Tensor};

/// Carries tensors from the CPU to a device.
#[derive(Debug)]
pub struct Uploader {
    device: Device,
    #[cfg(feature = "cuda")]
    staging: crate::cuda::Staging,
}

impl Uploader {
    /// To this device.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            #[cfg(feature = "cuda")]
            staging: crate::cuda::Staging::default(),
        }
    }

    /// The same tensor there, without its graph.
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
