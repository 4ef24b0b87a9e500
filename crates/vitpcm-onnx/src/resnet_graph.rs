//! The atrous ResNet (`vitpcm_nets::resnet`): convolutions with their frozen batch norms multiplied into the weights.

use vitpcm_nets::{OutputStride, Parameters, ResNetBlock, ResNetConfig, StrideOn};

use crate::error::Result;
use crate::graph_builder::{Attribute, GraphBuilder, Value};
use crate::stored_weights::LayerWeights;

/// Geometry of a convolution.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) dilation: usize,
}

/// Pixels to features.
///
/// # Shapes
/// pixels `[N, 3, H, W]`; result `[N, 32 · width, ⌈H/s⌉, ⌈W/s⌉]` for an output stride of s
pub(crate) fn resnet_graph(
    graph: &mut GraphBuilder,
    config: &ResNetConfig,
    output_stride: OutputStride,
    parameters: &Parameters,
    pixels: &Value,
) -> Result<Value> {
    graph.begin_part("stem");
    let layers = Layers { parameters, norm_eps: config.norm_eps };
    let window = Window { stride: 2, padding: 3, dilation: 1 };
    let entered = layers.conv_norm(graph, "conv1", "bn1", window, pixels)?;
    let entered = graph.node("Relu", &[&entered], &[]);
    let windows = [
        ("kernel_shape", Attribute::Ints(&[3, 3])),
        ("strides", Attribute::Ints(&[2, 2])),
        ("pads", Attribute::Ints(&[1, 1, 1, 1])),
    ];
    let mut features = graph.node("MaxPool", &[&entered], &windows);
    for block in config.block_list(output_stride) {
        features = layers.block(graph, &block, config.stride_on, &features)?;
    }
    Ok(features)
}

/// A convolution of `outputs` channels with a bias.
pub(crate) fn conv(
    graph: &mut GraphBuilder,
    name: &str,
    weights: &LayerWeights,
    bias: &[f32],
    window: Window,
    x: &Value,
) -> Result<Value> {
    let kernel = weights.shape[2] as i64;
    let Window { stride, padding, dilation } = window;
    let [stride, padding, dilation] = [stride, padding, dilation].map(|number| number as i64);
    let stored = graph.layer(name, weights)?;
    let bias = graph.floats(bias, &[bias.len()]);
    let settings = [
        ("kernel_shape", Attribute::Ints(&[kernel; 2])),
        ("strides", Attribute::Ints(&[stride; 2])),
        ("pads", Attribute::Ints(&[padding; 4])),
        ("dilations", Attribute::Ints(&[dilation; 2])),
    ];
    Ok(graph.node("Conv", &[x, &stored, &bias], &settings))
}

/// Our kernels are `[out, k, k, in]`, those of ONNX `[out, in, k, k]`.
pub(crate) fn channels_first_kernel(parameters: &Parameters, name: &str) -> Result<LayerWeights> {
    let dims = parameters.get(name)?.dims().to_vec();
    let (outputs, kernel, inputs) = (dims[0], dims[1], dims[3]);
    let stored = parameters.values(name)?;
    let mut values = Vec::with_capacity(stored.len());
    for of_output in stored.chunks_exact(kernel * kernel * inputs) {
        for input in 0..inputs {
            values.extend(of_output.chunks_exact(inputs).map(|at_place| at_place[input]));
        }
    }
    Ok(LayerWeights { values, shape: vec![outputs, inputs, kernel, kernel] })
}

struct Layers<'a> {
    parameters: &'a Parameters,
    norm_eps: f64,
}

impl Layers<'_> {
    fn block(
        &self,
        graph: &mut GraphBuilder,
        block: &ResNetBlock,
        stride_on: StrideOn,
        x: &Value,
    ) -> Result<Value> {
        let ResNetBlock { name, stride, dilation, is_first, .. } = block;
        graph.begin_part(name);
        let (first, second) = match stride_on {
            StrideOn::First => (*stride, 1),
            StrideOn::Second => (1, *stride),
        };
        let pointwise = |stride| Window { stride, padding: 0, dilation: 1 };
        let windows = [
            pointwise(first),
            Window { stride: second, padding: *dilation, dilation: *dilation },
            pointwise(1),
        ];
        let mut features = x.clone();
        for (number, window) in (1..).zip(windows) {
            if number > 1 {
                features = graph.node("Relu", &[&features], &[]);
            }
            let (conv, norm) = (format!("{name}.conv{number}"), format!("{name}.bn{number}"));
            features = self.conv_norm(graph, &conv, &norm, window, &features)?;
        }
        let around = match is_first {
            false => x.clone(),
            true => {
                let (conv, norm) = (format!("{name}.downsample.0"), format!("{name}.downsample.1"));
                self.conv_norm(graph, &conv, &norm, pointwise(*stride), x)?
            }
        };
        let sum = graph.add(&features, &around);
        Ok(graph.node("Relu", &[&sum], &[]))
    }

    /// A convolution and its norm: `scale · result + shift`, with the scale in the weights.
    fn conv_norm(
        &self,
        graph: &mut GraphBuilder,
        conv_name: &str,
        norm: &str,
        window: Window,
        x: &Value,
    ) -> Result<Value> {
        let part = |part: &str| self.parameters.values(&format!("{norm}.{part}"));
        let (weight, bias) = (part("weight")?, part("bias")?);
        let (mean, variance) = (part("running_mean")?, part("running_var")?);
        let scale = |(weight, variance): (&f32, &f32)| {
            (f64::from(*weight) / (f64::from(*variance) + self.norm_eps).sqrt()) as f32
        };
        let scales: Vec<f32> = weight.iter().zip(&variance).map(scale).collect();
        let shift = |((bias, mean), scale): ((&f32, &f32), &f32)| bias - mean * scale;
        let shifts: Vec<f32> = bias.iter().zip(&mean).zip(&scales).map(shift).collect();
        let name = format!("{conv_name}.weight");
        let weights = channels_first_kernel(self.parameters, &name)?.scaled(&scales);
        conv(graph, &name, &weights, &shifts, window, x)
    }
}
