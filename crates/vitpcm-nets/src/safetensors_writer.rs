//! Writes a safetensors file with checksums, one tensor after the other. The checksums are in the header but known only
//! at the end, so the header is written twice. The `safetensors` crate is not used because it writes metadata in random
//! order.

use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};

use crate::weight_file::checksums::{self, HEADER_SUM, NO_SUM, TENSOR_SUMS};

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct PlannedTensor {
    /// Its name.
    pub name: String,
    /// Element type as in safetensors: `F32`, `F16`, `I8`.
    pub element_type: &'static str,
    /// Bytes per element.
    pub element_size: usize,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl PlannedTensor {
    fn num_bytes(&self) -> usize {
        self.element_size * self.shape.iter().product::<usize>()
    }
}

/// Takes the bytes of all planned tensors in order, without gaps. The same content gives the same file. Checksums are
/// updated per write: buffer many small ones.
#[derive(Debug)]
pub struct SafetensorsWriter<W> {
    file: W,
    metadata: BTreeMap<&'static str, String>,
    tensors: Vec<PlannedTensor>,
    /// Checksums of complete tensors.
    sums: Vec<u32>,
    /// The current tensor: its checksum so far and the bytes still to come.
    sum: crc32fast::Hasher,
    bytes_left: usize,
}

impl<W: Write + Seek> SafetensorsWriter<W> {
    /// Starts at the beginning of an empty file.
    pub fn begin(
        mut file: W,
        metadata: &BTreeMap<&'static str, String>,
        tensors: Vec<PlannedTensor>,
    ) -> io::Result<Self> {
        let header = header(metadata, &tensors, &vec![0; tensors.len()]);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let bytes_left = tensors.first().map_or(0, PlannedTensor::num_bytes);
        let (metadata, sums, sum) = (metadata.clone(), Vec::new(), crc32fast::Hasher::new());
        let mut writer = Self { file, metadata, tensors, sums, sum, bytes_left };
        writer.close_complete_tensors();
        Ok(writer)
    }

    /// Writes the checksums into the header.
    pub fn finish(mut self) -> io::Result<()> {
        if self.sums.len() < self.tensors.len() {
            return Err(io::Error::other("fewer bytes than the planned tensors have"));
        }
        self.file.seek(SeekFrom::Start(8))?;
        self.file.write_all(&header(&self.metadata, &self.tensors, &self.sums))?;
        self.file.flush()
    }

    fn close_complete_tensors(&mut self) {
        while self.bytes_left == 0 && self.sums.len() < self.tensors.len() {
            self.sums.push(std::mem::take(&mut self.sum).finalize());
            self.bytes_left = self.tensors.get(self.sums.len()).map_or(0, PlannedTensor::num_bytes);
        }
    }
}

impl<W: Write + Seek> Write for SafetensorsWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes_left == 0 && !bytes.is_empty() {
            return Err(io::Error::other("more bytes than the planned tensors have"));
        }
        let written = self.file.write(&bytes[..bytes.len().min(self.bytes_left)])?;
        self.sum.update(&bytes[..written]);
        self.bytes_left -= written;
        self.close_complete_tensors();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The header; its length does not depend on the checksums.
fn header(metadata: &BTreeMap<&'static str, String>, tensors: &[PlannedTensor], sums: &[u32]) -> Vec<u8> {
    let mut metadata = metadata.clone();
    let named = tensors.iter().zip(sums).map(|(tensor, &sum)| (&tensor.name, checksums::text_of(sum)));
    metadata.insert(TENSOR_SUMS, serde_json::json!(named.collect::<BTreeMap<_, _>>()).to_string());
    metadata.insert(HEADER_SUM, NO_SUM.to_owned());
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.num_bytes();
        let entry = serde_json::json!({
            "dtype": tensor.element_type, "shape": tensor.shape, "data_offsets": [start, end]
        });
        entries.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut header = serde_json::Value::Object(entries).to_string().into_bytes();
    // Data start at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    checksums::seal(&mut header);
    header
}
