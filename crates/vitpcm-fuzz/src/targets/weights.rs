//! Weight files of all containers, vitpcm models, and saved states of runs: listed, read, and imported as far as
//! possible.

use super::{MEMORY, Target, said, zipped};
use candle_core::Device;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use vitpcm_nets::{
    DeepLabConfig, DeepLabInfo, DeepLabModel, Dropout, DropoutRates, ImportedBackbone, Model, Normalisation,
    PretrainedBackbone, ResNetVariant, Storage, WeightFile, inspect,
};
use vitpcm_train::check_saved_state;
use zip::CompressionMethod;

const JSON_WORDS: &[&str] = &[
    "{", "}", "[", "]", ":", ",", "null", "\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\"",
    "\"F32\"", "\"F16\"", "\"BF16\"", "\"F64\"", "\"I8\"", "\"F4\"", "\"F8_E5M2\"", "\"BOOL\"", "[0,0]",
    "18446744073709551615",
];

pub(super) const SAFETENSORS: Target = Target {
    name: "safetensors",
    what: "safetensors weight files",
    dictionary: JSON_WORDS,
    seeds: || {
        let header = json!({
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "b": {"dtype": "F16", "shape": [4], "data_offsets": [16, 24]},
            "c": {"dtype": "I8", "shape": [3], "data_offsets": [24, 27]},
            "d": {"dtype": "BF16", "shape": [], "data_offsets": [27, 29]},
        });
        vec![safetensors(header.to_string().as_bytes(), 29), safetensors(b"{}", 0)]
    },
    subject: |_| Box::new(use_weights),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const TORCH_ZIP: Target = Target {
    name: "torch-zip",
    what: "PyTorch files: the zip container",
    dictionary: &[
        "PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "PK\x06\x06", "PK\x06\x07", "archive/data.pkl",
        "archive/data/0",
    ],
    seeds: || {
        [CompressionMethod::Stored, CompressionMethod::Deflated].map(|method| torch(&pickle(), method)).into()
    },
    subject: |_| Box::new(use_weights),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const PICKLE: Target = Target {
    name: "pickle",
    what: "PyTorch files: the pickle",
    dictionary: &[
        "\u{2}",
        "}",
        ")",
        "(",
        "t",
        "R",
        "Q",
        "s",
        "u",
        ".",
        "0",
        "2",
        "q\0",
        "h\0",
        "r\0\0\0\0",
        "j\0\0\0\0",
        "K\u{1}",
        "M\0\u{1}",
        "X\u{1}\0\0\0x",
        "ctorch._utils\n_rebuild_tensor_v2\n",
        "ctorch\nFloatStorage\n",
        "ctorch\nHalfStorage\n",
        "ccollections\nOrderedDict\n",
        "cos\nsystem\n",
        "]",
        "a",
        "e",
        "l",
        "d",
        "b",
        "N",
        "I1\n",
        "G\0\0\0\0\0\0\0\0",
    ],
    seeds: || vec![pickle()],
    subject: |_| Box::new(|bytes| use_weights(&torch(bytes, CompressionMethod::Stored))),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const NPZ: Target = Target {
    name: "npz",
    what: "NumPy files: the zip container",
    dictionary: &["PK\x01\x02", "PK\x03\x04", "PK\x05\x06", ".npy"],
    seeds: || {
        let arrays = npy_arrays();
        let entries: Vec<(&str, &[u8])> =
            ["a.npy", "b/c.npy", "d.npy"].into_iter().zip(arrays.iter().map(Vec::as_slice)).collect();
        [CompressionMethod::Stored, CompressionMethod::Deflated].map(|method| zipped(&entries, method)).into()
    },
    subject: |_| Box::new(use_weights),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const NPY: Target = Target {
    name: "npy",
    what: "NumPy files: an array's header",
    dictionary: &[
        "'descr': ", "'fortran_order': ", "'shape': ", "True", "False", "'<f4'", "'>f4'", "'|O'", "(", ")",
        ",", "\u{93}NUMPY",
    ],
    seeds: npy_arrays,
    subject: |_| Box::new(|bytes| use_weights(&zipped(&[("a.npy", bytes)], CompressionMethod::Stored))),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const TFJS: Target = Target {
    name: "tfjs",
    what: "TensorFlow.js models",
    dictionary: &[
        "\"weightsManifest\"", "\"paths\"", "\"weights\"", "\"name\"", "\"shape\"", "\"dtype\"",
        "\"quantization\"", "\"float32\"", "\"float16\"", "\"uint8\"", "\"int32\"", "\"../shard.bin\"",
        "\"shard.bin\"", "[]", "{}",
    ],
    seeds: || {
        let weights = json!([
            {"name": "a/kernel", "shape": [2, 2], "dtype": "float32"},
            {"name": "b", "shape": [4], "dtype": "float32", "quantization": {"dtype": "float16"}},
            {"name": "c", "shape": [8], "dtype": "uint8"},
        ]);
        let model = json!({"format": "layers-model", "weightsManifest": [{"paths": ["shard.bin"], "weights": weights}]});
        vec![model.to_string().into_bytes()]
    },
    subject: |scratch| {
        let path = scratch.join("model.json");
        std::fs::write(scratch.join("shard.bin"), [0; 32]).expect("the scratch folder takes files");
        Box::new(move |bytes| {
            std::fs::write(&path, bytes).expect("the scratch folder takes files");
            let _ = inspect(&path);
            match WeightFile::open(&path) {
                Ok(file) => use_open_weights(&file),
                Err(error) => error.to_string(),
            }
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

/// Words of a description; it is followed by as many zeros as a whole file has.
const DESCRIPTION_WORDS: &[&str] = &[
    "vitpcm-model", "vitpcm-deeplab", "vitpcm-training-state", "vitpcm-verification-state", "format_version",
    "\\\"", "null", "\"I8\"", "\"F16\"", "\"F32\"", ".row_scales", "\"shape\":[", "18446744073709551615",
    "-1", "0", "1e308", "vit-nano16",
];

pub(super) const MODEL: Target = Target {
    name: "model-file",
    what: "vitpcm model files: the description",
    dictionary: DESCRIPTION_WORDS,
    seeds: || {
        let headers = [Storage::F16, Storage::I8].map(|storage| model_header(storage).0);
        let unchecked = without_checksums(&headers[0]);
        headers.into_iter().chain([unchecked]).collect()
    },
    subject: |_| {
        let sizes = [Storage::F16, Storage::I8].map(|storage| model_header(storage).1);
        Box::new(move |header| {
            let mut outcome = String::new();
            for size in sizes {
                outcome = match WeightFile::from_bytes("input", safetensors(header, size)) {
                    Err(error) => error.to_string(),
                    Ok(file) => {
                        let _ = DeepLabModel::from_weight_file(&file, &Device::Cpu);
                        said(
                            Model::from_weight_file(&file, &Device::Cpu)
                                .and_then(|model| model.network().map(drop)),
                        )
                    }
                };
                if outcome == "ok" {
                    break;
                }
            }
            outcome
        })
    },
    repair: Some(|header| repair_checksums(header)),
    max_bytes: MEMORY,
};

pub(super) const STATE: Target = Target {
    name: "saved-state",
    what: "saved states of runs (last/state.safetensors)",
    dictionary: DESCRIPTION_WORDS,
    seeds: || {
        vec![state_header(), with_checksums(&state_header()), with_checksums(&verification_state_header())]
    },
    subject: |_| {
        Box::new(|header| match WeightFile::from_bytes("input", safetensors(header, STATE_BYTES)) {
            Err(error) => error.to_string(),
            Ok(file) => said(check_saved_state(&file)),
        })
    },
    repair: Some(|header| repair_checksums(header)),
    max_bytes: MEMORY,
};

const STATE_BYTES: usize = 48;

fn use_weights(bytes: &[u8]) -> String {
    match WeightFile::from_bytes("input", bytes.to_vec()) {
        Ok(file) => use_open_weights(&file),
        Err(error) => error.to_string(),
    }
}

/// Reads all arrays and tries all imports.
fn use_open_weights(file: &WeightFile) -> String {
    let mut outcome = "ok".to_string();
    for entry in file.entries() {
        if let Err(error) = file.read_f32(entry) {
            outcome = format!("ok, but {error}");
        }
    }
    let _ = ImportedBackbone::from_weight_file(file, None, &Device::Cpu);
    let _ = PretrainedBackbone::from_weight_file(file, None, &Device::Cpu);
    let _ = Model::from_weight_file(file, &Device::Cpu);
    let _ = DeepLabModel::from_weight_file(file, &Device::Cpu);
    outcome
}

fn safetensors(header: &[u8], num_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + num_bytes, 0);
    file
}

fn torch(pickle: &[u8], method: CompressionMethod) -> Vec<u8> {
    zipped(&[("archive/data.pkl", pickle), ("archive/data/0", &[0; 16])], method)
}

/// A pickle of `{"x": tensor}`: two by two, float, on the 16 bytes of storage 0.
fn pickle() -> Vec<u8> {
    let mut pickle = b"\x80\x02}q\0X\x01\0\0\0xctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    pickle.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ");
    pickle.extend(b"K\0(K\x02K\x02t(K\x02K\x01t\x89ccollections\nOrderedDict\n)RtRs.");
    pickle
}

fn npy_arrays() -> Vec<Vec<u8>> {
    let fortran = {
        let header = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 1), }";
        let mut array = b"\x93NUMPY\x01\0".to_vec();
        array.extend((header.len() as u16).to_le_bytes());
        array.extend(header.as_bytes());
        array.extend([0; 16]);
        array
    };
    vec![
        vitpcm_masks::npy_bytes("<f4", &[2, 3], &[0; 24]),
        vitpcm_masks::npy_bytes("<f2", &[4], &[1; 8]),
        fortran,
    ]
}

/// The header of a small model's file, and the number of bytes after it.
fn model_header(storage: Storage) -> (Vec<u8>, usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.safetensors");
    let model = vitpcm::random_model("vit-nano16", &["dog", "cat"], 1).expect("a known variant");
    model.save(&path, storage).expect("the temporary folder takes files");
    let file = std::fs::read(path).expect("just written");
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let mut header = file[8..8 + length].to_vec();
    repair_checksums(&mut header);
    (header, file.len() - 8 - length)
}

/// The metadata keys of checksums.
const CHECKSUMS: [&str; 2] = ["tensor_crc32", "header_crc32"];

fn without_checksums(header: &[u8]) -> Vec<u8> {
    let mut header: Value = serde_json::from_slice(header).expect("our own");
    let metadata = header["__metadata__"].as_object_mut().expect("our own");
    CHECKSUMS.iter().for_each(|key| drop(metadata.remove(*key)));
    header.to_string().into_bytes()
}

fn with_checksums(header: &[u8]) -> Vec<u8> {
    let mut header: Value = serde_json::from_slice(header).expect("our own");
    let names = header.as_object().expect("our own").keys().filter(|name| *name != "__metadata__");
    let sums: BTreeMap<&String, &str> = names.map(|name| (name, "00000000")).collect();
    let sums = json!(sums).to_string();
    header["__metadata__"][CHECKSUMS[0]] = sums.into();
    header["__metadata__"][CHECKSUMS[1]] = "00000000".into();
    let mut header = header.to_string().into_bytes();
    repair_checksums(&mut header);
    header
}

/// Fixes the checksums of a header that zeros will follow, as far as it can be parsed.
fn repair_checksums(header: &mut [u8]) {
    let Ok(Value::Object(entries)) = serde_json::from_slice(header) else { return };
    for (name, entry) in &entries {
        let offset = |at: usize| entry["data_offsets"][at].as_u64();
        let (Some(start), Some(end)) = (offset(0), offset(1)) else { continue };
        let length = end.saturating_sub(start).min(16 << 20) as usize;
        put_sum(header, &format!(r#"\"{name}\":\""#), crc32fast::hash(&vec![0; length]));
    }
    let own = format!(r#""{}":""#, CHECKSUMS[1]);
    put_digits(header, &own, "00000000");
    let sum = crc32fast::hash(header);
    put_sum(header, &own, sum);
}

fn put_sum(header: &mut [u8], behind: &str, sum: u32) {
    put_digits(header, behind, &format!("{sum:08x}"));
}

fn put_digits(header: &mut [u8], behind: &str, digits: &str) {
    let found = header.windows(behind.len()).position(|window| window == behind.as_bytes());
    if let Some(place) = found.and_then(|at| header[at + behind.len()..].get_mut(..digits.len())) {
        place.copy_from_slice(digits.as_bytes());
    }
}

/// The state of a verification run.
fn verification_state_header() -> Vec<u8> {
    let backbone = ResNetVariant::named("resnet-nano").expect("a known variant").config();
    let info = DeepLabInfo {
        network: DeepLabConfig::new(backbone, 3),
        classes: ["background", "dog", "cat"].map(str::to_owned).into(),
        crop: 33,
        normalisation: Normalisation::IMAGENET,
        provenance: [("images".to_owned(), "somewhere".to_owned())].into(),
    };
    let progress = json!({"epoch": 1, "images_taken": 2, "step": 3, "data_fingerprint": 7});
    let metadata = json!({
        "format": "vitpcm-verification-state", "format_version": "1", "info": json!(info).to_string(),
        "progress": progress.to_string(),
    });
    let tensor = |start: usize| json!({"dtype": "F32", "shape": [2, 2], "data_offsets": [start, start + 16]});
    let header = json!({
        "__metadata__": metadata, "weight/a": tensor(0), "velocity/a": tensor(16), "velocity/b": tensor(32),
    });
    header.to_string().into_bytes()
}

fn state_header() -> Vec<u8> {
    let model = vitpcm::random_model("vit-nano16", &["dog", "cat"], 1).expect("a known variant");
    let progress = json!({
        "epoch": 1, "images_taken": 2, "step": 3, "epoch_steps": 1, "epoch_loss_sum": 0.5, "waiting_row": null,
        "best": [1, 0.5], "epochs_since_best": 0, "dropout": Dropout::new(1, DropoutRates { backbone: 0.0, conditioning: 0.1, classifier: 0.5 }), "adam_steps": 3,
        "average_updates": 0, "data_fingerprint": 7,
    });
    let metadata = json!({
        "format": "vitpcm-training-state", "format_version": "1", "info": json!(model.info).to_string(),
        "progress": progress.to_string(),
    });
    let tensor = |start: usize| json!({"dtype": "F32", "shape": [2, 2], "data_offsets": [start, start + 16]});
    let header = json!({
        "__metadata__": metadata, "weight/a": tensor(0), "adam-mean/a": tensor(16), "average/a": tensor(32),
    });
    header.to_string().into_bytes()
}
