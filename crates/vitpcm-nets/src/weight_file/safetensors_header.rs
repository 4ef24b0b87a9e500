//! The header of a safetensors file, parsed by the `safetensors` crate, which checks that the offsets cover the file
//! exactly, without holes or overlaps, and that each length is its shape times its element size.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};

use super::{ArrayEntry, ElementType, Place, checksums};
use crate::error::Parsed;

/// A parsed header.
pub(super) struct Header {
    pub(super) entries: BTreeMap<String, ArrayEntry>,
    pub(super) metadata: BTreeMap<String, String>,
    /// The checksums of all tensors, if the file has any.
    pub(super) tensor_sums: Option<BTreeMap<String, String>>,
}

pub(super) fn read(bytes: &[u8]) -> Parsed<Header> {
    let (header_length, header) = SafeTensors::read_metadata(bytes).map_err(|error| {
        format!("not a weight file we know (safetensors, PyTorch zip, npz), or broken: {error}")
    })?;
    // Eight bytes of length precede the header; `read_metadata` has checked that the header lies within the file.
    let data_start = 8 + header_length;
    let entries = header
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let entry = ArrayEntry {
                name: name.clone(),
                element_type: match info.dtype {
                    Dtype::F64 => ElementType::F64,
                    Dtype::F32 => ElementType::F32,
                    Dtype::F16 => ElementType::F16,
                    Dtype::BF16 => ElementType::Bf16,
                    Dtype::I8 => ElementType::I8,
                    other => ElementType::Other(format!("{other:?}").to_lowercase()),
                },
                shape: info.shape.clone(),
                strides: None,
                place: Place::File { start: data_start + start, length: end - start },
                byte_offset: 0,
            };
            (name, entry)
        })
        .collect();
    let metadata =
        header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    let tensor_sums = checksums::read(&bytes[8..data_start], &metadata)?;
    Ok(Header { entries, metadata, tensor_sums })
}
