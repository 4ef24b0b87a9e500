//! Weights of every kind of backbone are told by their names, models of ours by their metadata.

mod formula;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use formula::Array;
use vitpcm_nets::{
    BackboneConfig, DeepLabConfig, DeepLabInfo, DeepLabModel, FileSummary, GridAlignment, Initialisation,
    Localisation, Model, ModelInfo, NetsError, Normalisation, ParameterShape, Parameters, PatchConditioning,
    PcmConfig, PretrainedBackbone, ResNetVariant, Storage, XceptionConfig, inspect,
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

const STATISTICS: Normalisation = Normalisation { mean: [0.1, 0.2, 0.3], std: [0.4, 0.5, 0.6] };

/// A model from tags, on any backbone.
fn model(backbone: &str, localisation: Localisation) -> Model {
    let backbone = BackboneConfig::named(backbone).unwrap();
    let conditioning = match localisation {
        Localisation::Pcm => PatchConditioning::HvBilstm { units: 8 },
        Localisation::Cam { .. } => PatchConditioning::None,
    };
    let vit = BackboneConfig::named("vit-nano16").unwrap();
    let BackboneConfig::Vit(vit) = vit else { unreachable!() };
    let network = PcmConfig { backbone, conditioning, localisation, ..PcmConfig::paper(vit, 3) };
    Model {
        parameters: Initialisation::official(4).network(&network, &Device::Cpu).unwrap(),
        info: ModelInfo {
            network,
            classes: ["background", "dog", "cat"].map(str::to_owned).into(),
            train_size: 160,
            inference_size: 320,
            normalisation: STATISTICS,
            alignment: GridAlignment::HalfPixel,
            preset: "default".to_owned(),
            provenance: BTreeMap::new(),
        },
    }
}

/// Holds what was imported to a network: the backbone's parameters and no others, each within `tolerance` of its largest.
#[track_caller]
fn check_backbone(imported: &PretrainedBackbone, network: &Parameters, tolerance: f32) {
    let shapes = imported.config.parameter_shapes();
    let names: std::collections::BTreeSet<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
    assert!(imported.parameters.iter().map(|(name, _)| name).eq(names));
    for (name, tensor) in imported.parameters.iter() {
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (found, expected) = (values(tensor), values(network.get(name).unwrap()));
        let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= tolerance * largest, "{name}: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_model_of_ours_gives_its_backbone_in_every_storage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let saved = model("vit-nano16", Localisation::Pcm);
    for (storage, tolerance) in
        [(Storage::F32, 0.0), (Storage::F16, 0.5 / 1024.0), (Storage::I8, 0.501 / 127.0)]
    {
        saved.save(&path, storage).unwrap();
        for expected in [None, Some("vit-nano16")] {
            let imported = PretrainedBackbone::import(&path, expected, &Device::Cpu).unwrap();
            assert_eq!(imported.config, saved.info.network.backbone);
            assert_eq!((imported.normalisation, imported.train_size), (STATISTICS, Some(160)));
            check_backbone(&imported, &saved.parameters, tolerance);
        }
    }
}

#[test]
fn a_model_of_any_localisation_and_backbone_gives_its_backbone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let cam = Localisation::Cam { background_threshold: 0.3 };
    for (name, localisation) in
        [("vit-nano8", cam), ("resnet-nano", Localisation::Pcm), ("resnet-nano", cam), ("xception-nano", cam)]
    {
        let saved = model(name, localisation);
        saved.save(&path, Storage::F32).unwrap();
        let imported = PretrainedBackbone::import(&path, Some(name), &Device::Cpu).unwrap();
        check_backbone(&imported, &saved.parameters, 0.0);
    }
}

#[test]
fn a_verification_network_gives_its_resnet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let network = DeepLabConfig::new(ResNetVariant::named("resnet-nano").unwrap().config(), 3);
    let mut parameters = network.initial_backbone(7, &Device::Cpu).unwrap();
    parameters.extend(network.initial_head(7, &Device::Cpu).unwrap());
    let classes = ["background", "dog", "cat"].map(str::to_owned).into();
    let info =
        DeepLabInfo { network, classes, crop: 33, normalisation: STATISTICS, provenance: BTreeMap::new() };
    let saved = DeepLabModel { info, parameters };
    for (storage, tolerance) in [(Storage::F32, 0.0), (Storage::F16Matrices, 0.5 / 1024.0)] {
        saved.save(&path, storage).unwrap();
        let imported = PretrainedBackbone::import(&path, Some("resnet-nano"), &Device::Cpu).unwrap();
        assert_eq!(imported.config, saved.info.network.backbone.into());
        assert_eq!((imported.normalisation, imported.train_size), (STATISTICS, None));
        check_backbone(&imported, &saved.parameters, tolerance);
    }
}

#[test]
fn a_model_with_another_backbone_is_refused_with_its_file_and_both_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.safetensors");
    model("vit-nano16", Localisation::Pcm).save(&path, Storage::F32).unwrap();
    for (expected, parts) in [
        ("vit-nano8", ["mine.safetensors", "backbone is vit-nano16; expected vit-nano8"]),
        ("resnet50", ["mine.safetensors", "expected resnet50"]),
        ("vit-x", ["unknown backbone", "vit-x"]),
    ] {
        let message =
            PretrainedBackbone::import(&path, Some(expected), &Device::Cpu).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
