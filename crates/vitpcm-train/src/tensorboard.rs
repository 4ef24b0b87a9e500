//! Event files that TensorBoard reads: records with CRC-32C checksums around protocol-buffer messages, of which we
//! write the few fields that scalars and pictures need.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use vitpcm_masks::Picture;

use crate::error::{Result, TrainError};

/// An open event file.
#[derive(Debug)]
pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new file in `folder` for a session that goes on after `step` steps. TensorBoard drops what earlier files say
    /// about later steps.
    pub(crate) fn create(folder: &Path, step: u64) -> Result<Self> {
        // TensorBoard reads the files of a folder in the order of their names.
        let name = format!("events.out.tfevents.{:020}.{}.vitpcm", unix_nanos(), std::process::id());
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(TrainError::io(&path))?;
        let mut events = Self { path, file };
        // Event { file_version = 3 }
        events.record(&event(0, bytes_field(3, b"brain.Event:2")))?;
        // Event { session_log = 7 { status = 1: START } }
        events.record(&event(step + 1, bytes_field(7, &varint_field(1, 1))))?;
        Ok(events)
    }

    /// One number at a step.
    pub(crate) fn scalar(&mut self, tag: &str, step: u64, value: f32) -> Result<()> {
        // Summary.Value { tag = 1, simple_value = 2 }
        let mut message = bytes_field(1, tag.as_bytes());
        message.push(2 << 3 | 5);
        message.extend(value.to_le_bytes());
        self.summary_value(step, &message)
    }

    /// A picture at a step.
    pub(crate) fn picture(&mut self, tag: &str, step: u64, picture: &Picture) -> Result<()> {
        let png = encode_png(picture).map_err(|error| TrainError::Io {
            path: self.path.clone(),
            source: std::io::Error::other(error),
        })?;
        // Summary.Image { height = 1, width = 2, colorspace = 3 (RGB), encoded_image_string = 4 }
        let mut image = varint_field(1, picture.height as u64);
        image.extend(varint_field(2, picture.width as u64));
        image.extend(varint_field(3, 3));
        image.extend(bytes_field(4, &png));
        // Summary.Value { tag = 1, image = 4 }
        let mut message = bytes_field(1, tag.as_bytes());
        message.extend(bytes_field(4, &image));
        self.summary_value(step, &message)
    }

    fn summary_value(&mut self, step: u64, value: &[u8]) -> Result<()> {
        // Event { summary = 5 { value = 1 } }
        self.record(&event(step, bytes_field(5, &bytes_field(1, value))))
    }

    /// TFRecord framing: length, checksum of the length, data, checksum of the data.
    fn record(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(data.len() + 16);
        record.extend(length);
        record.extend(masked_crc(&length).to_le_bytes());
        record.extend(data);
        record.extend(masked_crc(data).to_le_bytes());
        self.file.write_all(&record).map_err(TrainError::io(&self.path))
    }
}

fn unix_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos())
}

/// Event { wall_time = 1 (double), step = 2 } and one more field.
fn event(step: u64, what: Vec<u8>) -> Vec<u8> {
    let mut message = vec![1 << 3 | 1];
    message.extend((unix_nanos() as f64 / 1e9).to_le_bytes());
    message.extend(varint_field(2, step));
    message.extend(what);
    message
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_field(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    varint(value, &mut out);
    out
}

fn bytes_field(field: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(bytes.len() as u64, &mut out);
    out.extend(bytes);
    out
}

fn encode_png(picture: &Picture) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, picture.width as u32, picture.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&picture.rgb)?;
    writer.finish()?;
    Ok(bytes)
}

/// Rotated and shifted, as the format wants it, because the checksum of data with a checksum in it is weak.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), a byte at a time.
fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut remainder = i as u32;
            let mut bit = 0;
            while bit < 8 {
                remainder = remainder >> 1 ^ if remainder & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[i] = remainder;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and ascending.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn numbers_are_written_in_sevens_of_bits() {
        assert_eq!(varint_field(2, 300), [0x10, 0xac, 0x02]);
        assert_eq!(bytes_field(1, b"ab"), [0x0a, 2, b'a', b'b']);
    }
}
