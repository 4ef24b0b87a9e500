//! The backbone: a ViT, or a convolutional network with atrous last stages, from pixels to features on a grid. One
//! interface for all kinds; the networks are in `vit`, `resnet` and `xception`.

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::activations::Activations;
use crate::dropout::Mode;
use crate::error::{NetsError, Result};
use crate::parameters::Parameters;
use crate::resnet::{OutputStride, RESNETS, ResNet, ResNetConfig, is_frozen_norm};
use crate::variants::{Grid, ParameterShape, VARIANTS, VitConfig};
use crate::vit::{Precision, Vit};
use crate::xception::{XCEPTIONS, Xception, XceptionConfig};

/// Output stride of convolutional backbones, in pixels: the same as the paper's ViTs.
const CONVOLUTIONAL_STRIDE: usize = 16;

/// Configuration of a backbone. Files distinguish the kinds by their keys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackboneConfig {
    /// A vision transformer.
    Vit(VitConfig),
    /// A ResNet.
    ResNet(ResNetConfig),
    /// An Xception.
    Xception(XceptionConfig),
}

/// Where in a backbone a parameter sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterPlace {
    /// Before the blocks.
    Entrance,
    /// In the block of this index.
    Block(usize),
    /// After the blocks.
    FinalNorm,
    /// In a batch norm, which keeps its pretrained statistics and factors.
    FrozenNorm,
}

impl From<VitConfig> for BackboneConfig {
    fn from(config: VitConfig) -> Self {
        BackboneConfig::Vit(config)
    }
}

impl From<ResNetConfig> for BackboneConfig {
    fn from(config: ResNetConfig) -> Self {
        BackboneConfig::ResNet(config)
    }
}

impl From<XceptionConfig> for BackboneConfig {
    fn from(config: XceptionConfig) -> Self {
        BackboneConfig::Xception(config)
    }
}

impl BackboneConfig {
    /// Looks up a backbone of any kind by name.
    pub fn named(name: &str) -> Result<Self> {
        let vit = VARIANTS.iter().find(|variant| variant.name == name).map(|variant| variant.config().into());
        let resnet =
            || RESNETS.iter().find(|variant| variant.name == name).map(|found| found.config().into());
        let xception =
            || XCEPTIONS.iter().find(|variant| variant.name == name).map(|found| found.config().into());
        vit.or_else(resnet).or_else(xception).ok_or_else(|| {
            let vits = VARIANTS.iter().map(|variant| variant.name);
            let resnets = RESNETS.iter().map(|variant| variant.name);
            let known = vits.chain(resnets).chain(XCEPTIONS.iter().map(|variant| variant.name));
            NetsError::UnknownVariant { name: name.to_owned(), known: known.map(str::to_owned).collect() }
        })
    }

    /// Its name, or `custom`.
    pub fn name(&self) -> &'static str {
        match self {
            BackboneConfig::Vit(vit) => vit.name(),
            BackboneConfig::ResNet(resnet) => resnet.name(),
            BackboneConfig::Xception(xception) => xception.name(),
        }
    }

    /// Output stride in pixels: a ViT's patch size.
    pub fn patch(&self) -> usize {
        match self {
            BackboneConfig::Vit(vit) => vit.patch,
            BackboneConfig::ResNet(_) | BackboneConfig::Xception(_) => CONVOLUTIONAL_STRIDE,
        }
    }

    /// Features per grid cell.
    pub fn num_features(&self) -> usize {
        match self {
            BackboneConfig::Vit(vit) => vit.width,
            BackboneConfig::ResNet(resnet) => resnet.num_features(),
            BackboneConfig::Xception(xception) => xception.num_features(),
        }
    }

    /// Number of blocks.
    pub fn depth(&self) -> usize {
        match self {
            BackboneConfig::Vit(vit) => vit.depth,
            BackboneConfig::ResNet(resnet) => resnet.blocks.iter().sum(),
            BackboneConfig::Xception(xception) => xception.depth(),
        }
    }

    /// Checks that the numbers describe a possible network.
    pub fn check(&self) -> Result<()> {
        match self {
            BackboneConfig::Vit(vit) => vit.check(),
            BackboneConfig::ResNet(resnet) => resnet.check(),
            BackboneConfig::Xception(xception) => xception.check(),
        }
    }

    /// Names and shapes of all parameters.
    pub fn parameter_shapes(&self) -> Vec<ParameterShape> {
        match self {
            BackboneConfig::Vit(vit) => vit.parameter_shapes(),
            BackboneConfig::ResNet(resnet) => resnet.parameter_shapes(),
            BackboneConfig::Xception(xception) => xception.parameter_shapes(),
        }
    }

    /// Where a parameter sits.
    pub fn place_of(&self, name: &str) -> ParameterPlace {
        let index = |text: &str| text.split('.').next().and_then(|index| index.parse::<usize>().ok());
        let block = match self {
            BackboneConfig::Vit(_) => name.strip_prefix("blocks.").and_then(index),
            BackboneConfig::ResNet(resnet) => resnet.block_of(name),
            BackboneConfig::Xception(_) => XceptionConfig::block_of(name),
        };
        match block {
            _ if is_frozen_norm(name) => ParameterPlace::FrozenNorm,
            Some(index) => ParameterPlace::Block(index),
            None if name.starts_with("norm.") => ParameterPlace::FinalNorm,
            None => ParameterPlace::Entrance,
        }
    }
}

/// A backbone built from stored parameters.
#[derive(Debug, Clone)]
pub enum Backbone {
    /// A vision transformer.
    Vit(Vit),
    /// A ResNet of output stride 16.
    ResNet(ResNet),
    /// An Xception of output stride 16.
    Xception(Xception),
}

impl Backbone {
    /// Builds the backbone; `parameters` must hold all of [`BackboneConfig::parameter_shapes`].
    pub fn new(config: &BackboneConfig, parameters: &Parameters) -> Result<Self> {
        Ok(match config {
            BackboneConfig::Vit(vit) => Backbone::Vit(Vit::new(vit, parameters)?),
            BackboneConfig::ResNet(resnet) => {
                Backbone::ResNet(ResNet::new(resnet, OutputStride::Sixteen, parameters)?)
            }
            BackboneConfig::Xception(xception) => Backbone::Xception(Xception::new(xception, parameters)?),
        })
    }

    /// The same backbone with another compute precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        match self {
            Backbone::Vit(vit) => Backbone::Vit(vit.with_precision(precision)),
            Backbone::ResNet(resnet) => Backbone::ResNet(resnet.with_precision(precision)),
            Backbone::Xception(xception) => Backbone::Xception(xception.with_precision(precision)),
        }
    }

    /// The same backbone with its first blocks frozen; see [`Vit::with_frozen_blocks`].
    pub(crate) fn with_frozen_blocks(self, num_blocks: usize) -> Result<Self> {
        Ok(match self {
            Backbone::Vit(vit) => Backbone::Vit(vit.with_frozen_blocks(num_blocks)?),
            convolutional @ (Backbone::ResNet(_) | Backbone::Xception(_)) => convolutional,
        })
    }

    /// Pixels to the input of the first block.
    ///
    /// # Shapes
    /// pixels `[B, 3, H, W]`, RGB, normalised as the weights expect; H and W multiples of [`BackboneConfig::patch`].
    pub fn embed(&self, pixels: &Tensor) -> Result<Activations> {
        match self {
            Backbone::Vit(vit) => vit.embed(pixels),
            Backbone::ResNet(resnet) => enter(pixels, |channels_last| resnet.enter(channels_last)),
            Backbone::Xception(xception) => enter(pixels, |channels_last| xception.enter(channels_last)),
        }
    }

    /// Runs the remaining blocks up to (not including) block `end`.
    pub fn run_blocks_to(
        &self,
        end: usize,
        activations: &Activations,
        mode: &mut Mode<'_>,
    ) -> Result<Activations> {
        let first = activations.num_blocks_run;
        let values = match self {
            Backbone::Vit(vit) => return vit.run_blocks_to(end, activations, mode),
            Backbone::ResNet(resnet) => {
                resnet.run_blocks(first..end, &activations.values, mode.gradients())?
            }
            Backbone::Xception(xception) => xception.run_blocks(first..end, &activations.values)?,
        };
        Ok(Activations { values, grid: activations.grid, num_blocks_run: end })
    }

    /// The features after the last block, on the grid.
    ///
    /// # Shapes
    /// result `[B, rows, columns, features]`, in the dtype of [`Precision`]
    pub fn grid_features(&self, activations: &Activations) -> Result<Tensor> {
        match self {
            Backbone::Vit(vit) => vit.patch_features(activations),
            Backbone::ResNet(_) | Backbone::Xception(_) => Ok(activations.values.to_dtype(DType::F32)?),
        }
    }
}

/// Runs the stem of a convolutional network on images of whole cells.
fn enter(pixels: &Tensor, entrance: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Activations> {
    let patch = CONVOLUTIONAL_STRIDE;
    let bad_pixels = || NetsError::BadPixels { shape: pixels.dims().to_vec(), patch };
    let &[_, 3, height, width] = pixels.dims() else { return Err(bad_pixels()) };
    if height == 0 || width == 0 || !height.is_multiple_of(patch) || !width.is_multiple_of(patch) {
        return Err(bad_pixels());
    }
    let grid = Grid { rows: height / patch, columns: width / patch };
    let values = entrance(&pixels.permute((0, 2, 3, 1))?.contiguous()?)?;
    Ok(Activations { values, grid, num_blocks_run: 0 })
}
