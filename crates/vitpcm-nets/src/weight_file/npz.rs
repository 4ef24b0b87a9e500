//! NumPy `.npz`: a zip file of `.npy` arrays. Reads each array's short header; its data stays in the file.

use std::collections::BTreeMap;

use super::zip_directory::ZipEntry;
use super::{ArrayEntry, ElementType, Place};
use crate::error::Parsed;

const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy's own limit by default.
const MAX_HEADER_LENGTH: usize = 10_000;

pub(super) fn read(file: &[u8], directory: &[ZipEntry]) -> Parsed<BTreeMap<String, ArrayEntry>> {
    let mut entries = BTreeMap::new();
    for zip_entry in directory {
        let Some(name) = zip_entry.name.strip_suffix(".npy") else {
            return Err(format!(
                "a zip file that is neither PyTorch's (no data.pkl) nor NumPy's (`{}` is no .npy)",
                zip_entry.name
            )
            .into());
        };
        let head = zip_entry.read_head(file, MAX_HEADER_LENGTH + 12)?;
        let entry = read_header(name, &head, zip_entry)
            .ok_or_else(|| format!("`{}` has no readable .npy header", zip_entry.name))?;
        entries.insert(entry.name.clone(), entry);
    }
    Ok(entries)
}

fn read_header(name: &str, head: &[u8], zip_entry: &ZipEntry) -> Option<ArrayEntry> {
    let rest = head.strip_prefix(MAGIC)?;
    let (header_length, data_start): (usize, usize) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes(rest.get(2..4)?.try_into().ok()?)), 10),
        2 | 3 => (usize::try_from(u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?)).ok()?, 12),
        _ => return None,
    };
    let header = std::str::from_utf8(head.get(data_start..data_start.checked_add(header_length)?)?).ok()?;

    let descr = value_after(header, "'descr':")?;
    let descr = descr.strip_prefix('\'')?.split('\'').next()?;
    let shape = value_after(header, "'shape':")?.strip_prefix('(')?.split(')').next()?;
    let shape: Vec<usize> = shape
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let column_major = value_after(header, "'fortran_order':")?.starts_with("True");
    let strides = if column_major { Some(column_major_strides(&shape)?) } else { None };
    Some(ArrayEntry {
        name: name.to_owned(),
        element_type: match descr {
            "<f8" => ElementType::F64,
            "<f4" => ElementType::F32,
            "<f2" => ElementType::F16,
            // NumPy has no bfloat16: JAX's arrays are saved as two raw bytes per element.
            "|V2" | "<V2" => ElementType::Bf16,
            other => ElementType::Other(other.to_owned()),
        },
        shape,
        strides,
        place: Place::Zip(zip_entry.clone()),
        byte_offset: data_start + header_length,
    })
}

fn value_after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    header.split_once(key).map(|(_, value)| value.trim_start())
}

fn column_major_strides(shape: &[usize]) -> Option<Vec<usize>> {
    let mut stride = 1usize;
    shape
        .iter()
        .map(|&n| {
            let this = stride;
            stride = stride.checked_mul(n)?;
            Some(this)
        })
        .collect()
}
