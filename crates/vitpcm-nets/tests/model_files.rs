//! Model files: what is written is read back, whole or not at all, and what is wrong with one is said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use vitpcm_nets::{
    FileSummary, GridAlignment, Initialisation, Mode, Model, ModelInfo, NetsError, Normalisation,
    PatchConditioning, PcmConfig, Storage, Variant, WeightFile, inspect,
};

fn model() -> Model {
    let network = PcmConfig {
        conditioning: PatchConditioning::HvBilstm { units: 8 },
        ..PcmConfig::paper(Variant::named("vit-nano16").unwrap().config(), 3)
    };
    let provenance = [("created by", "a test"), ("data", "none"), ("val mIoU", "0.0")];
    Model {
        parameters: Initialisation::official(4).network(&network, &Device::Cpu).unwrap(),
        info: ModelInfo {
            network,
            classes: ["background", "犬 \"chien\"", "🐈\n"].map(str::to_owned).to_vec(),
            train_size: 384,
            inference_size: 960,
            normalisation: Normalisation::IMAGENET,
            alignment: GridAlignment::AlignCorners,
            preset: "default".to_owned(),
            provenance: provenance.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        },
    }
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("model.safetensors")
    }
}

fn scores(model: &Model) -> Vec<f32> {
    let pixels = Tensor::ones((1, 3, 32, 48), DType::F32, &Device::Cpu).unwrap();
    let output = model.network().unwrap().forward(&pixels, &mut Mode::Inference).unwrap();
    output.scores_on_grid.flatten_all().unwrap().to_vec1().unwrap()
}

/// Saves a model, changes its metadata, and gives what loading then says.
fn error_after(change: impl Fn(&mut BTreeMap<String, String>)) -> NetsError {
    let folder = Folder::new();
    model().save(folder.path(), Storage::F16).unwrap();
    rewrite(&folder.path(), |metadata, _| change(metadata));
    Model::load(folder.path(), &Device::Cpu).unwrap_err()
}

fn rewrite(path: &Path, change: impl Fn(&mut BTreeMap<String, String>, &mut Vec<(String, Vec<usize>)>)) {
    let (mut metadata, mut shapes) = {
        let file = WeightFile::open(path).unwrap();
        let shapes = file.entries().map(|entry| (entry.name.clone(), entry.shape.clone())).collect();
        (file.metadata().clone(), shapes)
    };
    // As another program would write it, without our checksums.
    metadata.retain(|key, _| !key.ends_with("_crc32"));
    change(&mut metadata, &mut shapes);
    let zeros: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let num_bytes = 4 * shape.iter().product::<usize>();
            (name, shape, vec![0; num_bytes])
        })
        .collect();
    let views = zeros.iter().map(|(name, shape, bytes)| {
        (
            name.as_str(),
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap(),
        )
    });
    let bytes = safetensors::serialize(views, Some(metadata.into_iter().collect())).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_saved_model_is_read_back_as_it_was() {
    let folder = Folder::new();
    let saved = model();
    saved.save(folder.path(), Storage::F32).unwrap();
    let loaded = Model::load(folder.path(), &Device::Cpu).unwrap();
    assert_eq!(loaded.info, saved.info);
    assert_eq!(scores(&loaded), scores(&saved));
}

#[test]
fn half_precision_halves_the_file_and_hardly_changes_the_scores() {
    let folder = Folder::new();
    let saved = model();
    let size = |storage| {
        saved.save(folder.path(), storage).unwrap();
        std::fs::metadata(folder.path()).unwrap().len() as f64
    };
    let (whole, half) = (size(Storage::F32), size(Storage::F16));
    assert!((half / whole - 0.5).abs() < 0.01);
    let loaded = Model::load(folder.path(), &Device::Cpu).unwrap();
    for (a, b) in scores(&loaded).iter().zip(scores(&saved)) {
        assert!((a - b).abs() < 1e-3);
    }
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    let folder = Folder::new();
    let bytes = || {
        model().save(folder.path(), Storage::F32).unwrap();
        std::fs::read(folder.path()).unwrap()
    };
    assert_eq!(bytes(), bytes());
}

#[test]
fn other_programs_can_read_the_file_as_safetensors() {
    let folder = Folder::new();
    model().save(folder.path(), Storage::F32).unwrap();
    let bytes = std::fs::read(folder.path()).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("hv_bilstm.rows.weight_hh_l0_reverse").unwrap().shape(), [32, 8]);
    assert_eq!(tensors.tensor("blocks.3.attn.qkv.bias").unwrap().shape(), [384]);
}

#[test]
fn an_embedded_model_is_read_from_memory() {
    let folder = Folder::new();
    model().save(folder.path(), Storage::F16).unwrap();
    let file = WeightFile::from_bytes("embedded", std::fs::read(folder.path()).unwrap()).unwrap();
    assert_eq!(Model::from_weight_file(&file, &Device::Cpu).unwrap().info, model().info);
}

#[test]
fn a_save_that_fails_leaves_the_old_file_and_no_other() {
    let folder = Folder::new();
    model().save(folder.path(), Storage::F32).unwrap();
    let before = std::fs::read(folder.path()).unwrap();
    let mut broken = model();
    broken.parameters.insert("norm.bias", Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap());
    let error = broken.save(folder.path(), Storage::F32).unwrap_err().to_string();
    assert!(error.contains("norm.bias"), "{error}");
    assert_eq!(std::fs::read(folder.path()).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 1);

    let nowhere = folder.0.path().join("absent/model.safetensors");
    let error = model().save(&nowhere, Storage::F32).unwrap_err().to_string();
    assert!(error.contains("absent"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_saved_model_has_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    model().save(folder.path(), Storage::F16).unwrap();
    let other = folder.0.path().join("other");
    std::fs::write(&other, b"").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&folder.path()), mode(&other));
}

#[test]
fn metadata_that_are_missing_or_wrong_are_named() {
    for key in [
        "format_version", "network", "classes", "train_size", "inference_size", "normalisation", "preset",
        "provenance",
    ] {
        let error = error_after(|metadata| drop(metadata.remove(key))).to_string();
        assert!(error.contains(key) && error.contains("model.safetensors"), "{error}");
    }
    let set = |key: &str, value: &str| {
        error_after(|metadata| drop(metadata.insert(key.to_owned(), value.to_owned()))).to_string()
    };
    for (key, value, expected) in [
        ("format_version", "2", "format version 2; this program reads version 1"),
        ("classes", r#"["background","a"]"#, "2 class names for 3 classes"),
        ("classes", r#"["background","a","a"]"#, "two classes are called `a`"),
        ("classes", "[1]", "`classes` is not understood"),
        ("inference_size", "950", "multiple of the patch size 16"),
        ("train_size", "-384", "`train_size` is not understood"),
        ("normalisation", r#"{"mean":[0,0,0],"std":[1,0,1]}"#, "not positive"),
        ("network", "{}", "`network` is not understood"),
        ("format", "another", "not a vitpcm model"),
    ] {
        let error = set(key, value);
        assert!(error.contains(expected), "expected `{expected}` in: {error}");
    }
}

#[test]
fn a_description_with_monstrous_numbers_is_refused() {
    let error = error_after(|metadata| {
        let network = metadata.get_mut("network").unwrap();
        *network = network.replace(r#""width":128"#, r#""width":12800000000"#);
    });
    assert!(error.to_string().contains("width is 12800000000"), "{error}");
}

#[test]
fn tensors_that_differ_from_the_description_are_listed_at_once() {
    let folder = Folder::new();
    model().save(folder.path(), Storage::F32).unwrap();
    rewrite(&folder.path(), |_, shapes| {
        shapes.retain(|(name, _)| name != "norm.bias");
        shapes.push(("extra".to_owned(), vec![1]));
        shapes[0].1.push(1);
    });
    let NetsError::Mismatch(mismatch) = Model::load(folder.path(), &Device::Cpu).unwrap_err() else {
        panic!("another error")
    };
    assert_eq!((mismatch.missing, mismatch.unused), (vec!["norm.bias".to_owned()], vec!["extra".to_owned()]));
    assert_eq!(mismatch.different.len(), 1);
}

#[test]
fn inspect_tells_what_a_model_is() {
    let folder = Folder::new();
    model().save(folder.path(), Storage::F16).unwrap();
    let summary = inspect(folder.path()).unwrap();
    let text = summary.to_string();
    for part in ["vit-nano16", "hv-bilstm units 8", "犬", "384 px", "a test", "f16"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["kind"], "model");
    assert_eq!(json["info"]["classes"][0], "background");
    let FileSummary::Model(summary) = summary else { panic!("no model") };
    assert_eq!(summary.num_parameters, model().parameters.num_elements());
}

/// With matrices large enough to be stored in eight bits.
fn large_model() -> Model {
    let network = PcmConfig::paper(Variant::named("vit-ti16").unwrap().config(), 3);
    let parameters = Initialisation::official(4).network(&network, &Device::Cpu).unwrap();
    Model { info: ModelInfo { network, ..model().info }, parameters }
}

#[test]
fn eight_bits_keep_every_row_to_half_a_step_in_a_quarter_of_the_space() {
    let large = large_model();
    let (small, whole) = (Folder::new(), Folder::new());
    large.save(small.path(), Storage::I8).unwrap();
    large.save(whole.path(), Storage::F32).unwrap();
    let size = |folder: &Folder| std::fs::metadata(folder.path()).unwrap().len() as f64;
    assert!(size(&small) < 0.28 * size(&whole), "{} of {}", size(&small), size(&whole));

    let read = Model::load(small.path(), &Device::Cpu).unwrap();
    let name = "blocks.3.mlp.fc1.weight";
    let rows = |model: &Model| model.parameters.get(name).unwrap().to_vec2::<f32>().unwrap();
    for (before, after) in rows(&large).iter().zip(rows(&read)) {
        let step = before.iter().fold(0f32, |largest, value| largest.max(value.abs())) / 127.0;
        assert!(before.iter().zip(after).all(|(before, after)| (before - after).abs() <= 0.501 * step));
    }
}

#[test]
fn eight_bits_without_their_scales_are_refused() {
    let folder = Folder::new();
    large_model().save(folder.path(), Storage::I8).unwrap();
    let mut bytes = std::fs::read(folder.path()).unwrap();
    // The checksums' keys as well, so that the file has none.
    for name in ["qkv.weight.row_scales\":{", "\"tensor_crc32", "\"header_crc32"] {
        let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
        let last_letter = at + name.rfind(|c: char| c.is_alphanumeric()).unwrap();
        bytes[last_letter] = b'z';
    }
    std::fs::write(folder.path(), bytes).unwrap();
    let error = Model::load(folder.path(), &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("qkv.weight"), "{error}");
}
