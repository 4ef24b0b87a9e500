//! The vision transformer: patch embedding, class and register tokens, pre-norm blocks, final norm, and optionally the
//! classification head of pretraining.
//!
//! Activations carry their grid and the number of blocks they went through, so that training can run the frozen first blocks
//! once and continue from there several times.

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use vitpcm_ops::{self as ops, Affine, BlockOptions, BlockWeights, PackedBlock, PackedNumbers, Products};

use crate::activations::Activations;
use crate::dropout::{DropoutSite, Mode};
use crate::error::{NetsError, Result};
use crate::parameters::Parameters;
use crate::position_embedding::resize_position_embedding;
use crate::variants::{Grid, LAYER_NORM_EPS, MLP_RATIO, VitConfig};

/// Compute precision of the transformer's matrix products. The residual stream, norms, softmax, everything after the
/// transformer and all parameters are f32 in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32, on every device.
    #[default]
    F32,
    /// bf16 (8-bit fraction): all activations on NVIDIA GPUs; the factors of linear layers on CPUs, which are slow at it
    /// unless [`has_fast_bf16`](ops::has_fast_bf16).
    Bf16,
    /// Linear layers with weights and activations rounded to 8-bit integers, on CPUs. For inference: only
    /// [frozen](Vit::for_inference) blocks use it; all others use bf16 if the CPU is fast at it, else f32.
    Int8,
}

impl Precision {
    /// Of activations.
    pub(crate) fn dtype(self, device: &Device) -> DType {
        match self {
            Self::Bf16 if !device.is_cpu() => DType::BF16,
            Self::F32 | Self::Bf16 | Self::Int8 => DType::F32,
        }
    }

    /// Of the factors of linear layers' products.
    fn factors(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::Int8 if ops::has_fast_bf16() => DType::BF16,
            Self::F32 | Self::Int8 => DType::F32,
        }
    }

    /// For the HV-BiLSTM, whose rounding errors accumulate from cell to cell.
    pub(crate) fn products(self) -> Products {
        match self.factors() {
            DType::BF16 => Products::Rounded,
            _ => Products::Exact,
        }
    }

    /// For frozen blocks on the CPU.
    fn packed_numbers(self) -> PackedNumbers {
        match self {
            Self::F32 => PackedNumbers::F32,
            Self::Bf16 => PackedNumbers::Bf16,
            Self::Int8 => PackedNumbers::Int8,
        }
    }
}

/// A vision transformer without a classifier.
#[derive(Debug, Clone)]
pub struct Vit {
    config: VitConfig,
    precision: Precision,
    class_token: Tensor,
    register_tokens: Option<Tensor>,
    position_embedding: Tensor,
    /// `[D, 3·patch·patch]`: the patch convolution as a linear layer, since its windows do not overlap.
    patch_projection: Affine,
    blocks: Vec<Block>,
    norm: Affine,
}

impl Vit {
    /// Builds the transformer from stored parameters with timm's names.
    pub fn new(config: &VitConfig, parameters: &Parameters) -> Result<Self> {
        config.check()?;
        parameters.check(&config.parameter_shapes())?;
        let patch_features = 3 * config.patch * config.patch;
        let patch_weight =
            parameters.get("patch_embed.proj.weight")?.reshape((config.width, patch_features))?;
        Ok(Self {
            config: *config,
            precision: Precision::F32,
            class_token: parameters.get("cls_token")?.clone(),
            register_tokens: match config.registers {
                0 => None,
                _ => Some(parameters.get("reg_token")?.clone()),
            },
            position_embedding: parameters.get("pos_embed")?.clone(),
            patch_projection: Affine {
                weight: patch_weight,
                bias: parameters.get("patch_embed.proj.bias")?.clone(),
            },
            blocks: (0..config.depth)
                .map(|index| Block::new(config, index, parameters))
                .collect::<Result<_>>()?,
            norm: affine("norm", parameters)?,
        })
    }

    /// The same transformer with another compute precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same transformer for inference, in its current precision: all blocks are frozen.
    pub fn for_inference(self) -> Result<Self> {
        let depth = self.config.depth;
        self.with_frozen_blocks(depth)
    }

    /// The same transformer with its first blocks frozen: their weights are rounded and packed once, not in every pass.
    /// They record no graph and have no dropout.
    pub(crate) fn with_frozen_blocks(mut self, num_blocks: usize) -> Result<Self> {
        for block in self.blocks.iter_mut().take(num_blocks) {
            block.freeze(self.precision)?;
        }
        Ok(self)
    }

    /// Its configuration.
    pub fn config(&self) -> &VitConfig {
        &self.config
    }

    /// The patch grid of images of this size.
    pub fn grid_of(&self, height: usize, width: usize) -> Option<Grid> {
        let patch = self.config.patch;
        let whole = height.is_multiple_of(patch) && width.is_multiple_of(patch) && height > 0 && width > 0;
        whole.then(|| Grid { rows: height / patch, columns: width / patch })
    }

    /// Pixels to tokens, before the first block.
    ///
    /// # Shapes
    /// pixels `[B, 3, H, W]`, RGB, normalised as the weights expect; H and W multiples of the patch size.
    pub fn embed(&self, pixels: &Tensor) -> Result<Activations> {
        let patch = self.config.patch;
        let bad_pixels = || NetsError::BadPixels { shape: pixels.dims().to_vec(), patch };
        let &[batch, 3, height, width] = pixels.dims() else {
            return Err(bad_pixels());
        };
        let grid = self.grid_of(height, width).ok_or_else(bad_pixels)?;

        let patches = pixels
            .reshape(&[batch, 3, grid.rows, patch, grid.columns, patch][..])?
            .permute(vec![0, 2, 4, 1, 3, 5])?
            .reshape((batch, grid.num_cells(), 3 * patch * patch))?;
        let patches =
            linear(&self.patch_projection, &patches.to_dtype(self.precision.dtype(pixels.device()))?)?; // [B, N, D]
        let patches = patches.to_dtype(DType::F32)?;

        let token_width = self.config.width;
        let class_token = self.class_token.broadcast_as((batch, 1, token_width))?;
        let positions = resize_position_embedding(&self.position_embedding, grid)?;
        let with_class = Tensor::cat(&[&class_token, &patches], 1)?.broadcast_add(&positions)?;
        let values = match &self.register_tokens {
            None => with_class,
            // Registers have no position and follow the class token.
            Some(registers) => {
                let registers = registers.broadcast_as((batch, self.config.registers, token_width))?;
                let class_token = with_class.narrow(1, 0, 1)?;
                let patches = with_class.narrow(1, 1, grid.num_cells())?;
                Tensor::cat(&[&class_token, &registers, &patches], 1)?
            }
        };
        Ok(Activations { values, grid, num_blocks_run: 0 })
    }

    /// Runs the tokens through the remaining blocks up to (not including) block `end`.
    pub fn run_blocks_to(
        &self,
        end: usize,
        tokens: &Activations,
        mode: &mut Mode<'_>,
    ) -> Result<Activations> {
        let remaining = self.blocks.get(tokens.num_blocks_run..end).ok_or_else(|| NetsError::BadConfig {
            reason: format!(
                "blocks {} to {end} of a ViT with {} blocks",
                tokens.num_blocks_run,
                self.blocks.len()
            ),
        })?;
        let packed: Vec<&PackedBlock> = remaining.iter().map_while(Block::packed).collect();
        let mut values = tokens.values.clone();
        if !packed.is_empty() {
            values = ops::packed_blocks(&values, &packed)?;
        }
        // Frozen blocks come first: after the first unpacked block, none is packed.
        let blocks: Vec<_> = remaining
            .iter()
            .filter_map(|block| match &block.form {
                Form::Packed(_) => None,
                Form::Weights(weights) => Some((weights, block.options(&values, self.precision, mode))),
            })
            .collect();
        let values = ops::transformer_blocks(&values, &blocks, mode.gradients())?;
        Ok(Activations { values, grid: tokens.grid, num_blocks_run: end })
    }

    /// The patches' features after the final norm, on the grid; class and register tokens are dropped.
    ///
    /// # Shapes
    /// result `[B, rows, columns, D]`, f32
    pub fn patch_features(&self, tokens: &Activations) -> Result<Tensor> {
        self.normalised_patches(tokens, &self.norm)
    }

    /// The patches' features between two blocks. They are normalised without scale and shift, because the final norm is
    /// trained for the last block only.
    ///
    /// # Shapes
    /// result `[B, rows, columns, D]`, f32
    pub fn plain_features(&self, tokens: &Activations) -> Result<Tensor> {
        let (width, device) = (self.config.width, tokens.values.device());
        let plain = Affine {
            weight: Tensor::ones(width, DType::F32, device)?,
            bias: Tensor::zeros(width, DType::F32, device)?,
        };
        self.normalised_patches(tokens, &plain)
    }

    /// The [plain features](Self::plain_features) after each of some blocks (counted from 1, ascending), in one pass.
    ///
    /// # Shapes
    /// pixels as for [`Vit::embed`]
    pub fn block_features(&self, pixels: &Tensor, blocks: &[usize]) -> Result<Vec<Tensor>> {
        let mut tokens = self.embed(pixels)?;
        let mut features = Vec::with_capacity(blocks.len());
        for &block in blocks {
            tokens = self.run_blocks_to(block, &tokens, &mut Mode::Inference)?;
            features.push(self.plain_features(&tokens)?);
        }
        Ok(features)
    }

    /// The patches after a norm, on the grid.
    fn normalised_patches(&self, tokens: &Activations, norm: &Affine) -> Result<Tensor> {
        let grid = tokens.grid;
        let batch = tokens.values.dim(0)?;
        let patches = tokens.values.narrow(1, self.config.num_prefix_tokens(), grid.num_cells())?;
        let features = normalise(norm, &patches)?;
        Ok(features.reshape((batch, grid.rows, grid.columns, self.config.width))?)
    }

    /// The class token after the final norm.
    ///
    /// # Shapes
    /// result `[B, D]`
    pub fn class_feature(&self, tokens: &Activations) -> Result<Tensor> {
        let class_token = tokens.values.narrow(1, 0, 1)?;
        Ok(normalise(&self.norm, &class_token)?.squeeze(1)?)
    }

    /// The class token's attention to each patch in the last block, per head: it localises objects in self-supervised
    /// ViTs. The softmax is over all tokens but class and register tokens are left out, so a head's map sums to less
    /// than 1.
    ///
    /// # Shapes
    /// pixels as for [`Vit::embed`]; result `[B, heads, rows, columns]`, f32
    pub fn class_attention(&self, pixels: &Tensor) -> Result<Tensor> {
        let Some((last, _)) = self.blocks.split_last() else {
            return Err(NetsError::BadConfig { reason: "a ViT without blocks has no attention".to_owned() });
        };
        let tokens = self.run_blocks_to(self.blocks.len() - 1, &self.embed(pixels)?, &mut Mode::Inference)?;
        let weights = last.class_attention(&tokens.values)?; // [B, heads, N]
        let patches = weights.narrow(2, self.config.num_prefix_tokens(), tokens.grid.num_cells())?;
        let (batch, heads, _) = patches.dims3()?;
        Ok(patches.reshape((batch, heads, tokens.grid.rows, tokens.grid.columns))?)
    }

    /// All blocks, from pixels to the tokens after the last one.
    pub fn forward(&self, pixels: &Tensor, mode: &mut Mode<'_>) -> Result<Activations> {
        self.run_blocks_to(self.config.depth, &self.embed(pixels)?, mode)
    }
}

/// The classification head of pretraining, on the class token. Segmentation does not use it; it serves to check
/// imported weights and preprocessing.
#[derive(Debug, Clone)]
pub struct ClassificationHead(Affine);

impl ClassificationHead {
    /// From weight `[classes, D]` and bias `[classes]`.
    pub fn new(weight: Tensor, bias: Tensor) -> Self {
        Self(Affine { weight, bias })
    }

    /// Number of classes.
    pub fn num_classes(&self) -> Result<usize> {
        Ok(self.0.weight.dim(0)?)
    }

    /// Class feature `[B, D]` to logits `[B, classes]`.
    pub fn forward(&self, class_feature: &Tensor) -> Result<Tensor> {
        linear(&self.0, class_feature)
    }
}

/// One transformer block: attention and MLP, each on the norm of its input and added to it.
#[derive(Debug, Clone)]
struct Block {
    heads: usize,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    /// For training, or for a GPU.
    Weights(BlockWeights),
    /// For inference on the CPU.
    Packed(PackedBlock),
}

impl Block {
    fn new(config: &VitConfig, index: usize, parameters: &Parameters) -> Result<Self> {
        let name = |part: &str| format!("blocks.{index}.{part}");
        let affine = |part: &str| affine(&name(part), parameters);
        let scale = |part: &str| match config.layer_scale {
            true => Ok::<_, NetsError>(Some(parameters.get(&name(part))?.clone())),
            false => Ok(None),
        };
        let weights = BlockWeights {
            norm1: affine("norm1")?,
            qkv: affine("attn.qkv")?,
            projection: affine("attn.proj")?,
            scale1: scale("ls1.gamma")?,
            norm2: affine("norm2")?,
            fc1: affine("mlp.fc1")?,
            fc2: affine("mlp.fc2")?,
            scale2: scale("ls2.gamma")?,
        };
        Ok(Self { heads: config.heads, form: Form::Weights(weights) })
    }

    fn freeze(&mut self, precision: Precision) -> Result<()> {
        let Form::Weights(weights) = &self.form else { return Ok(()) };
        let packed = PackedBlock::new(weights, self.heads, LAYER_NORM_EPS, precision.packed_numbers())?;
        self.form = match packed {
            Some(packed) => Form::Packed(packed),
            None => Form::Weights(weights.for_products(precision.factors())?),
        };
        Ok(())
    }

    fn packed(&self) -> Option<&PackedBlock> {
        match &self.form {
            Form::Packed(packed) => Some(packed),
            Form::Weights(_) => None,
        }
    }

    fn options(&self, tokens: &Tensor, precision: Precision, mode: &mut Mode<'_>) -> BlockOptions {
        let num_elements = tokens.elem_count();
        let mut mask = |times: usize| mode.dropout_mask(times * num_elements, DropoutSite::Backbone);
        let dropout = [mask(1), mask(MLP_RATIO), mask(1)];
        let (dtype, products) = (precision.dtype(tokens.device()), precision.factors());
        BlockOptions { heads: self.heads, eps: LAYER_NORM_EPS, dtype, products, dropout }
    }

    /// x `[B, N, D]`; result `[B, heads, N]`: the class token's row of each head's attention.
    fn class_attention(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, num_tokens, width) = x.dims3()?;
        let head_width = width / self.heads;
        let qkv = match &self.form {
            Form::Packed(packed) => packed.queries_keys_values(x)?,
            Form::Weights(BlockWeights { norm1, qkv, .. }) => linear(qkv, &normalise(norm1, x)?)?,
        };
        // Order in the packed layer: queries, keys, values.
        let query = qkv.narrow(1, 0, 1)?.narrow(2, 0, width)?.contiguous()?; // [B, 1, D]
        let keys = qkv.narrow(2, width, width)?.contiguous()?; // [B, N, D]
        let query = query.reshape((batch, 1, self.heads, head_width))?.transpose(1, 2)?.contiguous()?;
        let keys = keys.reshape((batch, num_tokens, self.heads, head_width))?.permute((0, 2, 3, 1))?;
        let logits = (query.matmul(&keys.contiguous()?)? * (head_width as f64).powf(-0.5))?;
        Ok(ops::softmax(&logits)?.squeeze(2)?)
    }
}

fn affine(name: &str, parameters: &Parameters) -> Result<Affine> {
    Ok(Affine {
        weight: parameters.get(&format!("{name}.weight"))?.clone(),
        bias: parameters.get(&format!("{name}.bias"))?.clone(),
    })
}

fn normalise(norm: &Affine, x: &Tensor) -> Result<Tensor> {
    Ok(ops::layer_norm(&x.contiguous()?, &norm.weight, &norm.bias, LAYER_NORM_EPS)?)
}

fn linear(layer: &Affine, x: &Tensor) -> Result<Tensor> {
    Ok(ops::linear(x, &layer.weight, Some(&layer.bias))?)
}
