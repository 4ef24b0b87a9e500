//! Compute devices: the CPU, an NVIDIA GPU (feature `cuda`) or an Apple GPU (feature `metal`).

use std::str::FromStr;

use candle_core::Device;
use vitpcm_nets::Precision;

use crate::SegmentError;

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// A GPU if this build supports one and one is present, otherwise the CPU.
    #[default]
    Best,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU with this index.
    Cuda(usize),
    /// The Apple GPU.
    Metal,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let expected = || format!("`{name}` is not a device; expected cpu, cuda, cuda:N or metal");
        match name.split_once(':') {
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda(0)),
            None if name == "metal" => Ok(Self::Metal),
            Some(("cuda", number)) => number.parse().map(Self::Cuda).map_err(|_| expected()),
            _ => Err(expected()),
        }
    }
}

impl DeviceName {
    /// Opens the device.
    pub fn open(self) -> Result<Device, SegmentError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(number) => open_cuda(number),
            Self::Metal => open_metal(),
            Self::Best => Ok(open_cuda(0).or_else(|_| open_metal()).unwrap_or(Device::Cpu)),
        }
    }
}

/// The fastest precision for inference on a device: bf16 on NVIDIA GPUs, 8-bit integers on CPUs with VNNI, otherwise
/// f32.
pub fn suitable_precision(device: &Device) -> Precision {
    match device {
        Device::Cpu if vitpcm_nets::has_fast_int8() => Precision::Int8,
        _ => suitable_training_precision(device),
    }
}

/// The precision for training on a device: as [`suitable_precision`], but f32 on CPUs.
pub fn suitable_training_precision(device: &Device) -> Precision {
    if device.is_cuda() { Precision::Bf16 } else { Precision::F32 }
}

#[cfg(feature = "cuda")]
fn open_cuda(number: usize) -> Result<Device, SegmentError> {
    vitpcm_nets::open_cuda(number)
        .map_err(|error| SegmentError::Device { name: format!("cuda:{number}"), reason: plain_reason(error) })
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(number: usize) -> Result<Device, SegmentError> {
    let reason = "this program was built without CUDA (cargo build --release --features cuda)".to_owned();
    Err(SegmentError::Device { name: format!("cuda:{number}"), reason })
}

#[cfg(feature = "metal")]
fn open_metal() -> Result<Device, SegmentError> {
    Device::new_metal(0)
        .map_err(|error| SegmentError::Device { name: "metal".to_owned(), reason: plain_reason(error) })
}

#[cfg(not(feature = "metal"))]
fn open_metal() -> Result<Device, SegmentError> {
    let reason = "this program was built without Metal (cargo build --release --features metal)".to_owned();
    Err(SegmentError::Device { name: "metal".to_owned(), reason })
}

/// candle's message without its backtrace: a missing device is no bug, even with RUST_BACKTRACE set.
#[cfg(any(feature = "cuda", feature = "metal", test))]
fn plain_reason(error: candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => plain_reason(*inner),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told_in_one_line() {
        let error = candle_core::Error::Msg("no device is detected".to_owned());
        let backtrace = Box::new(std::backtrace::Backtrace::force_capture());
        let error = candle_core::Error::WithBacktrace { inner: Box::new(error), backtrace };
        assert_eq!(plain_reason(error), "no device is detected");
    }

    #[test]
    fn devices_have_the_names_that_the_help_gives() {
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        assert_eq!("cuda:3".parse(), Ok(DeviceName::Cuda(3)));
        assert_eq!("metal".parse(), Ok(DeviceName::Metal));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cpu:0", "CUDA"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }
}
