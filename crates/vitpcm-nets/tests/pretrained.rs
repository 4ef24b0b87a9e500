//! Weights of every kind of backbone are told by their names.

mod formula;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use formula::Array;
use vitpcm_nets::{
    BackboneConfig, FileSummary, NetsError, Normalisation, ParameterShape, PretrainedBackbone,
    XceptionConfig, inspect,
};

const CONFIG: XceptionConfig = XceptionConfig { middle_blocks: 1, width: 4, norm_eps: 1e-3 };

/// What Keras calls a parameter of ours; the session had counted to 7 and 9 before.
fn keras_name(name: &str) -> String {
    let mut name = name.to_owned();
    for (index, block) in [2, 3, 4, 6].into_iter().enumerate() {
        let norm = format!("batch_normalization_{}.", 9 + index);
        name = name.replace(&format!("block{block}_residual_bn."), &norm);
        name =
            name.replace(&format!("block{block}_residual.weight"), &format!("conv2d_{}.kernel", 7 + index));
    }
    let is_norm = name.contains("_bn.") || name.starts_with("batch");
    for (ours, theirs) in [
        (".depthwise.weight", ".depthwise_kernel"),
        (".pointwise.weight", ".pointwise_kernel"),
        (".weight", if is_norm { ".gamma" } else { ".kernel" }),
        (".bias", ".beta"),
        (".running_mean", ".moving_mean"),
        (".running_var", ".moving_variance"),
    ] {
        name = name.replace(ours, theirs);
    }
    format!("model/{}:0", name.replace('.', "/"))
}

fn keras() -> BTreeMap<String, Array> {
    let array = |ParameterShape { name, shape }: ParameterShape| {
        let values = formula::values(&format!("input.{name}"), &shape);
        let array = match shape.as_slice() {
            [3, 3, channels] => Array { shape: vec![3, 3, *channels, 1], values },
            [out, height, width, inputs] => {
                let turned = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).unwrap();
                let turned = turned.permute((1, 2, 3, 0)).unwrap().contiguous().unwrap();
                let values = turned.flatten_all().unwrap().to_vec1().unwrap();
                Array { shape: vec![*height, *width, *inputs, *out], values }
            }
            _ => Array { shape, values },
        };
        (keras_name(&name), array)
    };
    let mut arrays: BTreeMap<String, Array> = CONFIG.parameter_shapes().into_iter().map(array).collect();
    arrays.insert("predictions/kernel:0".to_owned(), Array { shape: vec![2, 2], values: vec![0.0; 4] });
    arrays
}

#[test]
fn an_xception_is_imported_by_keras_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("xception.safetensors");
    std::fs::write(&path, safetensors::serialize(keras().iter(), None).unwrap()).unwrap();
    assert!(matches!(inspect(&path).unwrap(), FileSummary::Xception(_)));
    let imported = PretrainedBackbone::import(&path, None, &Device::Cpu).unwrap();
    assert_eq!(imported.config, BackboneConfig::Xception(CONFIG));
    assert_eq!(imported.normalisation, Normalisation::HALF);
    for ParameterShape { name, shape } in CONFIG.parameter_shapes() {
        let found = imported.parameters.get(&name).unwrap();
        assert_eq!(found.dims(), shape, "{name}");
        let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(found, formula::values(&format!("input.{name}"), &shape), "{name}");
    }
    for (wanted, part) in [("xception", "not those of an xception"), ("resnet50", "another kind")] {
        let message = PretrainedBackbone::import(&path, Some(wanted), &Device::Cpu).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_xception_that_lacks_a_layer_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("xception.safetensors");
    let mut arrays = keras();
    arrays.retain(|name, _| !name.contains("block5_sepconv2/pointwise"));
    std::fs::write(&path, safetensors::serialize(arrays.iter(), None).unwrap()).unwrap();
    let Err(NetsError::Mismatch(mismatch)) = PretrainedBackbone::import(&path, None, &Device::Cpu) else {
        panic!("expected a mismatch");
    };
    assert_eq!(mismatch.missing, ["block5_sepconv2.pointwise.weight"]);
}
