//! Damage to our files: one flipped bit anywhere, and weights that are not finite. Nothing of it may go unseen, while files without
//! checksums are read as before.

use std::path::Path;

use candle_core::{Device, Tensor};
use vitpcm_nets::{
    DeepLabConfig, DeepLabInfo, DeepLabModel, GridAlignment, ImportedBackbone, Initialisation, Localisation,
    Model, ModelInfo, NetsError, Normalisation, Parameters, PatchConditioning, PcmConfig, ResNetVariant,
    Storage, Variant, WeightFile, shrink_weights,
};

fn model(backbone: &str, localisation: Localisation) -> Model {
    let conditioning = match localisation {
        Localisation::Pcm => PatchConditioning::HvBilstm { units: 8 },
        Localisation::Cam { .. } => PatchConditioning::None,
    };
    let network = PcmConfig {
        localisation,
        conditioning,
        ..PcmConfig::paper(Variant::named(backbone).unwrap().config(), 3)
    };
    Model {
        parameters: Initialisation::official(4).network(&network, &Device::Cpu).unwrap(),
        info: ModelInfo {
            network,
            classes: ["background", "dog", "\"header_crc32\":\"00000000\""].map(str::to_owned).to_vec(),
            train_size: 384,
            inference_size: 960,
            normalisation: Normalisation::HALF,
            alignment: GridAlignment::HalfPixel,
            preset: "default".to_owned(),
            provenance: [("header_crc32".to_owned(), "00000000".to_owned())].into(),
        },
    }
}

fn deeplab() -> DeepLabModel {
    let network = DeepLabConfig::new(ResNetVariant::named("resnet-nano").unwrap().config(), 3);
    let mut parameters = network.initial_head(1, &Device::Cpu).unwrap();
    parameters.extend(network.initial_backbone(1, &Device::Cpu).unwrap());
    let info = DeepLabInfo {
        network,
        classes: ["background", "dog", "cat"].map(str::to_owned).to_vec(),
        crop: 65,
        normalisation: Normalisation::IMAGENET,
        provenance: Default::default(),
    };
    DeepLabModel { info, parameters }
}

/// The bytes that `save` writes.
fn saved(save: impl FnOnce(&Path) -> vitpcm_nets::Result<()>) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path).unwrap();
    std::fs::read(path).unwrap()
}

fn header_end(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

/// Numbers that are spread evenly enough, the same in every run.
fn spread(count: usize, below: usize) -> impl Iterator<Item = usize> {
    (1..=count as u64).map(move |i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16) as usize % below)
}

/// Flips bits, one at a time: many of the tensors and of the header, and all of its last bytes and of its length.
#[track_caller]
fn check_every_flip_is_refused(file: &[u8], load: impl Fn(&WeightFile) -> vitpcm_nets::Result<()>) {
    let load = |bytes: Vec<u8>| WeightFile::from_bytes("flipped", bytes).and_then(|file| load(&file));
    load(file.to_vec()).unwrap();
    let (start, end) = (header_end(file), file.len());
    let flip = |bit: usize| {
        let mut flipped = file.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        load(flipped)
    };
    for bit in spread(150, 8 * (end - start)).map(|bit| 8 * start + bit) {
        let error = flip(bit).expect_err(&format!("bit {bit} of the tensors"));
        assert!(
            matches!(&error, NetsError::Damaged { what, .. } if what.starts_with("the tensor `")),
            "{error}"
        );
    }
    for bit in spread(1500, 8 * start).chain(0..64).chain(8 * (start - 8)..8 * start) {
        assert!(flip(bit).is_err(), "bit {bit} of the header");
    }
    // Each key of the two checksums, and each digit.
    let text = String::from_utf8_lossy(&file[8..start]);
    let keys = ["\"header_crc32\":\"", "\"tensor_crc32\":\""].map(|key| 8 + text.find(key).unwrap());
    for bit in keys.into_iter().flat_map(|key| 8 * key..8 * (key + 24)) {
        assert!(flip(bit).is_err(), "bit {bit} of the checksums");
    }
}

#[test]
fn a_flipped_bit_of_a_model_is_refused() {
    let load = |file: &WeightFile| Model::from_weight_file(file, &Device::Cpu).map(drop);
    let pcm = model("vit-nano16", Localisation::Pcm);
    for storage in [Storage::F32, Storage::F16] {
        check_every_flip_is_refused(&saved(|path| pcm.save(path, storage)), load);
    }
    let cam = model("vit-nano16", Localisation::Cam { background_threshold: 0.3 });
    check_every_flip_is_refused(&saved(|path| cam.save(path, Storage::F32)), load);
}

#[test]
fn a_flipped_bit_of_a_model_of_eight_bits_is_refused() {
    let bytes = saved(|path| model("vit-ti16", Localisation::Pcm).save(path, Storage::I8));
    assert!(
        WeightFile::from_bytes("i8", bytes.clone()).unwrap().entries().any(|e| e.name.ends_with("scales"))
    );
    check_every_flip_is_refused(&bytes, |file| Model::from_weight_file(file, &Device::Cpu).map(drop));
}

#[test]
fn a_flipped_bit_of_a_verification_network_is_refused() {
    for storage in [Storage::F32, Storage::F16Matrices] {
        let bytes = saved(|path| deeplab().save(path, storage));
        check_every_flip_is_refused(&bytes, |file| {
            DeepLabModel::from_weight_file(file, &Device::Cpu).map(drop)
        });
    }
}

/// A backbone as others publish it, without checksums.
fn foreign_backbone(change: impl Fn(&mut [f32])) -> Vec<u8> {
    let config = Variant::named("vit-nano16").unwrap().config();
    let network = PcmConfig::paper(config, 3);
    let parameters = Initialisation::official(4).network(&network, &Device::Cpu).unwrap();
    let shapes = config.parameter_shapes();
    let arrays = shapes.iter().map(|wanted| {
        let mut values: Vec<f32> =
            parameters.get(&wanted.name).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        if wanted.name == "blocks.1.attn.proj.weight" {
            change(&mut values);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        (wanted.name.clone(), wanted.shape.clone(), bytes)
    });
    let arrays: Vec<_> = arrays.collect();
    let view = |shape: &Vec<usize>, bytes| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap()
    };
    let views = arrays.iter().map(|(name, shape, bytes)| (name.as_str(), view(shape, bytes)));
    safetensors::serialize(views, None).unwrap()
}

fn import(bytes: Vec<u8>) -> vitpcm_nets::Result<()> {
    let file = WeightFile::from_bytes("foreign", bytes)?;
    ImportedBackbone::from_weight_file(&file, None, &Device::Cpu).map(drop)
}

#[test]
fn a_flipped_bit_of_converted_weights_is_refused() {
    let file = WeightFile::from_bytes("foreign", foreign_backbone(|_| ())).unwrap();
    let bytes = saved(|path| shrink_weights(&file, path));
    check_every_flip_is_refused(&bytes, |file| {
        ImportedBackbone::from_weight_file(file, None, &Device::Cpu).map(drop)
    });
}

#[test]
fn foreign_weights_are_imported_without_checksums_but_must_be_finite() {
    import(foreign_backbone(|_| ())).unwrap();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let message = import(foreign_backbone(|values| values[7] = value)).unwrap_err().to_string();
        assert!(message.contains("`blocks.1.attn.proj.weight` holds"), "{message}");
        assert!(message.contains("finite"), "{message}");
    }
}

#[test]
fn models_without_checksums_are_read_but_must_be_finite() {
    let bytes = saved(|path| model("vit-nano16", Localisation::Pcm).save(path, Storage::F32));
    let load = |bytes: &[u8]| {
        let file = WeightFile::from_bytes("old", bytes.to_vec())?;
        assert!(!file.has_checksums());
        Model::from_weight_file(&file, &Device::Cpu).map(drop)
    };
    let mut old = without_checksums(&bytes);
    load(&old).unwrap();
    let last = old.len() - 4;
    old[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let message = load(&old).unwrap_err().to_string();
    assert!(message.contains("old: the tensor `") && message.contains("holds NaN"), "{message}");
}

/// A file as it was written before there were checksums.
fn without_checksums(file: &[u8]) -> Vec<u8> {
    let start = header_end(file);
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let metadata = header["__metadata__"].as_object_mut().unwrap();
    for key in ["tensor_crc32", "header_crc32"] {
        metadata.remove(key).unwrap();
    }
    let header = header.to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes(), header.as_slice(), &file[start..]].concat()
}

#[test]
fn weights_that_cannot_be_read_back_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let with = |name: &str, value: f32| {
        let mut model = model("vit-nano16", Localisation::Pcm);
        let shape = model.parameters.get(name).unwrap().shape().clone();
        model.parameters.insert(name, Tensor::full(value, shape, &Device::Cpu).unwrap());
        model
    };
    let name = "blocks.0.mlp.fc1.weight";
    let refusal = |value, storage| with(name, value).save(&path, storage).unwrap_err().to_string();
    for storage in [Storage::F32, Storage::F16, Storage::I8] {
        for value in [f32::NAN, f32::INFINITY] {
            let message = refusal(value, storage);
            assert!(message.contains(name) && message.contains("not written"), "{message}");
        }
    }
    assert!(refusal(1e6, Storage::F16).contains("store the model as f32"));
    with(name, 1e6).save(&path, Storage::F32).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing half-written is left");
    let _: Parameters = Model::load(&path, &Device::Cpu).unwrap().parameters;
}
