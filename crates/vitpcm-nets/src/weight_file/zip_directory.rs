//! The directory of a zip file and its entries' bytes: stored or deflated, with or without zip64.
//!
//! Our own reader, because the files may be hostile: every offset and length is checked against the file's real length,
//! and a file that claims to inflate more than [`MAX_INFLATION`]-fold is refused.

use std::io::Read;

use super::limits::limit;
use crate::error::Parsed;

/// Floating-point weights barely compress; a higher ratio indicates a zip bomb.
const MAX_INFLATION: u64 = 16;
/// Small files of zeros compress better than that.
const INFLATION_ALLOWANCE: u64 = 1 << 20;

const END_LENGTH: usize = 22;
const MAX_COMMENT_LENGTH: usize = u16::MAX as usize;
const DEFERRED_TO_ZIP64: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    Stored,
    Deflated,
}

/// One entry of a zip file; its range lies within the file.
#[derive(Debug, Clone)]
pub(super) struct ZipEntry {
    pub(super) name: String,
    pub(super) size: usize,
    start: usize,
    compressed_size: usize,
    compression: Compression,
    crc: u32,
}

impl ZipEntry {
    /// All bytes of the entry, inflated if needed, with the checksum verified.
    pub(super) fn read(&self, file: &[u8]) -> Parsed<Vec<u8>> {
        let bytes = self.read_head(file, self.size)?;
        let mut crc = flate2::Crc::new();
        crc.update(&bytes);
        if bytes.len() != self.size || crc.sum() != self.crc {
            return Err(
                format!("the zip entry `{}` is damaged (length or checksum differs)", self.name).into()
            );
        }
        Ok(bytes)
    }

    /// Up to `limit` bytes from the start of the entry; the checksum is not verified.
    pub(super) fn read_head(&self, file: &[u8], limit: usize) -> Parsed<Vec<u8>> {
        let packed = &file[self.start..self.start + self.compressed_size];
        let limit = limit.min(self.size);
        match self.compression {
            Compression::Stored => Ok(packed[..limit].to_vec()),
            Compression::Deflated => {
                let mut bytes = Vec::new();
                flate2::read::DeflateDecoder::new(packed)
                    .take(limit as u64)
                    .read_to_end(&mut bytes)
                    .map_err(|error| format!("the zip entry `{}` does not inflate: {error}", self.name))?;
                Ok(bytes)
            }
        }
    }
}

/// The entries of a zip file, in the order of its directory.
pub(super) fn read(file: &[u8]) -> Parsed<Vec<ZipEntry>> {
    let (mut at, num_entries) = find_directory(file)?;
    // Not `with_capacity(num_entries)`: that number is not trusted.
    let mut entries = Vec::new();
    let mut inflated_total = 0u64;
    for _ in 0..num_entries {
        let (entry, next) = read_directory_entry(file, at)?;
        inflated_total = inflated_total.saturating_add(entry.size as u64);
        let max_bytes = (file.len() as u64).saturating_mul(MAX_INFLATION).saturating_add(INFLATION_ALLOWANCE);
        if inflated_total > limit(max_bytes) {
            return Err(format!(
                "the zip file claims to inflate more than {MAX_INFLATION}-fold, which weights never do; refused"
            )
            .into());
        }
        entries.push(entry);
        at = next;
    }
    Ok(entries)
}

/// Offset of the directory and the number of its entries.
fn find_directory(file: &[u8]) -> Parsed<(usize, u64)> {
    let earliest = file.len().saturating_sub(END_LENGTH + MAX_COMMENT_LENGTH);
    let end = (earliest..=file.len().saturating_sub(END_LENGTH))
        .rev()
        .find(|&at| file[at..].starts_with(b"PK\x05\x06"))
        .ok_or("a zip file without its directory: truncated or incomplete")?;
    let num_entries = u16_at(file, end + 10)?;
    let directory = u32_at(file, end + 16)?;
    if num_entries != u16::MAX && directory != DEFERRED_TO_ZIP64 {
        return Ok((directory as usize, num_entries.into()));
    }
    let locator = end.checked_sub(20).filter(|&at| file[at..].starts_with(b"PK\x06\x07"));
    let Some(locator) = locator else {
        return Ok((directory as usize, num_entries.into()));
    };
    let end64 = index(u64_at(file, locator + 8)?)?;
    if !file.get(end64..).is_some_and(|rest| rest.starts_with(b"PK\x06\x06")) {
        return Err("the zip64 directory is not where the zip file says".into());
    }
    Ok((index(u64_at(file, end64.saturating_add(48))?)?, u64_at(file, end64.saturating_add(32))?))
}

/// The entry at `at` in the directory, and where the next one starts.
fn read_directory_entry(file: &[u8], at: usize) -> Parsed<(ZipEntry, usize)> {
    if !file.get(at..).is_some_and(|rest| rest.starts_with(b"PK\x01\x02")) {
        return Err("the zip directory is damaged".into());
    }
    let flags = u16_at(file, at + 8)?;
    let method = u16_at(file, at + 10)?;
    let crc = u32_at(file, at + 16)?;
    let name_length = usize::from(u16_at(file, at + 28)?);
    let extra_length = usize::from(u16_at(file, at + 30)?);
    let comment_length = usize::from(u16_at(file, at + 32)?);
    let name_start = at + 46;
    let extra_start = name_start + name_length;
    let name = file.get(name_start..extra_start).ok_or("the zip directory is truncated")?;
    let name = String::from_utf8_lossy(name).into_owned();
    let extra = file.get(extra_start..extra_start + extra_length).ok_or("the zip directory is truncated")?;

    // Sizes and offset, each replaced by its 64-bit value in the extra field if there is one, in this order.
    let mut zip64 = zip64_values(extra);
    let mut wide = |narrow: u32| -> Parsed<usize> {
        if narrow != DEFERRED_TO_ZIP64 {
            return Ok(narrow as usize);
        }
        index(zip64.next().ok_or("the zip directory lacks a 64-bit length")?)
    };
    let size = wide(u32_at(file, at + 24)?)?;
    let compressed_size = wide(u32_at(file, at + 20)?)?;
    let local_header = wide(u32_at(file, at + 42)?)?;

    if flags & 1 != 0 {
        return Err(format!("the zip entry `{name}` is encrypted").into());
    }
    let compression = match method {
        0 => Compression::Stored,
        8 => Compression::Deflated,
        other => {
            return Err(format!(
                "the zip entry `{name}` uses compression method {other}; expected stored or deflated"
            )
            .into());
        }
    };
    if compression == Compression::Stored && size != compressed_size {
        return Err(format!("the zip entry `{name}` is stored, yet has two different lengths").into());
    }
    if !file.get(local_header..).is_some_and(|rest| rest.starts_with(b"PK\x03\x04")) {
        return Err(format!("the zip entry `{name}` is not where the directory says").into());
    }
    let local_name_length = usize::from(u16_at(file, local_header + 26)?);
    let local_extra_length = usize::from(u16_at(file, local_header + 28)?);
    let start = local_header + 30 + local_name_length + local_extra_length;
    if start.checked_add(compressed_size).is_none_or(|end| end > file.len()) {
        return Err(format!("the zip entry `{name}` reaches beyond the end of the file").into());
    }
    let entry = ZipEntry { name, size, start, compressed_size, compression, crc };
    Ok((entry, extra_start + extra_length + comment_length))
}

/// The 64-bit numbers of the zip64 extra field.
fn zip64_values(mut extra: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut values: &[u8] = &[];
    while let [id0, id1, length0, length1, rest @ ..] = extra {
        let length = usize::from(u16::from_le_bytes([*length0, *length1])).min(rest.len());
        if u16::from_le_bytes([*id0, *id1]) == 1 {
            values = &rest[..length];
        }
        extra = &rest[length..];
    }
    values.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()))
}

fn bytes_at<const N: usize>(file: &[u8], at: usize) -> Parsed<[u8; N]> {
    let end = at.checked_add(N).ok_or("the zip directory is truncated")?;
    let bytes = file.get(at..end).ok_or("the zip directory is truncated")?;
    Ok(bytes.try_into().unwrap())
}

fn u16_at(file: &[u8], at: usize) -> Parsed<u16> {
    Ok(u16::from_le_bytes(bytes_at(file, at)?))
}

fn u32_at(file: &[u8], at: usize) -> Parsed<u32> {
    Ok(u32::from_le_bytes(bytes_at(file, at)?))
}

fn u64_at(file: &[u8], at: usize) -> Parsed<u64> {
    Ok(u64::from_le_bytes(bytes_at(file, at)?))
}

fn index(value: u64) -> Parsed<usize> {
    usize::try_from(value).map_err(|_| "the zip file has a length beyond this machine's memory".into())
}
