//! Import of Xception weights by Keras' names (`block2_sepconv1/depthwise_kernel`). The four convolutions on shortcuts
//! have no names of their own there (`conv2d_1/kernel`) and are identified by their order. Strict, like all imports.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use crate::error::{Fault, Result};
use crate::import::{DifferentTensor, Mismatch};
use crate::parameters::Parameters;
use crate::variants::ParameterShape;
use crate::weight_file::{ArrayEntry, WeightFile};
use crate::xception::XceptionConfig;

/// Whether a file uses Keras' names of an Xception.
pub(crate) fn is_xception(file: &WeightFile) -> bool {
    file.entries().any(|entry| entry.name.contains("block2_sepconv1/depthwise_kernel"))
}

/// The configuration of a file's Xception, if all arrays are there with the right shapes. With `expected`, it must
/// match.
pub(crate) fn summarise(file: &WeightFile, expected: Option<XceptionConfig>) -> Result<XceptionConfig> {
    let sources = sources(file);
    let config = expected.unwrap_or_else(|| recognise(&sources));
    config.check().map_err(|error| Fault::from(error.to_string()).at(file.path()))?;
    let mut mismatch = Mismatch::new(file.path(), format!("an {}", config.name()));
    for ParameterShape { name, shape } in config.parameter_shapes() {
        let Some(entry) = sources.get(&name) else {
            mismatch.missing.push(name);
            continue;
        };
        let expected = match shape.as_slice() {
            &[out, height, width, inputs] => vec![height, width, inputs, out],
            &[height, width, channels] => vec![height, width, channels, 1],
            vector => vector.to_vec(),
        };
        if entry.shape != expected || !entry.element_type.is_float() {
            mismatch.different.push(DifferentTensor {
                name: entry.name.clone(),
                found: format!("{:?} {}", entry.shape, entry.element_type),
                expected: format!("{expected:?} f32, f16, bf16 or f64"),
            });
        }
    }
    mismatch.into_result()?;
    Ok(config)
}

/// The Xception of a file, with its parameters in our layout.
pub(crate) fn import_xception(
    file: &WeightFile,
    expected: Option<XceptionConfig>,
    device: &Device,
) -> Result<(XceptionConfig, Parameters)> {
    let config = summarise(file, expected)?;
    let sources = sources(file);
    let mut parameters = Parameters::new();
    for ParameterShape { name, shape } in config.parameter_shapes() {
        let Some(entry) = sources.get(&name) else { continue };
        let mut values = file.read_f32(entry)?;
        if let &[out, height, width, inputs] = shape.as_slice() {
            let len = height * width * inputs;
            values = (0..out * len).map(|i| values[i % len * out + i / len]).collect();
        }
        parameters.insert(name, Tensor::from_vec(values, shape, device)?);
    }
    Ok((config, parameters))
}

/// The network's configuration, from names and shapes.
fn recognise(sources: &BTreeMap<String, &ArrayEntry>) -> XceptionConfig {
    let last_block = sources.keys().filter_map(|name| XceptionConfig::block_of(name)).max().unwrap_or(0);
    let width = sources.get("block1_conv1.weight").and_then(|entry| entry.shape.last().copied());
    XceptionConfig { middle_blocks: last_block.saturating_sub(4), width: width.unwrap_or(0), norm_eps: 1e-3 }
}

/// The arrays of a file by our names.
fn sources(file: &WeightFile) -> BTreeMap<String, &ArrayEntry> {
    let layers = file.entries().filter_map(|entry| {
        let mut parts = entry.name.strip_suffix(":0").unwrap_or(&entry.name).rsplit('/');
        let (part, layer) = (parts.next()?, parts.next()?);
        Some((layer, our_part(part)?, entry))
    });
    let layers: Vec<(&str, &str, &ArrayEntry)> = layers.collect();
    // Keras numbers unnamed layers per session, so only their order counts.
    let numbered = |kind: &str| -> BTreeMap<usize, &str> {
        let number = |layer: &str| match layer.strip_prefix(kind)? {
            "" => Some(0),
            rest => rest.strip_prefix('_')?.parse::<usize>().ok(),
        };
        layers.iter().filter_map(|(layer, ..)| Some((number(layer)?, *layer))).collect()
    };
    let last_block = layers.iter().filter_map(|(layer, ..)| XceptionConfig::block_of(layer)).max();
    // Indices count from block 2; the last but one block is the fourth with a convolution on its shortcut.
    let residual_blocks = [2, 3, 4, last_block.unwrap_or(0).saturating_add(1)];
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for (kind, end) in [("conv2d", ""), ("batch_normalization", "_bn")] {
        for (block, layer) in residual_blocks.iter().zip(numbered(kind).into_values()) {
            names.insert(layer, format!("block{block}_residual{end}"));
        }
    }
    let name = |(layer, part, entry): (&str, &str, _)| {
        let layer = match names.get(layer) {
            Some(name) => name.as_str(),
            None => layer.starts_with("block").then_some(layer)?,
        };
        Some((format!("{layer}.{part}"), entry))
    };
    layers.into_iter().filter_map(name).collect()
}

/// Our name for a part of a layer.
fn our_part(part: &str) -> Option<&'static str> {
    Some(match part {
        "kernel" | "gamma" => "weight",
        "depthwise_kernel" => "depthwise.weight",
        "pointwise_kernel" => "pointwise.weight",
        "beta" => "bias",
        "moving_mean" => "running_mean",
        "moving_variance" => "running_var",
        _ => return None,
    })
}
