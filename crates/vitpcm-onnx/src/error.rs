//! Errors of writing a network as ONNX.

use vitpcm_nets::NetsError;

/// An error of writing a network as ONNX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The model's parameters are not what its description says.
    #[error(transparent)]
    Network(#[from] NetsError),
    /// A kind of network that has no ONNX form here.
    #[error("{network} cannot be written as ONNX; expected {expected}")]
    NotExportable {
        /// What the model is.
        network: String,
        /// What can be exported.
        expected: &'static str,
    },
    /// The side of the network's input gives no possible grid.
    #[error("size {size}: a grid of {cells} patches per side, expected 1 to 256")]
    BadSize {
        /// The side asked for, in pixels.
        size: usize,
        /// Patches per side that it gives.
        cells: usize,
    },
    /// A weight is too large for the numbers chosen.
    #[error("the tensor `{name}` holds {value}; f16 holds numbers up to 65504: store the weights as f32")]
    NotStorable {
        /// The tensor.
        name: String,
        /// Its value.
        value: f32,
    },
    /// Protobuf files end at 2 GiB.
    #[error("the file would have {bytes} bytes; ONNX files end at 2 GiB: store the weights as f16 or i8")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, OnnxError>;
