//! A transformer block for inference: its weights are packed once, and everything between two attentions is done for a few
//! rows at a time by one thread, so that what one layer hands to the next stays in the second-level cache.

use rayon::prelude::*;

use super::attention::{self, AttentionShape};
use super::attention_int8;
use super::bf16::Factors;
use super::byte_dots::DotPath;
use super::int8::{self, QuantisedRows, QuantisedWeight, Tail};
use super::layer_norm::{self, LayerNorm};
use super::matmul::{Finish, Matrix, matmul_here};
use super::packed_panels::{PackedPanels, packed_len};
use super::scratch::Scratch;
use super::shared_target::SharedTarget;
use super::simd::{Onto, SimdPath};

/// Rows of the tiles of all paths divide by this.
const TILE_ROWS: usize = 12;
/// Tiles of rows worked on together, at most: the hidden layer of a ViT-S takes 288 KiB for them.
const TILES_AT_ONCE: usize = 4;

/// The numbers that a packed weight is stored and multiplied in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedNumbers {
    /// f32.
    F32,
    /// bf16; attention is computed in f32.
    Bf16,
    /// 8-bit integers.
    Int8,
}

/// A linear layer, packed.
#[derive(Debug)]
pub(crate) struct Layer {
    in_features: usize,
    out_features: usize,
    weight: Weight,
    bias: Vec<f32>,
}

#[derive(Debug)]
enum Weight {
    Floats(Factors, Scratch),
    Int8(QuantisedWeight),
}

impl Layer {
    /// From a weight of `[out, in]` and a bias of `[out]`, each output times `scale` where there is one.
    pub(crate) fn new(numbers: PackedNumbers, weight: &[f32], bias: &[f32], scale: Option<&[f32]>) -> Self {
        let out_features = bias.len();
        let in_features = weight.len() / out_features.max(1);
        let (mut weight, mut bias) = (weight.to_vec(), bias.to_vec());
        if let Some(scale) = scale {
            for ((row, bias), scale) in weight.chunks_exact_mut(in_features).zip(&mut bias).zip(scale) {
                row.iter_mut().chain([bias]).for_each(|value| *value *= scale);
            }
        }
        let weight = match numbers {
            PackedNumbers::F32 => packed(Factors::F32, &weight, in_features, out_features),
            PackedNumbers::Bf16 => packed(Factors::Bf16, &weight, in_features, out_features),
            PackedNumbers::Int8 => Weight::Int8(QuantisedWeight::new(&weight, out_features, in_features)),
        };
        Self { in_features, out_features, weight, bias }
    }

    /// Rows through the layer, on this thread.
    fn forward(&self, path: SimdPath, x: &[f32], tail: LayerTail, y: &mut [f32]) {
        let bias = self.bias.as_slice();
        match &self.weight {
            &Weight::Floats(factors, ref panels) => {
                let (depth, columns) = (self.in_features, self.out_features);
                let width = path.tile_columns();
                let panels = PackedPanels { factors, data: panels, depth, columns, width };
                let (onto, finish) = match tail {
                    LayerTail::None => (Onto::Nothing, Finish::Bias(bias)),
                    LayerTail::Gelu => (Onto::Nothing, Finish::Gelu(Some(bias))),
                    LayerTail::Add => (Onto::Target, Finish::Bias(bias)),
                };
                let x = Matrix::row_major(x, x.len() / depth, depth);
                matmul_here(path, x, &panels, y, onto, finish);
            }
            Weight::Int8(weight) => {
                let rows = QuantisedRows::new(path, x, self.in_features);
                let tail = match tail {
                    LayerTail::None => Tail::Bias(bias),
                    LayerTail::Gelu => Tail::Gelu(bias),
                    LayerTail::Add => Tail::Residual(bias),
                };
                int8::product(path, DotPath::detect(), &rows, weight, tail, y);
            }
        }
    }
}

fn packed(factors: Factors, weight: &[f32], in_features: usize, out_features: usize) -> Weight {
    let path = SimdPath::detect();
    let mut panels = Scratch::zeroed(packed_len(path, factors.places(in_features), out_features));
    let matrix = Matrix::row_major(weight, out_features, in_features).transposed();
    PackedPanels::pack_as(factors, path, matrix, &mut panels);
    Weight::Floats(factors, panels)
}

/// What follows a layer.
#[derive(Clone, Copy)]
enum LayerTail {
    None,
    Gelu,
    /// The result is added to what the target holds.
    Add,
}

/// The scale and shift of a layer norm.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) eps: f32,
}

impl Norm {
    /// Rows under the norm, on this thread.
    fn forward(&self, path: SimdPath, x: &[f32], y: &mut [f32]) {
        let Self { weight, bias, eps } = self;
        layer_norm::forward_here(path, LayerNorm { weight, bias, eps: *eps }, x, y);
    }
}

/// A pre-norm transformer block. LayerScale is a part of the layers before it.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) heads: usize,
    pub(crate) norm1: Norm,
    pub(crate) qkv: Layer,
    pub(crate) projection: Layer,
    pub(crate) norm2: Norm,
    pub(crate) fc1: Layer,
    pub(crate) fc2: Layer,
}

impl Block {
    /// Features of a token.
    pub(crate) fn width(&self) -> usize {
        self.norm1.weight.len()
    }

    /// Queries, keys and values of rows of tokens, on all cores.
    pub(crate) fn queries_keys_values(&self, path: SimdPath, x: &[f32], qkv: &mut [f32]) {
        let width = self.width();
        let qkv = SharedTarget::new(qkv);
        each_row_block(x.len() / width, |first, rows| {
            let x = &x[first * width..][..rows * width];
            let mut normed = Scratch::take(x.len());
            self.norm1.forward(path, x, &mut normed);
            // SAFETY: row blocks are disjoint.
            let qkv = unsafe { qkv.slice(3 * first * width, 3 * rows * width) };
            self.qkv.forward(path, &normed, LayerTail::None, qkv);
        });
    }

    /// Replaces the residual stream of images of `tokens` tokens each by that behind the block.
    pub(crate) fn forward(&self, path: SimdPath, tokens: usize, x: &mut [f32]) {
        let width = self.width();
        let rows = x.len() / width;
        if rows == 0 {
            return;
        }
        let mut qkv = Scratch::take(3 * x.len());
        self.queries_keys_values(path, x, &mut qkv);
        let head_dim = width / self.heads;
        let shape = AttentionShape { batch: rows / tokens, tokens, heads: self.heads, head_dim };
        let mut attended = Scratch::take(x.len());
        match self.qkv.weight {
            Weight::Floats(..) => attention::forward(path, shape, &qkv, &mut attended, None),
            Weight::Int8(_) => attention_int8::forward(path, DotPath::detect(), shape, &qkv, &mut attended),
        }
        drop(qkv);

        let x = SharedTarget::new(x);
        each_row_block(rows, |first, rows| {
            // SAFETY: row blocks are disjoint.
            let x = unsafe { x.slice(first * width, rows * width) };
            self.projection.forward(path, &attended[first * width..][..x.len()], LayerTail::Add, x);
            let mut normed = Scratch::take(x.len());
            self.norm2.forward(path, x, &mut normed);
            let mut hidden = Scratch::take(rows * self.fc1.out_features);
            self.fc1.forward(path, &normed, LayerTail::Gelu, &mut hidden);
            drop(normed);
            self.fc2.forward(path, &hidden, LayerTail::Add, x);
        });
    }
}

/// Runs over blocks of rows, `(first, rows)`, on all cores: whole tiles, and as many blocks for each thread as for the others.
fn each_row_block(rows: usize, run: impl Fn(usize, usize) + Sync) {
    let tiles = rows.div_ceil(TILE_ROWS);
    let blocks = tiles.div_ceil(TILES_AT_ONCE).next_multiple_of(rayon::current_num_threads()).min(tiles);
    (0..blocks).into_par_iter().with_max_len(1).for_each(|block| {
        let cut = |block: usize| (block * tiles / blocks * TILE_ROWS).min(rows);
        run(cut(block), cut(block + 1) - cut(block));
    });
}
