//! Files of `torch.save`: a zip file with `data.pkl` (names, shapes, storages) and one file per storage. Finds the
//! state dict in the pickle; the tensors' bytes stay in the file.

use std::collections::{BTreeMap, HashMap};

use super::limits::limit;
use super::pickle::{self, MAX_PICKLE_LENGTH, StorageType, StoredTensor, Unpickled, Value};
use super::zip_directory::ZipEntry;
use super::{ArrayEntry, ElementType, Place};
use crate::error::Parsed;

/// Keys under which training scripts store the state dict; the teacher first, because DINO publishes its weights.
const STATE_DICT_KEYS: [&str; 7] =
    ["teacher", "state_dict", "model", "model_state_dict", "module", "backbone", "student"];
const MAX_NESTING: usize = 4;

pub(super) fn read(file: &[u8], directory: &[ZipEntry]) -> Parsed<BTreeMap<String, ArrayEntry>> {
    let pickle_entry = directory
        .iter()
        .find(|entry| entry.name.ends_with("data.pkl"))
        .ok_or("no data.pkl in the zip file")?;
    if pickle_entry.size as u64 > limit(MAX_PICKLE_LENGTH as u64) {
        return Err(format!(
            "data.pkl of {} bytes; state dicts stay below {MAX_PICKLE_LENGTH}",
            pickle_entry.size
        )
        .into());
    }
    let folder = pickle_entry.name.strip_suffix("data.pkl").unwrap_or_default();
    let by_name: HashMap<&str, &ZipEntry> =
        directory.iter().map(|entry| (entry.name.as_str(), entry)).collect();
    if let Some(byte_order) = by_name.get(format!("{folder}byteorder").as_str())
        && byte_order.read_head(file, 6)? != b"little"
    {
        return Err("saved on a big-endian machine; expected little-endian".into());
    }

    let unpickled = pickle::read(&pickle_entry.read(file)?)?;
    let tensors = find_state_dict(&unpickled, &unpickled.root, 0)
        .ok_or("the pickle holds no state dict (a dict with tensors by name)")?;
    tensors
        .into_iter()
        .map(|(name, tensor)| {
            let storage_name = format!("{folder}data/{}", tensor.storage.key);
            let storage = by_name.get(storage_name.as_str()).ok_or_else(|| {
                format!("`{name}` has its data in `{storage_name}`, which the zip file lacks")
            })?;
            Ok((name.to_owned(), array_entry(name, tensor, storage)?))
        })
        .collect()
}

fn find_state_dict<'a>(
    unpickled: &'a Unpickled,
    value: &Value,
    depth: usize,
) -> Option<Vec<(&'a str, &'a StoredTensor)>> {
    let Value::Dict(dict) = value else { return None };
    let tensors: Vec<_> = unpickled
        .items(*dict)
        .filter_map(|(name, value)| match value {
            Value::Tensor(tensor) => Some((name, &**tensor)),
            _ => None,
        })
        .collect();
    if !tensors.is_empty() {
        return Some(tensors);
    }
    if depth == MAX_NESTING {
        return None;
    }
    STATE_DICT_KEYS.iter().find_map(|wanted| {
        let (_, nested) = unpickled.items(*dict).find(|(key, _)| key == wanted)?;
        find_state_dict(unpickled, nested, depth + 1)
    })
}

fn array_entry(name: &str, tensor: &StoredTensor, storage: &ZipEntry) -> Parsed<ArrayEntry> {
    let (element_type, element_size) = match tensor.storage.storage_type {
        StorageType::Double => (ElementType::F64, 8),
        StorageType::Float => (ElementType::F32, 4),
        StorageType::Half => (ElementType::F16, 2),
        StorageType::BFloat16 => (ElementType::Bf16, 2),
        other => (ElementType::Other(format!("{other:?}").to_lowercase()), 1),
    };
    let byte_offset = tensor
        .offset
        .checked_mul(element_size)
        .filter(|&offset| offset <= storage.size)
        .ok_or_else(|| format!("`{name}` begins beyond the end of its storage"))?;
    let strides = (!is_row_major(&tensor.shape, &tensor.strides)).then(|| tensor.strides.clone());
    Ok(ArrayEntry {
        name: name.to_owned(),
        element_type,
        shape: tensor.shape.clone(),
        strides,
        place: Place::Zip(storage.clone()),
        byte_offset,
    })
}

/// Whether these are row-major strides; those of dimensions of length one are ignored.
fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1usize;
    shape.iter().zip(strides).rev().all(|(&n, &stride)| {
        let fits = n == 1 || stride == expected;
        expected = expected.saturating_mul(n);
        fits
    })
}
