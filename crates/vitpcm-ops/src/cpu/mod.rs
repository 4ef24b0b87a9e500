//! CPU kernels over plain slices. Nothing in here knows candle: shapes come as numbers, layouts as documented.
//! Each kernel takes the [`simd::SimdPath`] to run on, so that tests can hold every path to the reference.

pub(crate) mod attention;
pub(crate) mod attention_backward;
pub(crate) mod attention_int8;
pub(crate) mod bf16;
pub(crate) mod block;
pub(crate) mod byte_dots;
pub(crate) mod conv;
pub(crate) mod cross_entropy;
pub(crate) mod depthwise;
pub(crate) mod dropout;
mod elementary;
pub(crate) mod gelu;
pub(crate) mod int8;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod lstm;
pub(crate) mod matmul;
pub(crate) mod max_pool;
#[cfg(test)]
mod naive;
pub(crate) mod neighbour_sums;
pub(crate) mod packed_panels;
pub(crate) mod pooling;
pub(crate) mod resize;
pub(crate) mod scratch;
mod shared_target;
pub(crate) mod simd;
pub(crate) mod softmax;
