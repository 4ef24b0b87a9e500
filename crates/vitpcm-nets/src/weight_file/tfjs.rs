//! TensorFlow.js models: a `model.json` that lists the arrays, and shards in the same folder with their bytes. Shards
//! are read into memory; quantised arrays are listed but not read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::limits::limit;
use super::{ArrayEntry, ElementType, Place};
use crate::error::Parsed;

/// Limit on the total size of all shards: several times the largest published ResNet.
const MAX_BYTES: u64 = 2 << 30;

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "weightsManifest")]
    weights_manifest: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    paths: Vec<String>,
    weights: Vec<Weight>,
}

#[derive(Deserialize)]
struct Weight {
    name: String,
    shape: Vec<usize>,
    dtype: String,
    quantization: Option<Quantization>,
}

#[derive(Deserialize)]
struct Quantization {
    dtype: String,
}

/// Whether a file may be a `model.json`: in safetensors files the brace comes after eight bytes of length.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'{') && bytes.get(8) != Some(&b'{')
}

/// The bytes of all shards next to `path`, and their arrays.
pub(super) fn read(path: &Path, json: &[u8]) -> Parsed<(Vec<u8>, BTreeMap<String, ArrayEntry>)> {
    let model: Model = serde_json::from_slice(json)
        .map_err(|error| format!("JSON that is no TensorFlow.js model (`weightsManifest`): {error}"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let (mut bytes, mut entries) = (Vec::new(), BTreeMap::new());
    for group in model.weights_manifest {
        let mut start = bytes.len();
        // Lengths first: a shard is read only if the arrays account for its bytes.
        let mut end = start as u64;
        for name in &group.paths {
            // A plain file name: a model must not point outside its folder.
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(format!("a shard called `{name}`; expected a file name").into());
            }
            let about = std::fs::metadata(folder.join(name));
            let about = about.map_err(|error| format!("its shard {name}: {error}"))?;
            if !about.is_file() {
                return Err(format!("its shard {name} is no file").into());
            }
            end = end.saturating_add(about.len());
            if end > limit(MAX_BYTES) {
                return Err(format!("shards of more than {MAX_BYTES} bytes").into());
            }
        }
        let end = end as usize;
        for weight in group.weights {
            let (entry, next) = entry(weight, start, end)?;
            start = next;
            entries.insert(entry.name.clone(), entry);
        }
        if start != end {
            return Err(format!("the shards hold {} bytes more than the arrays need", end - start).into());
        }
        for name in &group.paths {
            let read = File::open(folder.join(name)).and_then(|shard| {
                // No more than the length checked above: files may grow.
                shard.take((end - bytes.len()) as u64).read_to_end(&mut bytes)
            });
            read.map_err(|error| format!("its shard {name}: {error}"))?;
        }
        if bytes.len() != end {
            return Err("its shards became shorter while they were read".into());
        }
    }
    Ok((bytes, entries))
}

/// An array that starts at `start`, and where it ends.
fn entry(weight: Weight, start: usize, available: usize) -> Parsed<(ArrayEntry, usize)> {
    let Weight { name, shape, dtype, quantization } = weight;
    let stored = quantization.as_ref().map_or(&dtype, |quantization| &quantization.dtype);
    let size = match stored.as_str() {
        "float32" | "int32" => 4,
        "float16" | "uint16" => 2,
        "uint8" | "bool" => 1,
        other => return Err(format!("`{name}`: elements of type {other}").into()),
    };
    let element_type = match stored.as_str() {
        "float32" => ElementType::F32,
        "float16" => ElementType::F16,
        other => ElementType::Other(other.to_owned()),
    };
    let num_bytes = shape.iter().try_fold(size, |product: usize, &n| product.checked_mul(n));
    let end = num_bytes.and_then(|num_bytes| start.checked_add(num_bytes)).filter(|&end| end <= available);
    let Some(end) = end else {
        return Err(format!("`{name}`: shape {shape:?} reaches beyond the end of the shards").into());
    };
    let place = Place::File { start, length: end - start };
    Ok((ArrayEntry { name, element_type, shape, strides: None, place, byte_offset: 0 }, end))
}
