//! The performance-critical operations of ViT-PCM, forward and backward: linear layers, GELU, layer norm, softmax,
//! attention, the HV-BiLSTM, pooling and resampling of the grid; for convolutional networks, convolutions and max
//! pooling.
//!
//! Every function takes and returns candle tensors and is differentiable: f32 on the CPU, f32 and bf16 on NVIDIA GPUs
//! (feature `cuda`), with f32 weights. Parameters, modules and initialisation are left to `vitpcm-nets`.
//!
//! On the CPU, operations run on rayon's threads. Calling them from one of these ([`on_worker`]) avoids two thread
//! switches per operation, a tenth of the time of a ViT-S layer at 384 px. Results do not depend on the number of
//! threads. For other devices and types, they are composed of candle's own operations.

mod adam;
mod add_scaled;
mod attention;
mod bottleneck;
mod composed;
mod conv;
mod cpu;
mod cross_entropy;
#[cfg(feature = "cuda")]
mod cuda;
mod depthwise;
mod dropout;
mod gelu;
mod hv_bilstm;
mod layer_norm;
mod linear;
mod linear_tail;
mod max_pool;
mod neighbour_sums;
mod one_node;
mod optional_third;
mod packed_block;
mod pooling;
mod resize;
mod sgd;
mod softmax;
mod tensors;
mod transformer_block;
mod upload;
mod worker;

pub use adam::{AdamParameter, AdamStep, adam_step, follow};
pub use add_scaled::add_scaled;
pub use attention::attention;
pub use bottleneck::{Bottleneck, ConvLayer, bottlenecks};
pub use conv::{Activation, ConvNorm, Window, conv_norm};
pub use cpu::block::PackedNumbers;
pub use cross_entropy::cross_entropy;
#[cfg(feature = "cuda")]
pub use cuda::{Nccl, NcclGroup, NcclId, open_cuda};
pub use depthwise::depthwise;
pub use dropout::{DropoutMask, dropout, random_bits, uniform};
pub use gelu::gelu;
pub use hv_bilstm::{HvBiLstmWeights, LstmWeights, Products, hv_bilstm};
pub use layer_norm::{layer_norm, layer_norm_to};
pub use linear::{linear, linear_gelu};
pub use max_pool::{PoolWindows, max_pool};
pub use neighbour_sums::neighbour_sums;
pub use one_node::ParameterGradients;
pub use packed_block::{PackedBlock, has_fast_bf16, has_fast_int8, packed_blocks};
pub use pooling::max_over_grid;
pub use resize::{ResizeRule, resize_grid};
pub use sgd::{SgdStep, sgd_step};
pub use softmax::softmax;
pub use transformer_block::{Affine, BlockOptions, BlockWeights, transformer_blocks};
pub use upload::Uploader;
pub use worker::on_worker;
