//! CRC-32 checksums in the metadata of a safetensors file: `tensor_crc32`, a JSON object with the sum of each tensor's
//! bytes, and `header_crc32`, the sum of the header itself. Our files have both; files without them (older or foreign)
//! are read unchecked. docs/reference/models.md describes them for other programs.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Fault, Parsed};

/// Metadata key: the sums of all tensors, by name.
pub(crate) const TENSOR_SUMS: &str = "tensor_crc32";
/// Metadata key: the sum of the header, computed with this value as [`NO_SUM`].
pub(crate) const HEADER_SUM: &str = "header_crc32";
/// Placeholder for a sum that is not yet known, of the same length.
pub(crate) const NO_SUM: &str = "00000000";

/// A sum in its written form: 8 hexadecimal digits.
pub(crate) fn text_of(sum: u32) -> String {
    format!("{sum:08x}")
}

/// Writes a header's own sum over [`NO_SUM`].
pub(crate) fn seal(header: &mut [u8]) {
    let sum = text_of(crc32fast::hash(header));
    if let Some(digits) = header_sum_place(header) {
        header[digits].copy_from_slice(sum.as_bytes());
    }
}

/// The sums of a file's tensors by name, after verifying its header; `None` for a file without sums.
pub(crate) fn read(
    header: &[u8],
    metadata: &BTreeMap<String, String>,
) -> Parsed<Option<BTreeMap<String, String>>> {
    let sums = match (metadata.get(TENSOR_SUMS), metadata.get(HEADER_SUM)) {
        (None, None) => return Ok(None),
        (Some(sums), Some(_)) => sums,
        // This includes files in which one of the two keys is damaged.
        _ => return Err(Fault::Damaged("the header".to_owned())),
    };
    let digits = header_sum_place(header).ok_or_else(|| Fault::Damaged("the header".to_owned()))?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..digits.start]);
    hasher.update(NO_SUM.as_bytes());
    hasher.update(&header[digits.end..]);
    if header[digits] != *text_of(hasher.finalize()).as_bytes() {
        return Err(Fault::Damaged("the header".to_owned()));
    }
    let sums = serde_json::from_str(sums);
    sums.map(Some)
        .map_err(|error| format!("its metadata's `{TENSOR_SUMS}` is not understood: {error}").into())
}

/// The position of the 8 digits of the header's own sum.
fn header_sum_place(header: &[u8]) -> Option<Range<usize>> {
    let text = std::str::from_utf8(header).ok()?;
    // As a key, not within a string (where quotes are escaped) and not as a tensor's name.
    let key = format!("\"{HEADER_SUM}\"");
    let place = |(at, key): (usize, &str)| {
        let rest = text[at + key.len()..].trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        let start = text.len() - rest.len();
        let end = start + NO_SUM.len();
        (text.as_bytes().get(end) == Some(&b'"')).then_some(start..end)
    };
    text.match_indices(&key).find_map(place)
}
