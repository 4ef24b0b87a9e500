//! ResNets of bottleneck blocks with atrous last stages and frozen batch norm: the backbone of the verification network
//! (output stride 8), and one for training from tags (16). Images are channels-last, and so are convolution weights
//! (`[out, k, k, in]`); names are torchvision's.

use std::ops::Range;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use vitpcm_ops::{
    Activation, Bottleneck, ConvLayer, ConvNorm, ParameterGradients, PoolWindows, Window, bottlenecks,
    max_pool,
};

use crate::error::{NetsError, Result};
use crate::parameters::Parameters;
use crate::variants::ParameterShape;
use crate::vit::Precision;

/// Output stride in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStride {
    /// DeepLab's.
    Eight,
    /// That of a ViT's patches.
    Sixteen,
}

impl OutputStride {
    /// Stride and dilation of the four stages: the last ones have dilation instead of stride.
    fn stages(self) -> [(usize, usize); 4] {
        match self {
            OutputStride::Eight => [(1, 1), (2, 1), (1, 2), (1, 4)],
            OutputStride::Sixteen => [(1, 1), (2, 1), (2, 1), (1, 2)],
        }
    }
}

/// Ratio of a block's output features to those of its 3×3 convolution.
const EXPANSION: usize = 4;

/// Which convolution of a block carries the stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StrideOn {
    /// The first, 1×1: the original, Caffe and Keras.
    First,
    /// The second, 3×3: torchvision.
    Second,
}

/// Configuration of a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// Blocks of each stage.
    pub blocks: [usize; 4],
    /// Features of the stem and of the first stage's 3×3 convolutions; each stage doubles them.
    pub width: usize,
    /// Where the stride sits.
    pub stride_on: StrideOn,
    /// Epsilon of the batch norms (torchvision 1e-5, older Keras 1e-3).
    pub norm_eps: f64,
}

/// A ResNet by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResNetVariant {
    /// The name used in flags and files.
    pub name: &'static str,
    /// Blocks of each stage.
    pub blocks: [usize; 4],
    /// See [`ResNetConfig::width`].
    pub width: usize,
}

/// All variants; `resnet-nano` is ours, for tests.
pub const RESNETS: [ResNetVariant; 3] = [
    ResNetVariant { name: "resnet-nano", blocks: [1, 1, 1, 1], width: 8 },
    ResNetVariant { name: "resnet50", blocks: [3, 4, 6, 3], width: 64 },
    ResNetVariant { name: "resnet101", blocks: [3, 4, 23, 3], width: 64 },
];

impl ResNetVariant {
    /// The variant of this name.
    pub fn named(name: &str) -> Result<Self> {
        RESNETS.into_iter().find(|variant| variant.name == name).ok_or_else(|| NetsError::UnknownVariant {
            name: name.to_owned(),
            known: RESNETS.iter().map(|variant| variant.name.to_owned()).collect(),
        })
    }

    /// Its configuration in torchvision's form.
    pub fn config(&self) -> ResNetConfig {
        let (blocks, width) = (self.blocks, self.width);
        ResNetConfig { blocks, width, stride_on: StrideOn::Second, norm_eps: 1e-5 }
    }
}

impl ResNetConfig {
    /// The variant's name, or `custom`.
    pub fn name(&self) -> &'static str {
        let same = |variant: &ResNetVariant| (variant.blocks, variant.width) == (self.blocks, self.width);
        RESNETS.into_iter().find(same).map_or("custom", |variant| variant.name)
    }

    /// Features per output pixel.
    pub fn num_features(&self) -> usize {
        8 * self.width * EXPANSION
    }

    /// Checks that the numbers describe a possible network; the limits are far above every published ResNet.
    pub fn check(&self) -> Result<()> {
        if self.blocks.iter().any(|blocks| !(1..=128).contains(blocks)) || !(1..=1024).contains(&self.width) {
            let reason = format!(
                "stages of {:?} blocks, width {}; expected 1 to 128 blocks, 1 to 1024",
                self.blocks, self.width
            );
            return Err(NetsError::BadConfig { reason });
        }
        check_norm_eps(self.norm_eps)
    }

    /// Names and shapes of all parameters.
    pub fn parameter_shapes(&self) -> Vec<ParameterShape> {
        let mut shapes = Vec::new();
        let mut layer = |conv: &str, norm: &str, size| shapes.extend(layer_shapes(conv, norm, size));
        layer("conv1", "bn1", [self.width, 7, 3]);
        for block in self.block_list(OutputStride::Eight) {
            let ResNetBlock { name, inputs, width, .. } = &block;
            layer(&format!("{name}.conv1"), &format!("{name}.bn1"), [*width, 1, *inputs]);
            layer(&format!("{name}.conv2"), &format!("{name}.bn2"), [*width, 3, *width]);
            layer(&format!("{name}.conv3"), &format!("{name}.bn3"), [width * EXPANSION, 1, *width]);
            if block.is_first {
                let (conv, norm) = (format!("{name}.downsample.0"), format!("{name}.downsample.1"));
                layer(&conv, &norm, [width * EXPANSION, 1, *inputs]);
            }
        }
        shapes
    }

    /// The index of a parameter's block, counted over all stages.
    pub(crate) fn block_of(&self, name: &str) -> Option<usize> {
        let (stage, rest) = name.strip_prefix("layer")?.split_once('.')?;
        let stage = stage.parse::<usize>().ok()?.checked_sub(1)?;
        let index = rest.split('.').next()?.parse::<usize>().ok()?;
        Some(self.blocks.get(..stage)?.iter().sum::<usize>() + index)
    }

    /// All blocks in order.
    pub fn block_list(&self, output_stride: OutputStride) -> Vec<ResNetBlock> {
        let mut blocks = Vec::new();
        let mut inputs = self.width;
        for (stage, ((stride, dilation), count)) in
            output_stride.stages().into_iter().zip(self.blocks).enumerate()
        {
            let width = self.width << stage;
            for index in 0..count {
                let is_first = index == 0;
                let name = format!("layer{}.{index}", stage + 1);
                let stride = if is_first { stride } else { 1 };
                blocks.push(ResNetBlock { name, inputs, width, stride, dilation, is_first });
                inputs = width * EXPANSION;
            }
        }
        blocks
    }
}

/// The parameters of a batch norm, by torchvision's names.
const NORM_PARTS: [&str; 4] = ["weight", "bias", "running_mean", "running_var"];

/// Names and shapes of a convolution and its norm, of size [outputs, kernel side, inputs].
pub(crate) fn layer_shapes(
    conv: &str,
    norm: &str,
    [out, kernel, inputs]: [usize; 3],
) -> impl Iterator<Item = ParameterShape> {
    let weight = ParameterShape::new(&format!("{conv}.weight"), &[out, kernel, kernel, inputs]);
    let norm = NORM_PARTS.map(|part| ParameterShape::new(&format!("{norm}.{part}"), &[out]));
    std::iter::once(weight).chain(norm)
}

/// Checks the epsilon of batch norms.
pub(crate) fn check_norm_eps(norm_eps: f64) -> Result<()> {
    if norm_eps.is_finite() && norm_eps > 0.0 {
        return Ok(());
    }
    Err(NetsError::BadConfig { reason: format!("norm_eps is {norm_eps}; expected a positive number") })
}

/// Whether a parameter belongs to a batch norm, which is never trained.
pub fn is_frozen_norm(name: &str) -> bool {
    let mut parts = name.rsplit('.').skip(1);
    match (parts.next(), parts.next()) {
        (Some("1"), Some("downsample")) => true,
        (Some(norm), _) => norm.starts_with("bn") || norm.ends_with("_bn"),
        (None, _) => false,
    }
}

/// The configuration of one block: convolutions of 1×1, 3×3 and 1×1, and a shortcut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResNetBlock {
    /// What its parameters' names begin with.
    pub name: String,
    /// Features that enter.
    pub inputs: usize,
    /// Features of its 3×3 convolution.
    pub width: usize,
    /// Stride in pixels; [`StrideOn`] says of which convolution.
    pub stride: usize,
    /// Dilation and padding of its 3×3 convolution.
    pub dilation: usize,
    /// Whether its shortcut is a convolution, as in the first block of a stage.
    pub is_first: bool,
}

/// A convolution and its norm, by their names.
pub(crate) fn conv_layer(
    parameters: &Parameters,
    (conv, norm): (&str, &str),
    window: Window,
    activation: Activation,
    eps: f64,
) -> Result<ConvLayer> {
    let [weight, bias, mean, variance] =
        NORM_PARTS.map(|part| parameters.get(&format!("{norm}.{part}")).map(Tensor::detach));
    let scale = (weight? / (variance? + eps)?.sqrt()?)?;
    let shift = (bias? - (mean? * &scale)?)?;
    let weight = parameters.get(&format!("{conv}.weight"))?.clone();
    Ok(ConvLayer::new(weight, ConvNorm { window, scale, shift, activation }))
}

impl ResNetBlock {
    fn build(&self, config: &ResNetConfig, parameters: &Parameters) -> Result<Bottleneck> {
        let ResNetBlock { name, stride, dilation, is_first, .. } = self;
        let pointwise = |stride: usize| Window { stride, padding: 0, dilation: 1 };
        let (first, second) = match config.stride_on {
            StrideOn::First => (*stride, 1),
            StrideOn::Second => (1, *stride),
        };
        let wide = Window { stride: second, padding: *dilation, dilation: *dilation };
        let layer = |conv: &str, norm: &str, window: Window, activation: Activation| {
            let names = (format!("{name}.{conv}"), format!("{name}.{norm}"));
            conv_layer(parameters, (&names.0, &names.1), window, activation, config.norm_eps)
        };
        Ok(Bottleneck {
            layers: [
                layer("conv1", "bn1", pointwise(first), Activation::Relu)?,
                layer("conv2", "bn2", wide, Activation::Relu)?,
                layer("conv3", "bn3", pointwise(1), Activation::Relu)?,
            ],
            around: is_first
                .then(|| layer("downsample.0", "downsample.1", pointwise(*stride), Activation::None))
                .transpose()?,
        })
    }
}

/// A ResNet without a classifier.
#[derive(Debug, Clone)]
pub struct ResNet {
    entrance: ConvLayer,
    blocks: Vec<Bottleneck>,
    precision: Precision,
}

impl ResNet {
    /// Builds the network; `parameters` must hold all of [`ResNetConfig::parameter_shapes`].
    pub fn new(config: &ResNetConfig, output_stride: OutputStride, parameters: &Parameters) -> Result<Self> {
        config.check()?;
        parameters.check(&config.parameter_shapes())?;
        let window = Window { stride: 2, padding: 3, dilation: 1 };
        let entrance = conv_layer(parameters, ("conv1", "bn1"), window, Activation::Relu, config.norm_eps)?;
        let blocks = config.block_list(output_stride);
        let blocks = blocks.iter().map(|block| block.build(config, parameters));
        Ok(Self { entrance, blocks: blocks.collect::<Result<_>>()?, precision: Precision::F32 })
    }

    /// The same network with another compute precision after its stem.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same network for repeated passes with fixed weights: they are rounded once.
    pub fn for_passes(&self) -> Result<Self> {
        let dtype = self.precision.dtype(self.entrance.device());
        let blocks = self.blocks.iter().map(|block| Ok(block.for_products(dtype)?)).collect::<Result<_>>()?;
        Ok(Self { blocks, ..self.clone() })
    }

    /// Pixels to features. With `gradients`, the gradients of the blocks' weights may go there.
    ///
    /// # Shapes
    /// pixels `[B, H, W, 3]`, RGB, f32, normalised as the weights expect; result `[B, ⌈H/s⌉, ⌈W/s⌉, 32 · width]` for an
    /// output stride of s
    pub fn forward(&self, pixels: &Tensor, gradients: Option<&ParameterGradients>) -> Result<Tensor> {
        self.run_blocks(0..self.blocks.len(), &self.enter(pixels)?, gradients)
    }

    /// Pixels to the input of the first block.
    pub(crate) fn enter(&self, pixels: &Tensor) -> Result<Tensor> {
        if pixels.dims4()?.3 != 3 {
            let reason = format!("pixels of shape {:?}; expected [batch, height, width, 3]", pixels.dims());
            return Err(NetsError::BadConfig { reason });
        }
        // In f32 on every device: mean-subtracted pixels would lose half a grey level in bf16.
        Ok(max_pool(&self.entrance.forward(pixels, None)?, PoolWindows::EverySecond)?
            .to_dtype(self.precision.dtype(pixels.device()))?)
    }

    /// Runs a range of blocks.
    pub(crate) fn run_blocks(
        &self,
        range: Range<usize>,
        x: &Tensor,
        gradients: Option<&ParameterGradients>,
    ) -> Result<Tensor> {
        let blocks = self.blocks.get(range.clone()).ok_or_else(|| NetsError::BadConfig {
            reason: format!("blocks {range:?} of a ResNet with {} blocks", self.blocks.len()),
        })?;
        Ok(bottlenecks(x, blocks, gradients)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resnets_have_their_published_numbers_of_parameters() {
        // torchvision: 25,557,032 and 44,549,160 with the classifier of 2048 · 1000 + 1000, without the norms' running
        // statistics, which are as many as their weights and biases.
        for (name, published) in [("resnet50", 25_557_032), ("resnet101", 44_549_160)] {
            let shapes = ResNetVariant::named(name).unwrap().config().parameter_shapes();
            let learned = shapes.iter().filter(|parameter| !parameter.name.contains("running_"));
            let count: usize = learned.map(ParameterShape::num_elements).sum();
            assert_eq!(count + 2048 * 1000 + 1000, published, "{name}");
        }
    }

    #[test]
    fn norms_are_told_from_convolutions_by_name() {
        let config = ResNetVariant::named("resnet-nano").unwrap().config();
        for parameter in config.parameter_shapes() {
            assert_eq!(is_frozen_norm(&parameter.name), parameter.shape.len() == 1, "{}", parameter.name);
        }
        assert!(!is_frozen_norm("aspp.c0.bias") && !is_frozen_norm("weight"));
    }
}
