//! Xception (Chollet 2017): depthwise separable convolutions in Keras' form, with frozen batch norm and an atrous exit
//! flow (output stride 16 instead of 32). A backbone for comparison. Images are channels-last; names are Keras', with
//! the convolutions that it leaves unnamed as `blockN_residual`.

use std::ops::Range;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use vitpcm_ops::{Activation, ConvLayer, PoolWindows, Window, depthwise, max_pool};

use crate::error::{NetsError, Result};
use crate::parameters::Parameters;
use crate::resnet::{check_norm_eps, conv_layer, layer_shapes};
use crate::variants::ParameterShape;
use crate::vit::Precision;

/// Number of the first block after the stem.
const FIRST_BLOCK: usize = 2;

/// Configuration of an Xception.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XceptionConfig {
    /// Blocks of the middle flow.
    pub middle_blocks: usize,
    /// Features of the stem, a multiple of 4; all others follow in the published proportions.
    pub width: usize,
    /// Epsilon of the batch norms (Keras 1e-3).
    pub norm_eps: f64,
}

/// An Xception by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XceptionVariant {
    /// The name used in flags and files.
    pub name: &'static str,
    middle_blocks: usize,
    width: usize,
}

/// All variants; `xception-nano` is ours, for tests.
pub const XCEPTIONS: [XceptionVariant; 2] = [
    XceptionVariant { name: "xception-nano", middle_blocks: 1, width: 4 },
    XceptionVariant { name: "xception", middle_blocks: 8, width: 32 },
];

impl XceptionVariant {
    /// The variant of this name.
    pub fn named(name: &str) -> Result<Self> {
        XCEPTIONS.into_iter().find(|variant| variant.name == name).ok_or_else(|| NetsError::UnknownVariant {
            name: name.to_owned(),
            known: XCEPTIONS.iter().map(|variant| variant.name.to_owned()).collect(),
        })
    }

    /// Its configuration in Keras' form.
    pub fn config(&self) -> XceptionConfig {
        XceptionConfig { middle_blocks: self.middle_blocks, width: self.width, norm_eps: 1e-3 }
    }
}

/// The shortcut around a block's separable convolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WayAround {
    /// Nothing.
    None,
    /// The input itself.
    Identity,
    /// A 1×1 convolution; the block ends in max pooling with the same windows.
    Convolution(PoolWindows),
}

/// The configuration of one block.
struct Block {
    number: usize,
    /// Features of the input, and of each separable convolution.
    inputs: usize,
    widths: Vec<usize>,
    dilation: usize,
    way_around: WayAround,
    /// Whether the block starts with a ReLU.
    activates_input: bool,
}

impl Block {
    fn separable_name(&self, index: usize) -> String {
        format!("block{}_sepconv{}", self.number, index + 1)
    }

    /// Name, inputs and outputs of every separable convolution.
    fn separables(&self) -> impl Iterator<Item = (String, usize, usize)> {
        let inputs = std::iter::once(self.inputs).chain(self.widths.iter().copied());
        let sizes = inputs.zip(&self.widths).enumerate();
        sizes.map(|(index, (inputs, &outputs))| (self.separable_name(index), inputs, outputs))
    }

    fn num_features(&self) -> usize {
        self.widths.last().copied().unwrap_or(self.inputs)
    }
}

impl XceptionConfig {
    /// The variant's name, or `custom`.
    pub fn name(&self) -> &'static str {
        let same = |variant: &XceptionVariant| {
            (variant.middle_blocks, variant.width) == (self.middle_blocks, self.width)
        };
        XCEPTIONS.into_iter().find(same).map_or("custom", |variant| variant.name)
    }

    /// Features per output pixel.
    pub fn num_features(&self) -> usize {
        64 * self.width
    }

    /// Blocks after the stem.
    pub fn depth(&self) -> usize {
        3 + self.middle_blocks + 2
    }

    /// Checks that the numbers describe a possible network; the limits are far above the published Xception.
    pub fn check(&self) -> Result<()> {
        let Self { middle_blocks, width, norm_eps } = *self;
        if !(1..=128).contains(&middle_blocks) || !(4..=1024).contains(&width) || !width.is_multiple_of(4) {
            let reason = format!(
                "{middle_blocks} middle blocks, width {width}; expected 1 to 128, a multiple of 4 to 1024"
            );
            return Err(NetsError::BadConfig { reason });
        }
        check_norm_eps(norm_eps)
    }

    /// Names and shapes of all parameters.
    pub fn parameter_shapes(&self) -> Vec<ParameterShape> {
        let mut shapes = Vec::new();
        let mut layer = |conv: &str, norm: &str, size| shapes.extend(layer_shapes(conv, norm, size));
        layer("block1_conv1", "block1_conv1_bn", [self.width, 3, 3]);
        layer("block1_conv2", "block1_conv2_bn", [2 * self.width, 3, self.width]);
        let mut of_depthwise = Vec::new();
        for block in self.block_list() {
            if let WayAround::Convolution(_) = block.way_around {
                let name = format!("block{}_residual", block.number);
                layer(&name, &format!("{name}_bn"), [block.num_features(), 1, block.inputs]);
            }
            for (name, inputs, outputs) in block.separables() {
                of_depthwise.push(ParameterShape::new(&format!("{name}.depthwise.weight"), &[3, 3, inputs]));
                layer(&format!("{name}.pointwise"), &format!("{name}_bn"), [outputs, 1, inputs]);
            }
        }
        shapes.extend(of_depthwise);
        shapes
    }

    /// The index of a parameter's block; `None` for the stem.
    pub(crate) fn block_of(name: &str) -> Option<usize> {
        let number = name.strip_prefix("block")?.split('_').next()?.parse::<usize>().ok()?;
        number.checked_sub(FIRST_BLOCK)
    }

    /// All blocks in order.
    fn block_list(&self) -> Vec<Block> {
        let width = self.width;
        // 728 of 32, the one odd proportion.
        let middle = 91 * width / 4;
        let mut blocks: Vec<Block> = Vec::with_capacity(self.depth());
        let mut push = |widths: Vec<usize>, dilation: usize, way_around: WayAround| {
            let number = FIRST_BLOCK + blocks.len();
            let inputs = blocks.last().map_or(2 * width, Block::num_features);
            // The stem's output and the last block's input have no further ReLU.
            let activates_input = number > FIRST_BLOCK && way_around != WayAround::None;
            blocks.push(Block { number, inputs, widths, dilation, way_around, activates_input });
        };
        for features in [4 * width, 8 * width, middle] {
            push(vec![features; 2], 1, WayAround::Convolution(PoolWindows::EverySecondSame));
        }
        for _ in 0..self.middle_blocks {
            push(vec![middle; 3], 1, WayAround::Identity);
        }
        // The published network has stride 2 here; instead, what follows has dilation 2.
        push(vec![middle, 32 * width], 1, WayAround::Convolution(PoolWindows::Every));
        push(vec![48 * width, 64 * width], 2, WayAround::None);
        blocks
    }
}

/// A depthwise and a 1×1 convolution, a norm and optionally a ReLU.
#[derive(Debug, Clone)]
struct Separable {
    depthwise: Tensor,
    dilation: usize,
    pointwise: ConvLayer,
}

impl Separable {
    fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        Ok(self.pointwise.forward(&depthwise(x, &self.depthwise, self.dilation)?, residual)?)
    }
}

#[derive(Debug, Clone)]
struct XceptionBlock {
    separables: Vec<Separable>,
    way_around: WayAround,
    convolution: Option<ConvLayer>,
    activates_input: bool,
}

impl XceptionBlock {
    fn new(block: &Block, eps: f64, parameters: &Parameters) -> Result<Self> {
        let pointwise = |stride: usize| Window { stride, padding: 0, dilation: 1 };
        let last = block.widths.len() - 1;
        let separable = |(index, (name, ..)): (usize, (String, usize, usize))| {
            // The ReLU before the next convolution; after the last one it belongs to the next block.
            let activation = match index == last && block.way_around != WayAround::None {
                true => Activation::None,
                false => Activation::Relu,
            };
            let names = (format!("{name}.pointwise"), format!("{name}_bn"));
            Ok(Separable {
                depthwise: parameters.get(&format!("{name}.depthwise.weight"))?.clone(),
                dilation: block.dilation,
                pointwise: conv_layer(parameters, (&names.0, &names.1), pointwise(1), activation, eps)?,
            })
        };
        let convolution = match block.way_around {
            WayAround::None | WayAround::Identity => None,
            WayAround::Convolution(windows) => {
                let stride = if windows == PoolWindows::Every { 1 } else { 2 };
                let (conv, norm) =
                    (format!("block{}_residual", block.number), format!("block{}_residual_bn", block.number));
                Some(conv_layer(parameters, (&conv, &norm), pointwise(stride), Activation::None, eps)?)
            }
        };
        Ok(Self {
            separables: block.separables().enumerate().map(separable).collect::<Result<_>>()?,
            way_around: block.way_around,
            convolution,
            activates_input: block.activates_input,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = if self.activates_input { x.relu()? } else { x.clone() };
        for (index, separable) in self.separables.iter().enumerate() {
            let is_last = index + 1 == self.separables.len();
            let residual = (is_last && self.way_around == WayAround::Identity).then_some(x);
            y = separable.forward(&y, residual)?;
        }
        match (&self.convolution, self.way_around) {
            (Some(convolution), WayAround::Convolution(windows)) => {
                Ok((max_pool(&y, windows)? + convolution.forward(x, None)?)?)
            }
            _ => Ok(y),
        }
    }
}

/// An Xception without a classifier.
#[derive(Debug, Clone)]
pub struct Xception {
    entrance: [ConvLayer; 2],
    blocks: Vec<XceptionBlock>,
    precision: Precision,
}

impl Xception {
    /// Builds the network; `parameters` must hold all of [`XceptionConfig::parameter_shapes`].
    pub fn new(config: &XceptionConfig, parameters: &Parameters) -> Result<Self> {
        config.check()?;
        parameters.check(&config.parameter_shapes())?;
        let entrance = |name: &str, stride: usize| {
            let window = Window { stride, padding: 0, dilation: 1 };
            let norm = format!("{name}_bn");
            conv_layer(parameters, (name, &norm), window, Activation::Relu, config.norm_eps)
        };
        let blocks = config.block_list();
        let blocks = blocks.iter().map(|block| XceptionBlock::new(block, config.norm_eps, parameters));
        Ok(Self {
            entrance: [entrance("block1_conv1", 2)?, entrance("block1_conv2", 1)?],
            blocks: blocks.collect::<Result<_>>()?,
            precision: Precision::F32,
        })
    }

    /// The same network with another compute precision after its first convolution.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Pixels to features.
    ///
    /// # Shapes
    /// pixels `[B, H, W, 3]`, RGB, f32, normalised as the weights expect, H and W multiples of 16; result
    /// `[B, H/16, W/16, 64 · width]`
    pub fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        self.run_blocks(0..self.blocks.len(), &self.enter(pixels)?)
    }

    /// Pixels to the input of the first block.
    pub(crate) fn enter(&self, pixels: &Tensor) -> Result<Tensor> {
        let [first, second] = &self.entrance;
        // In f32 on every device, as in ResNets.
        let features = first.forward(pixels, None)?.to_dtype(self.precision.dtype(pixels.device()))?;
        Ok(second.forward(&features, None)?)
    }

    /// Runs a range of blocks.
    pub(crate) fn run_blocks(&self, range: Range<usize>, x: &Tensor) -> Result<Tensor> {
        let blocks = self.blocks.get(range.clone()).ok_or_else(|| NetsError::BadConfig {
            reason: format!("blocks {range:?} of an Xception with {} blocks", self.blocks.len()),
        })?;
        blocks.iter().try_fold(x.clone(), |features, block| block.forward(&features))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resnet::is_frozen_norm;

    #[test]
    fn xception_has_its_published_number_of_parameters() {
        // Keras: 22,910,480 with the classifier of 2048 · 1000 + 1000 and the norms' running statistics.
        let shapes = XceptionVariant::named("xception").unwrap().config().parameter_shapes();
        let count: usize = shapes.iter().map(ParameterShape::num_elements).sum();
        assert_eq!(count + 2048 * 1000 + 1000, 22_910_480);
    }

    #[test]
    fn norms_are_told_from_convolutions_by_name() {
        for parameter in XceptionVariant::named("xception-nano").unwrap().config().parameter_shapes() {
            assert_eq!(is_frozen_norm(&parameter.name), parameter.shape.len() == 1, "{}", parameter.name);
        }
    }

    #[test]
    fn parameters_know_their_block() {
        for (name, expected) in [
            ("block1_conv2.weight", None),
            ("block2_residual.weight", Some(0)),
            ("block4_sepconv1.depthwise.weight", Some(2)),
            ("block14_sepconv2_bn.weight", Some(12)),
            ("image_classifier.weight", None),
        ] {
            assert_eq!(XceptionConfig::block_of(name), expected, "{name}");
        }
        assert_eq!(XceptionVariant::named("xception").unwrap().config().depth(), 13);
    }
}
