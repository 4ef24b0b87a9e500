//! The numbers of every ViT variant, on one screen, and the names and shapes of its parameters. No tensors here.

use serde::{Deserialize, Serialize};

use crate::error::{NetsError, Result};

/// Epsilon of every layer norm of the ViT.
pub const LAYER_NORM_EPS: f64 = 1e-6;
/// Ratio of an MLP's hidden features to the width.
pub const MLP_RATIO: usize = 4;
/// Features per head in every published variant.
pub(crate) const HEAD_WIDTH: usize = 64;

/// Configuration of a vision transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Features of a token (D).
    pub width: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Register tokens between the class token and the patches (DINOv2 "with registers": 4).
    pub registers: usize,
    /// Whether each branch of a block ends in a learned scale per feature (DINOv2).
    pub layer_scale: bool,
    /// Side of the square grid of stored position embeddings, from the pretraining images. They are resized to any
    /// other grid.
    pub position_grid: usize,
}

/// A named row of the table of variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// The name used in flags and files.
    pub name: &'static str,
    config: VitConfig,
}

const fn variant(
    name: &'static str,
    [patch, width, depth, heads, registers, position_grid]: [usize; 6],
    layer_scale: bool,
) -> Variant {
    let config = VitConfig { patch, width, depth, heads, registers, layer_scale, position_grid };
    Variant { name, config }
}

/// All variants. Position grids: 384-pixel images for `vit-*` as in the paper, 518-pixel ones for DINOv2.
/// The `vit-nano` ones are ours, for tests and demonstrations.
#[rustfmt::skip]
pub const VARIANTS: [Variant; 18] = [
    //       name              patch width depth heads registers grid  LayerScale
    variant("vit-nano16",     [16,  128,   4,    2,    0,       24],   false),
    variant("vit-nano8",      [ 8,  128,   4,    2,    0,       48],   false),
    variant("vit-ti16",       [16,  192,  12,    3,    0,       24],   false),
    variant("vit-s16",        [16,  384,  12,    6,    0,       24],   false),
    variant("vit-b16",        [16,  768,  12,   12,    0,       24],   false),
    variant("vit-l16",        [16, 1024,  24,   16,    0,       24],   false),
    variant("vit-ti8",        [ 8,  192,  12,    3,    0,       48],   false),
    variant("vit-s8",         [ 8,  384,  12,    6,    0,       48],   false),
    variant("vit-b8",         [ 8,  768,  12,   12,    0,       48],   false),
    variant("vit-l8",         [ 8, 1024,  24,   16,    0,       48],   false),
    variant("vit-s14",        [14,  384,  12,    6,    0,       27],   false),
    variant("vit-b14",        [14,  768,  12,   12,    0,       27],   false),
    variant("dinov2-s14",     [14,  384,  12,    6,    0,       37],   true),
    variant("dinov2-b14",     [14,  768,  12,   12,    0,       37],   true),
    variant("dinov2-l14",     [14, 1024,  24,   16,    0,       37],   true),
    variant("dinov2-s14-reg", [14,  384,  12,    6,    4,       37],   true),
    variant("dinov2-b14-reg", [14,  768,  12,   12,    4,       37],   true),
    variant("dinov2-l14-reg", [14, 1024,  24,   16,    4,       37],   true),
];

impl Variant {
    /// The variant of this name.
    pub fn named(name: &str) -> Result<Self> {
        VARIANTS.into_iter().find(|variant| variant.name == name).ok_or_else(|| NetsError::UnknownVariant {
            name: name.to_owned(),
            known: VARIANTS.iter().map(|variant| variant.name.to_owned()).collect(),
        })
    }

    /// Its configuration.
    pub fn config(&self) -> VitConfig {
        self.config
    }
}

impl VitConfig {
    /// The variant with these numbers, for any position grid; `None` for a custom ViT.
    pub fn variant(&self) -> Option<Variant> {
        VARIANTS
            .into_iter()
            .find(|variant| VitConfig { position_grid: self.position_grid, ..variant.config() } == *self)
    }

    /// The variant's name, or `custom`.
    pub fn name(&self) -> &'static str {
        self.variant().map_or("custom", |variant| variant.name)
    }

    /// Tokens before the patches: the class token and the registers.
    pub fn num_prefix_tokens(&self) -> usize {
        1 + self.registers
    }

    /// Checks that the numbers describe a possible network; the limits are far above every published ViT.
    pub fn check(&self) -> Result<()> {
        let limits = [
            ("patch", self.patch, 1, 256),
            ("width", self.width, 1, 1 << 14),
            ("depth", self.depth, 1, 256),
            ("heads", self.heads, 1, 256),
            ("registers", self.registers, 0, 256),
            ("position_grid", self.position_grid, 1, 1024),
        ];
        for (what, value, least, most) in limits {
            if !(least..=most).contains(&value) {
                return Err(NetsError::BadConfig {
                    reason: format!("{what} is {value}; expected {least} to {most}"),
                });
            }
        }
        if !self.width.is_multiple_of(self.heads) {
            let reason = format!("width {} does not split into {} heads", self.width, self.heads);
            return Err(NetsError::BadConfig { reason });
        }
        Ok(())
    }

    /// Names (timm's) and shapes of all parameters.
    pub fn parameter_shapes(&self) -> Vec<ParameterShape> {
        let (width, hidden) = (self.width, self.width * MLP_RATIO);
        let num_positions = 1 + self.position_grid * self.position_grid;
        let mut shapes = vec![
            ParameterShape::new("cls_token", &[1, 1, width]),
            ParameterShape::new("pos_embed", &[1, num_positions, width]),
            ParameterShape::new("patch_embed.proj.weight", &[width, 3, self.patch, self.patch]),
            ParameterShape::new("patch_embed.proj.bias", &[width]),
        ];
        if self.registers > 0 {
            shapes.push(ParameterShape::new("reg_token", &[1, self.registers, width]));
        }
        for block in 0..self.depth {
            let mut push = |name: &str, shape: &[usize]| {
                shapes.push(ParameterShape::new(&format!("blocks.{block}.{name}"), shape));
            };
            push("norm1.weight", &[width]);
            push("norm1.bias", &[width]);
            push("attn.qkv.weight", &[3 * width, width]);
            push("attn.qkv.bias", &[3 * width]);
            push("attn.proj.weight", &[width, width]);
            push("attn.proj.bias", &[width]);
            push("norm2.weight", &[width]);
            push("norm2.bias", &[width]);
            push("mlp.fc1.weight", &[hidden, width]);
            push("mlp.fc1.bias", &[hidden]);
            push("mlp.fc2.weight", &[width, hidden]);
            push("mlp.fc2.bias", &[width]);
            if self.layer_scale {
                push("ls1.gamma", &[width]);
                push("ls2.gamma", &[width]);
            }
        }
        shapes.push(ParameterShape::new("norm.weight", &[width]));
        shapes.push(ParameterShape::new("norm.bias", &[width]));
        shapes
    }
}

/// Name and shape of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterShape {
    /// Its name, as in timm's weight files.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl ParameterShape {
    pub(crate) fn new(name: &str, shape: &[usize]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec() }
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Rows and columns of an image's patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// Patches from top to bottom.
    pub rows: usize,
    /// Patches from left to right.
    pub columns: usize,
}

impl Grid {
    /// Number of patches.
    pub fn num_cells(&self) -> usize {
        self.rows * self.columns
    }
}
