//! DeepLabV2 (`vitpcm_nets::deeplab`): an atrous ResNet, four atrous classifiers whose outputs are summed, a softmax.

use vitpcm_nets::{DeepLabConfig, OutputStride, Parameters};

use crate::error::Result;
use crate::graph_builder::{GraphBuilder, Value};
use crate::resnet_graph::{Window, channels_first_kernel, conv, resnet_graph};

/// Pixels to class probabilities at every eighth pixel.
///
/// # Shapes
/// pixels `[N, 3, H, W]`; result `[N, classes, ⌈H/8⌉, ⌈W/8⌉]`
pub(crate) fn deeplab_graph(
    graph: &mut GraphBuilder,
    config: &DeepLabConfig,
    parameters: &Parameters,
    pixels: &Value,
) -> Result<Value> {
    let features = resnet_graph(graph, &config.backbone, OutputStride::Eight, parameters, pixels)?;
    graph.begin_part("aspp");
    let mut logits: Option<Value> = None;
    for (index, rate) in config.rates.into_iter().enumerate() {
        let name = format!("aspp.c{index}.weight");
        let weights = channels_first_kernel(parameters, &name)?;
        let bias = parameters.values(&format!("aspp.c{index}.bias"))?;
        let window = Window { stride: 1, padding: rate, dilation: rate };
        let of_rate = conv(graph, &name, &weights, &bias, window, &features)?;
        logits = Some(match &logits {
            None => of_rate,
            Some(sum) => graph.add(sum, &of_rate),
        });
    }
    let logits = logits.expect("four rates");
    Ok(graph.softmax(&logits, 1))
}
