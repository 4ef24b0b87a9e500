//! The operations that decide the speed of ViT-PCM, forward and backward: linear layers, GELU, layer norm,
//! softmax, attention, the HV-BiLSTM, pooling over the grid and resampling of the grid.
//!
//! Every function takes and returns f32 candle tensors and carries its gradient. Parameters, modules and
//! initialisation are left to `vitpcm-nets`.

mod composed;
mod hv_bilstm;
mod resize;

pub use composed::{
    attention, gelu, layer_norm, linear, linear_gelu, max_over_grid, softmax, top_k_over_grid,
};
pub use hv_bilstm::{HvBiLstmWeights, LstmWeights, hv_bilstm};
pub use resize::{ResizeRule, resize_grid};
