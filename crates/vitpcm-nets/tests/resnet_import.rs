//! ResNet weights under all names and layouts give the same network.

mod formula;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use formula::Array;
use safetensors::View as _;
use vitpcm_nets::{
    DeepLab, DeepLabConfig, FileSummary, NetsError, Normalisation, ParameterShape, Parameters, ResNetConfig,
    ResNetNaming, ResNetVariant, StrideOn, WeightFile, import_resnet, inspect, shrink_weights,
};

const CONFIG: ResNetConfig =
    ResNetConfig { blocks: [2, 1, 1, 1], width: 4, stride_on: StrideOn::First, norm_eps: 1e-3 };

type Arrays = BTreeMap<String, Array>;

/// Our parameters; variances are positive.
fn parameters() -> Vec<(ParameterShape, Vec<f32>)> {
    let values = |parameter: ParameterShape| {
        let name = format!("input.{}", parameter.name);
        let noise = formula::values(&name, &parameter.shape);
        let is_variance = parameter.name.ends_with("running_var");
        let values = noise.iter().map(|noise| if is_variance { 1.0 + 0.5 * noise } else { *noise }).collect();
        (parameter, values)
    };
    CONFIG.parameter_shapes().into_iter().map(values).collect()
}

/// `[out, k, k, in]` in another order of axes.
fn permuted(values: &[f32], shape: &[usize], axes: [usize; 4]) -> Array {
    let tensor = Tensor::from_slice(values, shape, &Device::Cpu).unwrap().permute(axes).unwrap();
    let values = tensor.contiguous().unwrap().flatten_all().unwrap().to_vec1().unwrap();
    Array { shape: axes.map(|axis| shape[axis]).to_vec(), values }
}

fn torchvision() -> Arrays {
    let mut arrays: Arrays = parameters()
        .into_iter()
        .map(|(ParameterShape { name, shape }, values)| match shape.len() {
            4 => (name, permuted(&values, &shape, [0, 3, 1, 2])),
            _ => (name, Array { shape, values }),
        })
        .collect();
    arrays.insert("fc.weight".to_owned(), Array { shape: vec![1, 2], values: vec![0.0; 2] });
    arrays
}

/// Keras' names, on BGR, with biases that the norms' means make up for.
fn keras(rename: impl Fn(&str) -> String) -> Arrays {
    const BIAS: f32 = 0.25;
    let mut arrays = Arrays::new();
    for (ParameterShape { name, shape }, mut values) in parameters() {
        let (layer, part) = name.rsplit_once('.').unwrap();
        let layer = rename(layer);
        if shape.len() == 4 {
            if name == "conv1.weight" {
                values.chunks_exact_mut(3).for_each(<[f32]>::reverse);
            }
            arrays.insert(format!("{layer}/kernel"), permuted(&values, &shape, [1, 2, 3, 0]));
            let bias = Array { shape: vec![shape[0]], values: vec![BIAS; shape[0]] };
            arrays.insert(format!("{layer}/bias"), bias);
            continue;
        }
        let part = match part {
            "weight" => "gamma",
            "bias" => "beta",
            "running_mean" => {
                values.iter_mut().for_each(|mean| *mean += BIAS);
                "moving_mean"
            }
            _ => "moving_variance",
        };
        arrays.insert(format!("{layer}/{part}"), Array { shape, values });
    }
    arrays.insert("fc1000/bias".to_owned(), Array { shape: vec![2], values: vec![0.0; 2] });
    arrays
}

/// `layer1.0.conv2` to `res2a_branch2b`, and so on.
fn branches(layer: &str) -> String {
    let parts: Vec<&str> = layer.split('.').collect();
    match parts.as_slice() {
        ["conv1"] => "conv1".to_owned(),
        ["bn1"] => "bn_conv1".to_owned(),
        [stage, index, rest @ ..] => {
            let stage = stage.strip_prefix("layer").unwrap().parse::<usize>().unwrap() + 1;
            let block = ["a", "b"][index.parse::<usize>().unwrap()];
            let (kind, branch) = match rest {
                ["downsample", "0"] => ("res", "1"),
                ["downsample", _] => ("bn", "1"),
                [part] => {
                    let kind = if part.starts_with("conv") { "res" } else { "bn" };
                    (kind, ["2a", "2b", "2c"][part[part.len() - 1..].parse::<usize>().unwrap() - 1])
                }
                _ => unreachable!("{layer}"),
            };
            format!("{kind}{stage}{block}_branch{branch}")
        }
        _ => unreachable!("{layer}"),
    }
}

/// `layer1.0.conv2` to `conv2_block1_2_conv`, and so on.
fn blocks(layer: &str) -> String {
    let parts: Vec<&str> = layer.split('.').collect();
    match parts.as_slice() {
        ["conv1"] => "conv1_conv".to_owned(),
        ["bn1"] => "conv1_bn".to_owned(),
        [stage, index, rest @ ..] => {
            let stage = stage.strip_prefix("layer").unwrap().parse::<usize>().unwrap() + 1;
            let index = index.parse::<usize>().unwrap() + 1;
            let (number, kind) = match rest {
                ["downsample", "0"] => ("0", "conv"),
                ["downsample", _] => ("0", "bn"),
                [part] => {
                    let (kind, number) = part.split_at(part.len() - 1);
                    (number, kind)
                }
                _ => unreachable!("{layer}"),
            };
            format!("conv{stage}_block{index}_{number}_{kind}")
        }
        _ => unreachable!("{layer}"),
    }
}

fn write(path: &Path, arrays: &Arrays) {
    let bytes = safetensors::serialize(arrays.iter(), None).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// TensorFlow.js: the arrays one after the other, in shards that cut through them.
fn write_tfjs(folder: &Path, arrays: &Arrays) -> std::path::PathBuf {
    let bytes: Vec<u8> = arrays.values().flat_map(|array| array.data().into_owned()).collect();
    let shards: Vec<&[u8]> = bytes.chunks(10_001).collect();
    let name = |index: usize| format!("group1-shard{}of{}.bin", index + 1, shards.len());
    for (index, shard) in shards.iter().enumerate() {
        std::fs::write(folder.join(name(index)), shard).unwrap();
    }
    let weights = arrays
        .iter()
        .map(|(name, array)| serde_json::json!({ "name": name, "shape": array.shape, "dtype": "float32" }));
    let paths: Vec<String> = (0..shards.len()).map(name).collect();
    let group = serde_json::json!({ "paths": paths, "weights": weights.collect::<Vec<_>>() });
    let json =
        serde_json::json!({ "format": "layers-model", "modelTopology": {}, "weightsManifest": [group] });
    let path = folder.join("model.json");
    std::fs::write(&path, json.to_string()).unwrap();
    path
}

#[track_caller]
fn assert_same(found: &Parameters, tolerance: f32) {
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (ParameterShape { name, shape }, expected) in parameters() {
        let tensor = found.get(&name).unwrap();
        assert_eq!(tensor.dims(), shape, "{name}");
        for (found, expected) in values(tensor).iter().zip(&expected) {
            assert!((found - expected).abs() <= tolerance, "{name}: {found} {expected}");
        }
    }
}

#[test]
fn torchvision_and_keras_weights_give_the_same_parameters_each_in_its_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    for (arrays, naming, stride_on, norm_eps, normalisation) in [
        (torchvision(), ResNetNaming::Torchvision, StrideOn::Second, 1e-5, Normalisation::IMAGENET),
        (keras(branches), ResNetNaming::KerasBranches, StrideOn::First, 1e-3, Normalisation::CAFFE),
        (keras(blocks), ResNetNaming::KerasBlocks, StrideOn::First, 1.001e-5, Normalisation::CAFFE),
    ] {
        write(&path, &arrays);
        let imported = import_resnet(&path, None, &Device::Cpu).unwrap();
        assert_same(&imported.parameters, 1e-6);
        let summary = imported.summary;
        assert_eq!(summary.config, ResNetConfig { stride_on, norm_eps, ..CONFIG });
        assert_eq!(
            (summary.naming, summary.normalisation, summary.left_over.len()),
            (naming, normalisation, 1)
        );
        assert!(matches!(inspect(&path).unwrap(), FileSummary::ResNet(_)));
    }
}

#[test]
fn a_tensorflow_js_folder_is_read_and_shrinks_to_half() {
    let folder = tempfile::tempdir().unwrap();
    let json = write_tfjs(folder.path(), &keras(branches));
    assert_same(&import_resnet(&json, None, &Device::Cpu).unwrap().parameters, 1e-6);
    let small = folder.path().join("small.safetensors");
    shrink_weights(&WeightFile::open(&json).unwrap(), &small).unwrap();
    // Half precision keeps eleven bits.
    assert_same(&import_resnet(&small, None, &Device::Cpu).unwrap().parameters, 1e-3);

    let shards = std::fs::read_dir(folder.path()).unwrap().flatten();
    let shard = shards.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "bin"));
    std::fs::write(shard.unwrap(), b"short").unwrap();
    let message = import_resnet(&json, None, &Device::Cpu).unwrap_err().to_string();
    assert!(message.contains("shard"), "{message}");
    let text = r#"{"weightsManifest": [{"paths": ["../secret"], "weights": []}]}"#;
    std::fs::write(&json, text).unwrap();
    let message = import_resnet(&json, None, &Device::Cpu).unwrap_err().to_string();
    assert!(message.contains("../secret"), "{message}");
}

#[test]
fn what_does_not_fit_is_listed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let mut arrays = torchvision();
    arrays.remove("layer2.0.bn1.running_mean");
    arrays.insert("layer1.1.conv1.weight".to_owned(), Array { shape: vec![1], values: vec![0.0] });
    write(&path, &arrays);
    let Err(NetsError::Mismatch(mismatch)) = import_resnet(&path, None, &Device::Cpu) else {
        panic!("a file that does not fit was taken");
    };
    assert_eq!(mismatch.missing, ["layer2.0.bn1.running_mean"]);
    assert_eq!(mismatch.different.len(), 1);
    write(&path, &torchvision());
    let wanted = ResNetVariant::named("resnet50").unwrap();
    assert!(import_resnet(&path, Some(wanted), &Device::Cpu).is_err());
}

#[test]
fn imported_parameters_make_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    write(&path, &torchvision());
    let imported = import_resnet(&path, None, &Device::Cpu).unwrap();
    let config = DeepLabConfig::new(imported.summary.config, 3);
    let mut parameters = imported.parameters;
    parameters.extend(config.initial_head(1, &Device::Cpu).unwrap());
    let pixels = Tensor::zeros((1, 33, 49, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
    let logits = DeepLab::new(&config, &parameters).unwrap().forward(&pixels, None).unwrap();
    assert_eq!(logits.dims(), [1, 5, 7, 3]);
}
