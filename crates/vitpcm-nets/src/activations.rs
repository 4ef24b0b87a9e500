//! What flows from block to block of a backbone.

use candle_core::Tensor;

use crate::variants::Grid;

/// A batch of images between two blocks.
#[derive(Debug, Clone)]
pub struct Activations {
    /// A ViT's tokens, `[B, 1 + registers + rows·columns, D]`, or a convolutional network's feature map, `[B, h, w, C]`,
    /// which has the result's grid only after the last block.
    pub values: Tensor,
    /// The grid of the patches among the tokens, and of the result.
    pub grid: Grid,
    /// How many blocks they went through.
    pub num_blocks_run: usize,
}
