//! Published naming schemes and containers give the same parameters; what does not fit is listed at once.

mod formula;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::Device;
use formula::{reference, values};
use half::{bf16, f16};
use safetensors::{Dtype, View};
use vitpcm_nets::{
    Container, FileSummary, Naming, NetsError, Normalisation, ParameterShape, Variant, VitConfig, WeightFile,
    import_backbone, inspect,
};

/// A ViT small enough for files: the stored fixtures have these numbers.
const TINY: VitConfig =
    VitConfig { patch: 2, width: 64, depth: 1, heads: 1, registers: 0, layer_scale: false, position_grid: 2 };
const TINY_DINOV2: VitConfig = VitConfig { registers: 2, layer_scale: true, ..TINY };

/// An array to be written.
#[derive(Clone)]
struct Array {
    shape: Vec<usize>,
    values: Vec<f32>,
    dtype: Dtype,
}

impl View for Array {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        let values = self.values.iter();
        match self.dtype {
            Dtype::F64 => values.flat_map(|&value| f64::from(value).to_le_bytes()).collect(),
            Dtype::F16 => values.flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            Dtype::BF16 => values.flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
            _ => values.flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
    fn data_len(&self) -> usize {
        self.data().len()
    }
}

type Arrays = BTreeMap<String, Array>;

/// All parameters by the formula, under timm's names.
fn timm_arrays(config: &VitConfig) -> Arrays {
    let array = |ParameterShape { name, shape }: ParameterShape| {
        let values = values(&name, &shape);
        (name, Array { shape, values, dtype: Dtype::F32 })
    };
    config.parameter_shapes().into_iter().map(array).collect()
}

/// The same under Hugging Face's names for DINOv2, queries, keys and values apart.
fn hugging_face_dinov2_arrays(config: &VitConfig) -> Arrays {
    let mut arrays = Arrays::new();
    for (name, array) in timm_arrays(config) {
        let name = name
            .replace("cls_token", "embeddings.cls_token")
            .replace("pos_embed", "embeddings.position_embeddings")
            .replace("reg_token", "embeddings.register_tokens")
            .replace("patch_embed.proj", "embeddings.patch_embeddings.projection")
            .replace("blocks.", "encoder.layer.")
            .replace("attn.proj", "attention.output.dense")
            .replace("ls1.gamma", "layer_scale1.lambda1")
            .replace("ls2.gamma", "layer_scale2.lambda1");
        let name = match name.strip_prefix("norm.") {
            Some(kind) => format!("layernorm.{kind}"),
            None => name,
        };
        if !name.contains("attn.qkv") {
            arrays.insert(format!("dinov2_with_registers.{name}"), array);
            continue;
        }
        let third = array.values.len() / 3;
        for (part, values) in ["query", "key", "value"].into_iter().zip(array.values.chunks(third)) {
            let mut shape = array.shape.clone();
            shape[0] /= 3;
            let name = name.replace("attn.qkv", &format!("attention.attention.{part}"));
            let part = Array { shape, values: values.to_vec(), dtype: array.dtype };
            arrays.insert(format!("dinov2_with_registers.{name}"), part);
        }
    }
    arrays
}

/// The same under Hugging Face's names for ViT, where DINOv2's differ.
fn hugging_face_vit_arrays(config: &VitConfig) -> Arrays {
    let rename = |(name, array): (String, Array)| {
        let name = name
            .replace("dinov2_with_registers.", "vit.")
            .replace("norm1", "layernorm_before")
            .replace("norm2", "layernorm_after")
            .replace("mlp.fc1", "intermediate.dense")
            .replace("mlp.fc2", "output.dense");
        (name, array)
    };
    hugging_face_dinov2_arrays(config).into_iter().map(rename).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, arrays: Arrays) -> PathBuf {
        let path = self.0.path().join("weights.safetensors");
        std::fs::write(&path, safetensors::serialize(arrays, None).unwrap()).unwrap();
        path
    }
}

/// Imports a file and holds its parameters to the formula, up to the rounding of its element type.
#[track_caller]
fn check_import(path: &Path, config: &VitConfig, rounding: f32) -> vitpcm_nets::BackboneSummary {
    let imported = import_backbone(path, None, &Device::Cpu).unwrap();
    assert_eq!(imported.summary.config, *config);
    assert_eq!(imported.parameters.iter().count(), config.parameter_shapes().len());
    for ParameterShape { name, shape } in config.parameter_shapes() {
        let tensor = imported.parameters.get(&name).unwrap();
        assert_eq!(tensor.dims(), shape, "{name}");
        let found: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        for (found, expected) in found.iter().zip(values(&name, &shape)) {
            assert!(
                (found - expected).abs() <= rounding * expected.abs() + 1e-7,
                "{name}: {found}, {expected}"
            );
        }
    }
    imported.summary
}

#[track_caller]
fn mismatch_of(path: &Path, expected: Option<Variant>) -> vitpcm_nets::Mismatch {
    match import_backbone(path, expected, &Device::Cpu) {
        Err(NetsError::Mismatch(mismatch)) => *mismatch,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("imported"),
    }
}

#[test]
fn timm_names_are_read_in_every_floating_point_type() {
    let folder = Folder::new();
    for (dtype, rounding) in
        [(Dtype::F32, 0.0), (Dtype::F64, 0.0), (Dtype::F16, 1.0 / 2048.0), (Dtype::BF16, 1.0 / 256.0)]
    {
        let mut arrays = timm_arrays(&TINY);
        arrays.values_mut().for_each(|array| array.dtype = dtype);
        let summary = check_import(&folder.write(arrays), &TINY, rounding);
        assert_eq!((summary.naming, summary.container), (Naming::Timm, Container::Safetensors));
        assert_eq!(summary.num_head_classes, None);
    }
}

#[test]
fn hugging_faces_dinov2_with_separate_queries_keys_and_values_is_read() {
    let folder = Folder::new();
    let mut arrays = hugging_face_dinov2_arrays(&TINY_DINOV2);
    let mask = Array { shape: vec![1, 64], values: vec![0.0; 64], dtype: Dtype::F32 };
    arrays.insert("dinov2_with_registers.embeddings.mask_token".to_owned(), mask);
    let summary = check_import(&folder.write(arrays), &TINY_DINOV2, 0.0);
    assert_eq!(summary.naming, Naming::HuggingFace);
    assert_eq!(summary.likely_normalisation, Normalisation::IMAGENET);
    assert_eq!(summary.left_over, ["dinov2_with_registers.embeddings.mask_token"]);
}

#[test]
fn hugging_faces_vit_is_read_with_its_head_and_without_its_pooler() {
    let folder = Folder::new();
    let mut arrays = hugging_face_vit_arrays(&TINY);
    let zeros = |shape: &[usize]| {
        let values = vec![0.0; shape.iter().product()];
        Array { shape: shape.to_vec(), values, dtype: Dtype::F32 }
    };
    arrays.insert("classifier.weight".to_owned(), zeros(&[7, 64]));
    arrays.insert("classifier.bias".to_owned(), zeros(&[7]));
    arrays.insert("vit.pooler.dense.weight".to_owned(), zeros(&[64, 64]));
    let summary = check_import(&folder.write(arrays), &TINY, 0.0);
    assert_eq!(summary.num_head_classes, Some(7));
    assert_eq!(summary.left_over, ["vit.pooler.dense.weight"]);
}

#[test]
fn a_teacher_as_pytorch_saves_it_is_read() {
    // bfloat16, nested, with prefixes, a transposed view, a shared storage and an inert namespace.
    let summary = check_import(Path::new(&reference("tiny_teacher.pth")), &TINY_DINOV2, 1.0 / 256.0);
    assert_eq!((summary.naming, summary.container), (Naming::Timm, Container::TorchZip));
    assert_eq!(summary.left_over, ["module.head.mlp.0.weight", "module.backbone.mask_token"]);
    assert_eq!(summary.likely_normalisation, Normalisation::IMAGENET);
}

#[test]
fn google_researchs_npz_is_read_with_its_transposed_kernels() {
    let summary = check_import(Path::new(&reference("tiny_google.npz")), &TINY, 1.0 / 2048.0);
    assert_eq!((summary.naming, summary.container), (Naming::GoogleResearch, Container::Npz));
    assert_eq!(summary.num_head_classes, Some(10));
    assert_eq!(summary.left_over, ["pre_logits/bias", "pre_logits/kernel"]);
}

#[test]
fn chunked_blocks_and_training_prefixes_are_seen_through() {
    let folder = Folder::new();
    let config = VitConfig { depth: 2, ..TINY };
    let rename = |(name, array): (String, Array)| {
        let name = name.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.0.1.");
        (format!("module.backbone.{name}"), array)
    };
    check_import(&folder.write(timm_arrays(&config).into_iter().map(rename).collect()), &config, 0.0);
}

#[test]
fn positions_without_the_class_token_get_a_zero_for_it() {
    let folder = Folder::new();
    let mut arrays = timm_arrays(&TINY);
    let positions = arrays.get_mut("pos_embed").unwrap();
    positions.shape = vec![1, 4, 64];
    positions.values.drain(..64);
    let patches = positions.values.clone();
    let imported = import_backbone(folder.write(arrays), None, &Device::Cpu).unwrap();
    let found: Vec<f32> =
        imported.parameters.get("pos_embed").unwrap().flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(found[..64], [0.0; 64]);
    assert_eq!(found[64..], patches);
}

#[test]
fn everything_that_does_not_fit_is_listed_in_one_error() {
    let folder = Folder::new();
    let mut arrays = timm_arrays(&TINY);
    arrays.remove("norm.bias");
    arrays.remove("blocks.0.norm1.weight");
    let moved = arrays.remove("blocks.0.mlp.fc1.bias").unwrap();
    arrays.insert("blocks.0.mlp.fc9.bias".to_owned(), moved);
    let fc2 = arrays.get_mut("blocks.0.mlp.fc2.weight").unwrap();
    fc2.shape = vec![256, 64];
    arrays.get_mut("cls_token").unwrap().dtype = Dtype::U32;
    let positions = arrays.get_mut("pos_embed").unwrap();
    positions.shape = vec![1, 3, 64];
    positions.values.truncate(3 * 64);
    let path = folder.write(arrays);

    let mismatch = mismatch_of(&path, None);
    assert_eq!(mismatch.missing, ["blocks.0.norm1.weight", "blocks.0.mlp.fc1.bias", "norm.bias"]);
    assert_eq!(mismatch.unused, ["blocks.0.mlp.fc9.bias"]);
    let different: Vec<_> = mismatch.different.iter().map(|d| (d.name.as_str(), d.found.as_str())).collect();
    let expected = [
        ("cls_token", "[1, 1, 64] u32"),
        ("pos_embed", "[1, 3, 64] f32"),
        ("blocks.0.mlp.fc2.weight", "[256, 64] f32"),
    ];
    assert_eq!(different, expected);
    let message = mismatch.to_string();
    for part in [
        "weights.safetensors",
        "norm.bias",
        "fc9",
        "[256, 64] f32, expected [64, 256]",
        "1 + a square number",
    ] {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
}

#[test]
fn a_variant_asked_for_is_held_to() {
    let folder = Folder::new();
    let path = folder.write(timm_arrays(&TINY));
    let mismatch = mismatch_of(&path, Some(Variant::named("vit-nano16").unwrap()));
    assert!(mismatch.missing.contains(&"blocks.3.norm1.weight".to_owned()));
    assert!(mismatch.different.iter().any(|tensor| tensor.name == "patch_embed.proj.weight"));
}

#[test]
fn half_a_set_of_queries_keys_and_values_is_missing_the_rest() {
    let folder = Folder::new();
    let mut arrays = hugging_face_dinov2_arrays(&TINY_DINOV2);
    arrays.remove("dinov2_with_registers.encoder.layer.0.attention.attention.key.bias");
    let mismatch = mismatch_of(&folder.write(arrays), None);
    assert_eq!(mismatch.missing, ["blocks.0.attn.qkv.bias (key)"]);
}

#[test]
fn one_parameter_under_two_names_is_refused() {
    let folder = Folder::new();
    let mut arrays = timm_arrays(&TINY);
    let again = arrays["norm.bias"].clone();
    arrays.insert("module.norm.bias".to_owned(), again);
    let mismatch = mismatch_of(&folder.write(arrays), None);
    assert_eq!(mismatch.unused, ["norm.bias (norm.bias a second time)"]);
    assert!(mismatch.missing.is_empty(), "{mismatch}");
}

#[test]
fn inspect_tells_a_backbone_from_other_arrays() {
    let folder = Folder::new();
    let FileSummary::Backbone(summary) = inspect(folder.write(timm_arrays(&TINY))).unwrap() else {
        panic!("no backbone")
    };
    assert_eq!(summary.variant, "custom");
    let text = summary.to_string();
    assert!(text.contains("2 x 2") && text.contains("timm"), "{text}");

    let FileSummary::Arrays { arrays, reason, .. } = inspect(reference("expected.npz")).unwrap() else {
        panic!("not just arrays")
    };
    assert!(arrays.iter().any(|array| array.name == "hv_bilstm" && array.shape == [2, 5, 7, 48]));
    assert!(reason.contains("no ViT by its tensor names"), "{reason}");
}

#[test]
fn integer_arrays_are_listed_but_not_read() {
    let folder = Folder::new();
    let array = Array { shape: vec![2], values: vec![1.0, 2.0], dtype: Dtype::U32 };
    let file = WeightFile::open(folder.write(Arrays::from([("steps".to_owned(), array)]))).unwrap();
    let entry = file.entry("steps").unwrap();
    let error = file.read_f32(entry).unwrap_err().to_string();
    assert!(error.contains("`steps`") && error.contains("u32"), "{error}");
}
