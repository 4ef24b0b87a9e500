//! Weights of convolutional networks for `verify` and `train`: ResNets with torchvision's and both of Keras' names, in
//! safetensors and TensorFlow.js models, and Xception with Keras'. The header is fuzzed; the weights are zeros.

use super::{MEMORY, Target, said};
use candle_core::Device;
use serde_json::{Value, json};
use vitpcm_nets::{PretrainedBackbone, ResNetConfig, StrideOn, WeightFile, XceptionConfig, import_resnet};

/// The smallest possible ResNet.
const CONFIG: ResNetConfig =
    ResNetConfig { blocks: [1, 1, 1, 1], width: 1, stride_on: StrideOn::First, norm_eps: 1e-3 };

const WORDS: &[&str] = &[
    "layer1.0.conv1.weight", "layer4.127.", "layer18446744073709551615.", "module.", "downsample.0",
    "res2a_branch2a/kernel", "conv2_block1_1_conv/kernel", "conv5_block99_", "/moving_variance", "/bias",
    ":0", "\"F16\"", "\"shape\":[", "18446744073709551615", "\"float16\"", "\"group1-shard1of1.bin\"",
];

pub(super) const RESNET: Target = Target {
    name: "resnet",
    what: "ResNet weights (safetensors): names and shapes",
    dictionary: WORDS,
    seeds: || {
        let namings: [fn(&str) -> String; 3] = [str::to_owned, branch, block];
        namings.map(|naming| header(&arrays(naming)).to_string().into_bytes()).into()
    },
    subject: |_| {
        let num_bytes = num_bytes(&arrays(str::to_owned));
        Box::new(move |header| imported(header, num_bytes))
    },
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const XCEPTION: Target = Target {
    name: "xception",
    what: "Xception weights (safetensors): names and shapes",
    dictionary: &[
        "block2_sepconv1/depthwise_kernel",
        "block18446744073709551615_",
        "conv2d_1/kernel",
        "batch_normalization_4/gamma",
        "/pointwise_kernel",
        ":0",
        "\"F16\"",
        "\"shape\":[",
        "18446744073709551615",
    ],
    seeds: || vec![header(&xception_arrays()).to_string().into_bytes()],
    subject: |_| {
        let num_bytes = num_bytes(&xception_arrays());
        Box::new(move |header| imported(header, num_bytes))
    },
    repair: None,
    max_bytes: MEMORY,
};

/// The import's message for a header followed by zeros.
fn imported(header: &[u8], num_bytes: usize) -> String {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + num_bytes, 0);
    match WeightFile::from_bytes("input", file) {
        Ok(file) => said(PretrainedBackbone::from_weight_file(&file, None, &Device::Cpu)),
        Err(error) => error.to_string(),
    }
}

pub(super) const RESNET_TFJS: Target = Target {
    name: "resnet-tfjs",
    what: "ResNet weights (TensorFlow.js): the model.json",
    dictionary: WORDS,
    seeds: || {
        let weights = arrays(block);
        let weights: Vec<Value> = weights
            .iter()
            .map(|array| {
                let quantization = json!({"dtype": "float16"});
                json!({"name": array.name, "shape": array.shape, "dtype": "float32", "quantization": quantization})
            })
            .collect();
        let model = json!({"weightsManifest": [{"paths": [SHARD], "weights": weights}]});
        vec![model.to_string().into_bytes()]
    },
    subject: |scratch| {
        let zeros = vec![0; num_bytes(&arrays(block))];
        std::fs::write(scratch.join(SHARD), zeros).expect("the scratch folder takes files");
        let path = scratch.join("model.json");
        Box::new(move |bytes| {
            std::fs::write(&path, bytes).expect("the scratch folder takes files");
            said(import_resnet(&path, None, &Device::Cpu))
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

const SHARD: &str = "group1-shard1of1.bin";

struct Array {
    name: String,
    shape: Vec<usize>,
}

impl Array {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Two bytes per number.
fn num_bytes(arrays: &[Array]) -> usize {
    2 * arrays.iter().map(Array::len).sum::<usize>()
}

/// The arrays of the smallest Xception under Keras' names.
fn xception_arrays() -> Vec<Array> {
    let config = XceptionConfig { middle_blocks: 1, width: 4, norm_eps: 1e-3 };
    let shapes = config.parameter_shapes().into_iter();
    let renamed = shapes.map(|parameter| {
        let mut name = parameter.name.clone();
        // Convolutions on shortcuts have numbers for names.
        for (number, block) in [2, 3, 4, 6].into_iter().enumerate() {
            let norm = format!("batch_normalization_{number}.");
            name = name.replace(&format!("block{block}_residual_bn."), &norm);
            name = name.replace(&format!("block{block}_residual."), &format!("conv2d_{number}."));
        }
        let is_norm = name.contains("_bn.") || name.starts_with("batch");
        for (ours, theirs) in [
            (".depthwise.weight", "/depthwise_kernel"),
            (".pointwise.weight", "/pointwise_kernel"),
            (".weight", if is_norm { "/gamma" } else { "/kernel" }),
            (".bias", "/beta"),
            (".running_mean", "/moving_mean"),
            (".running_var", "/moving_variance"),
        ] {
            name = name.replace(ours, theirs);
        }
        let shape = match parameter.shape.as_slice() {
            &[out, height, width, inputs] => vec![height, width, inputs, out],
            &[height, width, channels] => vec![height, width, channels, 1],
            other => other.to_vec(),
        };
        Array { name, shape }
    });
    renamed.collect()
}

/// All arrays under other names; Keras has another axis order.
fn arrays(naming: fn(&str) -> String) -> Vec<Array> {
    let shapes = CONFIG.parameter_shapes().into_iter();
    let renamed = shapes.map(|parameter| {
        let name = naming(&parameter.name);
        let is_keras = name.contains('/');
        let shape = match parameter.shape.as_slice() {
            &[out, kernel, _, inputs] if is_keras => vec![kernel, kernel, inputs, out],
            &[out, kernel, _, inputs] => vec![out, inputs, kernel, kernel],
            other => other.to_vec(),
        };
        Array { name, shape }
    });
    renamed.collect()
}

/// The header of a safetensors file of 16-bit numbers.
fn header(arrays: &[Array]) -> Value {
    let mut start = 0;
    let entries = arrays.iter().map(|array| {
        let end = start + 2 * array.len();
        let entry = json!({"dtype": "F16", "shape": array.shape, "data_offsets": [start, end]});
        start = end;
        (array.name.clone(), entry)
    });
    Value::Object(entries.collect())
}

/// `layer1.0.conv2.weight` to `res2a_branch2b/kernel`, and so on.
fn branch(name: &str) -> String {
    keras(name, |stage, _, part, is_norm| match (stage, part) {
        (1, _) if is_norm => "bn_conv1".to_owned(),
        (1, _) => "conv1".to_owned(),
        (_, 0) => format!("{}{stage}a_branch1", if is_norm { "bn" } else { "res" }),
        (_, part) => {
            format!("{}{stage}a_branch2{}", if is_norm { "bn" } else { "res" }, ["a", "b", "c"][part - 1])
        }
    })
}

/// `layer1.0.conv2.weight` to `conv2_block1_2_conv/kernel`, and so on.
fn block(name: &str) -> String {
    keras(name, |stage, index, part, is_norm| {
        let kind = if is_norm { "bn" } else { "conv" };
        if stage == 1 { format!("conv1_{kind}") } else { format!("conv{stage}_block{index}_{part}_{kind}") }
    })
}

/// A layer by its stage (1 is the stem), block (from 1), position in the block (0 is the shortcut), and whether it is a
/// norm.
fn keras(name: &str, layer: impl Fn(usize, usize, usize, bool) -> String) -> String {
    let (module, part) = name.rsplit_once('.').expect("MODULE.PART");
    let words: Vec<&str> = module.split('.').collect();
    let last_digit =
        |word: &str| word.chars().last().and_then(|digit| digit.to_digit(10)).unwrap_or(0) as usize;
    let (layer, is_norm) = match words.as_slice() {
        [entrance] => (layer(1, 1, 1, entrance.starts_with("bn")), entrance.starts_with("bn")),
        [stage, index, "downsample", part] => {
            (layer(last_digit(stage) + 1, last_digit(index) + 1, 0, *part == "1"), *part == "1")
        }
        [stage, index, part] => {
            let is_norm = part.starts_with("bn");
            (layer(last_digit(stage) + 1, last_digit(index) + 1, last_digit(part), is_norm), is_norm)
        }
        _ => unreachable!("a ResNet has no {name}"),
    };
    let part = match (is_norm, part) {
        (false, _) => "kernel",
        (true, "weight") => "gamma",
        (true, "bias") => "beta",
        (true, "running_mean") => "moving_mean",
        (true, _) => "moving_variance",
    };
    format!("{layer}/{part}")
}
