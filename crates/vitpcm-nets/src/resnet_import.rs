//! Import of ResNet weights pretrained on ImageNet, detected by their names: torchvision's, and Keras' of both
//! generations. Converts all to one form: RGB input, channels-last, no bias before a norm. Strict, like the import of
//! ViTs.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde::Serialize;

use crate::error::{Fault, Result};
use crate::import::{DifferentTensor, Mismatch};
use crate::normalisation::Normalisation;
use crate::parameters::Parameters;
use crate::resnet::{ResNetConfig, ResNetVariant, StrideOn};
use crate::variants::ParameterShape;
use crate::weight_file::{ArrayEntry, WeightFile};

/// Naming schemes of ResNet weights; each implies the position of the stride, the norms' epsilon and the normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResNetNaming {
    /// `layer1.0.conv1.weight`.
    Torchvision,
    /// `res2a_branch2a/kernel`: Caffe's names, as Keras used them until 2019.
    KerasBranches,
    /// `conv2_block1_1_conv/kernel`: Keras' names since then.
    KerasBlocks,
}

impl fmt::Display for ResNetNaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResNetNaming::Torchvision => "torchvision",
            ResNetNaming::KerasBranches => "Keras (branches)",
            ResNetNaming::KerasBlocks => "Keras (blocks)",
        })
    }
}

/// The weights of a ResNet, and a summary of their file.
#[derive(Debug, Clone)]
pub struct ImportedResNet {
    /// A summary of the file.
    pub summary: ResNetSummary,
    /// The ResNet's parameters, f32, in our layout.
    pub parameters: Parameters,
}

/// Summary of a file of ResNet weights.
#[derive(Debug, Clone, Serialize)]
pub struct ResNetSummary {
    /// The file.
    pub path: PathBuf,
    /// Its naming scheme.
    pub naming: ResNetNaming,
    /// The variant's name, or `custom`.
    pub variant: String,
    /// The ResNet's configuration.
    pub config: ResNetConfig,
    /// Normalisation of its input pixels.
    pub normalisation: Normalisation,
    /// Arrays that segmentation does not need.
    pub left_over: Vec<String>,
}

/// Imports the ResNet of a file. With `expected`, it must be that variant.
pub fn import_resnet(
    path: impl AsRef<Path>,
    expected: Option<ResNetVariant>,
    device: &Device,
) -> Result<ImportedResNet> {
    ImportedResNet::from_weight_file(&WeightFile::open(path)?, expected, device)
}

impl ImportedResNet {
    /// [`import_resnet`] from an open file.
    pub fn from_weight_file(
        file: &WeightFile,
        expected: Option<ResNetVariant>,
        device: &Device,
    ) -> Result<Self> {
        let summary = summarise(file, expected)?;
        let sources = sources(file, summary.naming);
        let mut parameters = Parameters::new();
        for ParameterShape { name, shape } in summary.config.parameter_shapes() {
            let Some(entry) = sources.get(&name) else { continue };
            let mut values = file.read_f32(entry)?;
            if let &[out, kernel, _, inputs] = shape.as_slice() {
                values = match summary.naming {
                    ResNetNaming::Torchvision => channels_last(&values, out, inputs, kernel * kernel),
                    _ => outputs_first(&values, kernel * kernel * inputs, out),
                };
                if name == "conv1.weight" && summary.naming != ResNetNaming::Torchvision {
                    // Trained on BGR.
                    values.chunks_exact_mut(3).for_each(<[f32]>::reverse);
                }
            }
            // A bias before a norm shifts its mean.
            let conv = conv_of_mean(&name).and_then(|conv| sources.get(&format!("{conv}.bias")));
            if let Some(bias) = conv {
                let bias = file.read_f32(bias)?;
                values.iter_mut().zip(bias).for_each(|(mean, bias)| *mean -= bias);
            }
            parameters.insert(name, Tensor::from_vec(values, shape, device)?);
        }
        Ok(ImportedResNet { summary, parameters })
    }
}

/// Identifies a file without reading data: checks that all arrays are there with the right shapes.
pub(crate) fn summarise(file: &WeightFile, expected: Option<ResNetVariant>) -> Result<ResNetSummary> {
    let names = || file.entries().map(|entry| entry.name.as_str());
    let Some(naming) = ResNetNaming::recognise(names()) else {
        let reason = "no ResNet: neither torchvision's names (layer1.0.conv1.weight) nor Keras' \
                      (res2a_branch2a/kernel, conv2_block1_1_conv/kernel)";
        return Err(Fault::from(reason).at(file.path()));
    };
    let sources = sources(file, naming);
    let mut blocks = [0usize; 4];
    for name in sources.keys() {
        let place = name.strip_prefix("layer").and_then(|rest| rest.split_once('.'));
        let place = place.and_then(|(stage, rest)| {
            Some((stage.parse::<usize>().ok()?, rest.split('.').next()?.parse::<usize>().ok()?))
        });
        if let Some((stage @ 1..=4, index)) = place {
            blocks[stage - 1] = blocks[stage - 1].max(index.saturating_add(1));
        }
    }
    let width = sources.get("conv1.weight").map_or(64, |entry| match naming {
        ResNetNaming::Torchvision => entry.shape.first().copied().unwrap_or(64),
        _ => entry.shape.last().copied().unwrap_or(64),
    });
    let (blocks, width) = expected.map_or((blocks, width), |variant| (variant.blocks, variant.width));
    let config = ResNetConfig {
        blocks,
        width,
        stride_on: match naming {
            ResNetNaming::Torchvision => StrideOn::Second,
            _ => StrideOn::First,
        },
        norm_eps: match naming {
            ResNetNaming::Torchvision => 1e-5,
            ResNetNaming::KerasBranches => 1e-3,
            ResNetNaming::KerasBlocks => 1.001e-5,
        },
    };
    config.check().map_err(|error| Fault::from(error.to_string()).at(file.path()))?;
    let shapes = config.parameter_shapes();
    compare(file, naming, &shapes, &sources, config.name()).into_result()?;
    let known: HashSet<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
    let is_used = |name: &str| {
        let parameter = naming.parameter(name);
        parameter.is_some_and(|parameter| parameter.ends_with(".bias") || known.contains(parameter.as_str()))
    };
    Ok(ResNetSummary {
        path: file.path().to_owned(),
        naming,
        variant: config.name().to_owned(),
        config,
        normalisation: match naming {
            ResNetNaming::Torchvision => Normalisation::IMAGENET,
            _ => Normalisation::CAFFE,
        },
        left_over: names().filter(|name| !is_used(name)).map(str::to_owned).collect(),
    })
}

/// The arrays of a file by our names.
fn sources(file: &WeightFile, naming: ResNetNaming) -> BTreeMap<String, &ArrayEntry> {
    file.entries().filter_map(|entry| Some((naming.parameter(&entry.name)?, entry))).collect()
}

fn compare(
    file: &WeightFile,
    naming: ResNetNaming,
    shapes: &[ParameterShape],
    sources: &BTreeMap<String, &ArrayEntry>,
    network: &str,
) -> Mismatch {
    let mut mismatch = Mismatch::new(file.path(), format!("a {network}"));
    for ParameterShape { name, shape } in shapes {
        let Some(entry) = sources.get(name) else {
            mismatch.missing.push(name.clone());
            continue;
        };
        let expected = match (shape.as_slice(), naming) {
            (&[out, kernel, _, inputs], ResNetNaming::Torchvision) => vec![out, inputs, kernel, kernel],
            (&[out, kernel, _, inputs], _) => vec![kernel, kernel, inputs, out],
            _ => shape.clone(),
        };
        if entry.shape != expected || !entry.element_type.is_float() {
            mismatch.different.push(DifferentTensor {
                name: entry.name.clone(),
                found: format!("{:?} {}", entry.shape, entry.element_type),
                expected: format!("{expected:?} f32, f16, bf16 or f64"),
            });
        }
        let bias = conv_of_mean(name).and_then(|conv| sources.get(&format!("{conv}.bias")));
        if let Some(bias) = bias.filter(|bias| bias.shape != *shape || !bias.element_type.is_float()) {
            mismatch.different.push(DifferentTensor {
                name: bias.name.clone(),
                found: format!("{:?} {}", bias.shape, bias.element_type),
                expected: format!("{shape:?} f32, f16, bf16 or f64"),
            });
        }
    }
    // Deeper than expected, or of another architecture.
    let known: HashSet<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
    let is_known = |name: &str| known.contains(name) || name.ends_with(".bias");
    mismatch.unused = sources.keys().filter(|name| !is_known(name)).cloned().collect();
    mismatch
}

/// The convolution before the norm with this mean.
fn conv_of_mean(name: &str) -> Option<String> {
    let norm = name.strip_suffix(".running_mean")?;
    match norm.rsplit_once('.') {
        Some((block, "1")) => Some(format!("{block}.0")),
        Some((block, norm)) => Some(format!("{block}.{}", norm.replacen("bn", "conv", 1))),
        None => Some(norm.replacen("bn", "conv", 1)),
    }
}

impl ResNetNaming {
    pub(crate) fn recognise<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        names.into_iter().find_map(|name| match name {
            _ if name.ends_with("layer1.0.conv1.weight") => Some(ResNetNaming::Torchvision),
            _ if name.contains("res2a_branch2a/kernel") => Some(ResNetNaming::KerasBranches),
            _ if name.contains("conv2_block1_1_conv/kernel") => Some(ResNetNaming::KerasBlocks),
            _ => None,
        })
    }

    /// The parameter that an array holds; `None` for arrays that a backbone does not need.
    fn parameter(self, name: &str) -> Option<String> {
        match self {
            ResNetNaming::Torchvision => torchvision_parameter(name),
            ResNetNaming::KerasBranches => keras_parameter(name, branch_layer),
            ResNetNaming::KerasBlocks => keras_parameter(name, block_layer),
        }
    }
}

fn torchvision_parameter(name: &str) -> Option<String> {
    // Prefixes that training code adds to a module's names.
    let mut name = name;
    while let Some(inner) =
        ["module.", "backbone.", "model.", "encoder."].iter().find_map(|wrapper| name.strip_prefix(wrapper))
    {
        name = inner;
    }
    let is_entrance = name.starts_with("conv1.") || name.starts_with("bn1.");
    let is_wanted = (is_entrance || name.starts_with("layer")) && !name.ends_with("num_batches_tracked");
    is_wanted.then(|| name.to_owned())
}

/// `LAYER/PART`, possibly with groups before it and `:0` after it; `layer` translates the first.
fn keras_parameter(name: &str, layer: fn(&str) -> Option<(String, Kind)>) -> Option<String> {
    let mut parts = name.strip_suffix(":0").unwrap_or(name).rsplit('/');
    let part = parts.next()?;
    let (layer, kind) = layer(parts.next()?)?;
    let part = match (kind, part) {
        (Kind::Convolution, "kernel") | (Kind::Norm, "gamma") => "weight",
        (Kind::Convolution, "bias") | (Kind::Norm, "beta") => "bias",
        (Kind::Norm, "moving_mean") => "running_mean",
        (Kind::Norm, "moving_variance") => "running_var",
        _ => return None,
    };
    Some(format!("{layer}.{part}"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Convolution,
    Norm,
}

/// Part `number` of a block, 0 for the shortcut.
fn in_block(stage: usize, index: usize, number: usize, kind: Kind) -> Option<(String, Kind)> {
    let stage = stage.checked_sub(1).filter(|stage| (1..=4).contains(stage))?;
    let layer = match (number, kind) {
        (0, Kind::Convolution) => "downsample.0".to_owned(),
        (0, Kind::Norm) => "downsample.1".to_owned(),
        (1..=3, Kind::Convolution) => format!("conv{number}"),
        (1..=3, Kind::Norm) => format!("bn{number}"),
        _ => return None,
    };
    Some((format!("layer{stage}.{index}.{layer}"), kind))
}

/// `res2a_branch2a`, `bn4b22_branch1`.
fn branch_layer(name: &str) -> Option<(String, Kind)> {
    match name {
        "conv1" => return Some(("conv1".to_owned(), Kind::Convolution)),
        "bn_conv1" => return Some(("bn1".to_owned(), Kind::Norm)),
        _ => {}
    }
    let (rest, kind) = match name.strip_prefix("res") {
        Some(rest) => (rest, Kind::Convolution),
        None => (name.strip_prefix("bn")?, Kind::Norm),
    };
    let (block, branch) = rest.split_once("_branch")?;
    let mut characters = block.chars();
    let stage = characters.next()?.to_digit(10)? as usize;
    let letter = characters.next().filter(char::is_ascii_lowercase)?;
    // Blocks are a, b, c, … or, if there are more than letters, a, b1, b2, …
    let index = match characters.as_str() {
        "" => usize::from(letter as u8 - b'a'),
        number => number.parse().ok()?,
    };
    let number = match branch {
        "1" => 0,
        "2a" => 1,
        "2b" => 2,
        "2c" => 3,
        _ => return None,
    };
    in_block(stage, index, number, kind)
}

/// `conv2_block1_1_conv`, `conv2_block1_0_bn`.
fn block_layer(name: &str) -> Option<(String, Kind)> {
    match name {
        "conv1_conv" => return Some(("conv1".to_owned(), Kind::Convolution)),
        "conv1_bn" => return Some(("bn1".to_owned(), Kind::Norm)),
        _ => {}
    }
    let (stage, rest) = name.strip_prefix("conv")?.split_once("_block")?;
    let mut parts = rest.split('_');
    let index = parts.next()?.parse::<usize>().ok()?.checked_sub(1)?;
    let number = parts.next()?.parse().ok()?;
    let kind = match parts.next()? {
        "conv" => Kind::Convolution,
        "bn" => Kind::Norm,
        _ => return None,
    };
    in_block(stage.parse().ok()?, index, number, kind)
}

/// `[out, in, taps]` to `[out, taps, in]`.
fn channels_last(values: &[f32], out: usize, inputs: usize, taps: usize) -> Vec<f32> {
    let at = |o: usize, tap: usize, i: usize| values[(o * inputs + i) * taps + tap];
    (0..out)
        .flat_map(|o| (0..taps).map(move |tap| (o, tap)))
        .flat_map(|(o, tap)| (0..inputs).map(move |i| at(o, tap, i)))
        .collect()
}

/// `[taps · in, out]` to `[out, taps · in]`.
fn outputs_first(values: &[f32], len: usize, out: usize) -> Vec<f32> {
    (0..out).flat_map(|o| (0..len).map(move |k| values[k * out + o])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_schemes_are_understood() {
        use ResNetNaming::{KerasBlocks, KerasBranches, Torchvision};
        for (naming, name, expected) in [
            (Torchvision, "layer3.22.conv2.weight", Some("layer3.22.conv2.weight")),
            (Torchvision, "module.bn1.running_var", Some("bn1.running_var")),
            (Torchvision, "layer1.0.downsample.1.num_batches_tracked", None),
            (Torchvision, "fc.weight", None),
            (KerasBranches, "conv1/kernel", Some("conv1.weight")),
            (KerasBranches, "bn_conv1/moving_mean", Some("bn1.running_mean")),
            (KerasBranches, "res2a_branch1/bias", Some("layer1.0.downsample.0.bias")),
            (KerasBranches, "bn5c_branch2b/gamma", Some("layer4.2.bn2.weight")),
            (KerasBranches, "res4b22_branch2c/res4b22_branch2c/kernel:0", Some("layer3.22.conv3.weight")),
            (KerasBranches, "fc1000/kernel", None),
            (KerasBlocks, "conv2_block1_0_bn/beta", Some("layer1.0.downsample.1.bias")),
            (KerasBlocks, "conv4_block23_2_conv/kernel:0", Some("layer3.22.conv2.weight")),
            (KerasBlocks, "conv1_bn/moving_variance", Some("bn1.running_var")),
            (KerasBlocks, "conv2_block1_out/x", None),
        ] {
            assert_eq!(naming.parameter(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn every_norm_knows_its_convolution() {
        for (mean, conv) in [
            ("bn1.running_mean", "conv1"),
            ("layer1.0.bn3.running_mean", "layer1.0.conv3"),
            ("layer1.0.downsample.1.running_mean", "layer1.0.downsample.0"),
        ] {
            assert_eq!(conv_of_mean(mean).as_deref(), Some(conv));
        }
        assert_eq!(conv_of_mean("bn1.running_var"), None);
    }
}
