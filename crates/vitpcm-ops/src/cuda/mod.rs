//! The operations on NVIDIA GPUs: our kernels (`cuda/*.cu`) and cuBLAS products on candle's memory, on the stream of
//! the tensors' device. Values are f32 or bf16, arithmetic is f32. Autograd is left to the custom operations.

pub(crate) mod adam;
pub(crate) mod attention;
pub(crate) mod column_sums;
pub(crate) mod conv;
pub(crate) mod cross_entropy;
pub(crate) mod depthwise;
mod device;
pub(crate) mod elementwise;
mod gemm;
mod launch;
pub(crate) mod layer_norm;
mod libraries;
pub(crate) mod linear;
pub(crate) mod lstm;
pub(crate) mod max_pool;
mod memory;
mod nccl;
pub(crate) mod neighbour_sums;
pub(crate) mod pooling;
pub(crate) mod sgd;
pub(crate) mod softmax;
mod staging;

pub use device::open_cuda;
pub(crate) use memory::{Array, View, run_on_cuda};
pub use nccl::{Nccl, NcclGroup, NcclId};
pub(crate) use staging::Staging;
