//! The vision transformer: patch embedding, class and register tokens, pre-norm blocks, final norm, and the
//! classification head of pretraining for those who want it.
//!
//! Tokens travel between the parts with their grid and the number of blocks they went through, so that training
//! can run the frozen first blocks once and continue from there several times.

use candle_core::Tensor;
use vitpcm_ops as ops;

use crate::dropout::{DropoutSite, Mode};
use crate::error::{NetsError, Result};
use crate::parameters::Parameters;
use crate::position_embedding::resize_position_embedding;
use crate::variants::{Grid, LAYER_NORM_EPS, VitConfig};

/// A vision transformer without a task.
#[derive(Debug, Clone)]
pub struct Vit {
    config: VitConfig,
    class_token: Tensor,
    register_tokens: Option<Tensor>,
    position_embedding: Tensor,
    /// `[D, 3·patch·patch]`: the patch convolution as a linear layer, since its windows do not overlap.
    patch_projection: Linear,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

/// The tokens of a batch of images somewhere between two blocks.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// `[B, 1 + registers + rows·columns, D]`
    pub values: Tensor,
    /// The grid of the patches among them.
    pub grid: Grid,
    /// How many blocks they went through.
    pub num_blocks_run: usize,
}

impl Vit {
    /// Builds the transformer on the parameters of a store, whose names are timm's.
    pub fn new(config: &VitConfig, parameters: &Parameters) -> Result<Self> {
        config.check()?;
        parameters.check(&config.parameter_shapes())?;
        let patch_features = 3 * config.patch * config.patch;
        let patch_weight =
            parameters.get("patch_embed.proj.weight")?.reshape((config.width, patch_features))?;
        Ok(Self {
            config: *config,
            class_token: parameters.get("cls_token")?.clone(),
            register_tokens: match config.registers {
                0 => None,
                _ => Some(parameters.get("reg_token")?.clone()),
            },
            position_embedding: parameters.get("pos_embed")?.clone(),
            patch_projection: Linear {
                weight: patch_weight,
                bias: parameters.get("patch_embed.proj.bias")?.clone(),
            },
            blocks: (0..config.depth)
                .map(|index| Block::new(config, index, parameters))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new("norm", parameters)?,
        })
    }

    /// Its numbers.
    pub fn config(&self) -> &VitConfig {
        &self.config
    }

    /// The grid of patches of images of this size.
    pub fn grid_of(&self, height: usize, width: usize) -> Option<Grid> {
        let patch = self.config.patch;
        let whole = height.is_multiple_of(patch) && width.is_multiple_of(patch) && height > 0 && width > 0;
        whole.then(|| Grid { rows: height / patch, columns: width / patch })
    }

    /// Pixels to tokens, before the first block.
    ///
    /// # Shapes
    /// pixels `[B, 3, H, W]`, RGB, normalised as the weights expect; H and W multiples of the patch size.
    pub fn embed(&self, pixels: &Tensor) -> Result<Tokens> {
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
        let patches = self.patch_projection.forward(&patches)?; // [B, N, D]

        let token_width = self.config.width;
        let class_token = self.class_token.broadcast_as((batch, 1, token_width))?;
        let positions = resize_position_embedding(&self.position_embedding, grid)?;
        let with_class = Tensor::cat(&[&class_token, &patches], 1)?.broadcast_add(&positions)?;
        let values = match &self.register_tokens {
            None => with_class,
            // Registers have no position and stand behind the class token.
            Some(registers) => {
                let registers = registers.broadcast_as((batch, self.config.registers, token_width))?;
                let class_token = with_class.narrow(1, 0, 1)?;
                let patches = with_class.narrow(1, 1, grid.num_cells())?;
                Tensor::cat(&[&class_token, &registers, &patches], 1)?
            }
        };
        Ok(Tokens { values, grid, num_blocks_run: 0 })
    }

    /// Runs the tokens through the blocks that they have not gone through yet, up to (not including) block `end`.
    pub fn run_blocks_to(&self, end: usize, tokens: &Tokens, mode: &mut Mode<'_>) -> Result<Tokens> {
        let remaining = self.blocks.get(tokens.num_blocks_run..end).ok_or_else(|| NetsError::BadConfig {
            reason: format!(
                "blocks {} to {end} of a ViT with {} blocks",
                tokens.num_blocks_run,
                self.blocks.len()
            ),
        })?;
        let mut values = tokens.values.clone();
        for block in remaining {
            values = block.forward(&values, mode)?;
        }
        Ok(Tokens { values, grid: tokens.grid, num_blocks_run: end })
    }

    /// The patches' features after the final norm, laid out on the grid; class and register tokens are dropped.
    ///
    /// # Shapes
    /// result `[B, rows, columns, D]`
    pub fn patch_features(&self, tokens: &Tokens) -> Result<Tensor> {
        let grid = tokens.grid;
        let batch = tokens.values.dim(0)?;
        let patches = tokens.values.narrow(1, self.config.num_prefix_tokens(), grid.num_cells())?;
        let features = self.norm.forward(&patches.contiguous()?)?;
        Ok(features.reshape((batch, grid.rows, grid.columns, self.config.width))?)
    }

    /// The class token after the final norm.
    ///
    /// # Shapes
    /// result `[B, D]`
    pub fn class_feature(&self, tokens: &Tokens) -> Result<Tensor> {
        let class_token = tokens.values.narrow(1, 0, 1)?.contiguous()?;
        Ok(self.norm.forward(&class_token)?.squeeze(1)?)
    }

    /// All blocks, from pixels to the tokens behind the last one.
    pub fn forward(&self, pixels: &Tensor, mode: &mut Mode<'_>) -> Result<Tokens> {
        self.run_blocks_to(self.config.depth, &self.embed(pixels)?, mode)
    }
}

/// The classification head of pretraining, on the class token. Segmentation does not use it; it shows that
/// imported weights and preprocessing fit each other.
#[derive(Debug, Clone)]
pub struct ClassificationHead(Linear);

impl ClassificationHead {
    /// From weight `[classes, D]` and bias `[classes]`.
    pub fn new(weight: Tensor, bias: Tensor) -> Self {
        Self(Linear { weight, bias })
    }

    /// How many classes it tells apart.
    pub fn num_classes(&self) -> Result<usize> {
        Ok(self.0.weight.dim(0)?)
    }

    /// Class feature `[B, D]` to logits `[B, classes]`.
    pub fn forward(&self, class_feature: &Tensor) -> Result<Tensor> {
        self.0.forward(class_feature)
    }
}

/// One transformer block: attention and MLP, each on the norm of its input and added to it.
#[derive(Debug, Clone)]
struct Block {
    heads: usize,
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    scale1: Option<Tensor>,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    scale2: Option<Tensor>,
}

impl Block {
    fn new(config: &VitConfig, index: usize, parameters: &Parameters) -> Result<Self> {
        let name = |part: &str| format!("blocks.{index}.{part}");
        let scale = |part: &str| match config.layer_scale {
            true => Ok::<_, NetsError>(Some(parameters.get(&name(part))?.clone())),
            false => Ok(None),
        };
        Ok(Self {
            heads: config.heads,
            norm1: LayerNorm::new(&name("norm1"), parameters)?,
            qkv: Linear::new(&name("attn.qkv"), parameters)?,
            projection: Linear::new(&name("attn.proj"), parameters)?,
            scale1: scale("ls1.gamma")?,
            norm2: LayerNorm::new(&name("norm2"), parameters)?,
            fc1: Linear::new(&name("mlp.fc1"), parameters)?,
            fc2: Linear::new(&name("mlp.fc2"), parameters)?,
            scale2: scale("ls2.gamma")?,
        })
    }

    /// x `[B, N, D]`; result as x.
    fn forward(&self, x: &Tensor, mode: &mut Mode<'_>) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        let attended = ops::attention(&qkv, self.heads)?;
        let mask = mode.dropout_mask(x.elem_count(), DropoutSite::Backbone);
        let attended = ops::linear_dropout(&attended, &self.projection.weight, &self.projection.bias, mask)?;
        let x = (x + scaled(attended, self.scale1.as_ref())?)?;

        let normed = self.norm2.forward(&x)?;
        let (hidden_width, width) = self.fc1.weight.dims2()?;
        let num_hidden = x.elem_count() / width * hidden_width;
        let masks = ops::MlpDropout {
            hidden: mode.dropout_mask(num_hidden, DropoutSite::Backbone),
            output: mode.dropout_mask(x.elem_count(), DropoutSite::Backbone),
        };
        let weights = ops::MlpWeights {
            fc1_weight: &self.fc1.weight,
            fc1_bias: &self.fc1.bias,
            fc2_weight: &self.fc2.weight,
            fc2_bias: &self.fc2.bias,
        };
        let out = ops::mlp(&normed, weights, masks)?;
        Ok((x + scaled(out, self.scale2.as_ref())?)?)
    }
}

fn scaled(x: Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
    match scale {
        Some(scale) => Ok(x.broadcast_mul(scale)?),
        None => Ok(x),
    }
}

#[derive(Debug, Clone)]
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn new(name: &str, parameters: &Parameters) -> Result<Self> {
        Ok(Self {
            weight: parameters.get(&format!("{name}.weight"))?.clone(),
            bias: parameters.get(&format!("{name}.bias"))?.clone(),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(ops::linear(x, &self.weight, Some(&self.bias))?)
    }
}

#[derive(Debug, Clone)]
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    fn new(name: &str, parameters: &Parameters) -> Result<Self> {
        Ok(Self {
            weight: parameters.get(&format!("{name}.weight"))?.clone(),
            bias: parameters.get(&format!("{name}.bias"))?.clone(),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(ops::layer_norm(x, &self.weight, &self.bias, LAYER_NORM_EPS)?)
    }
}
