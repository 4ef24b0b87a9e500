//! A weight file in any supported container (safetensors, PyTorch zip, NumPy npz, TensorFlow.js) as a list of named
//! arrays.
//!
//! The file is mapped, not loaded. Opening it parses names, shapes and element types only; every length is checked
//! against the file's real length before anything is allocated. Reading an array verifies its checksum, if the file has
//! one, and refuses numbers that are not finite. Interpreting the names is left to `weight_names` and `import`.

pub(crate) mod checksums;
mod limits;
mod npz;
mod pickle;
mod safetensors_header;
mod tfjs;
mod torch_zip;
mod zip_directory;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde::Serialize;

use crate::error::{Fault, NetsError, Parsed, Result};
use safetensors_header::Header;
use zip_directory::ZipEntry;

pub use limits::raise_weight_limit;

/// Container formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Container {
    /// Hugging Face's safetensors.
    Safetensors,
    /// `torch.save` since PyTorch 1.6: a zip file with a pickle and one file per storage.
    TorchZip,
    /// `numpy.savez`: a zip file with one `.npy` per array.
    Npz,
    /// TensorFlow.js: a `model.json` and its shards in the same folder.
    Tfjs,
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Container::Safetensors => "safetensors",
            Container::TorchZip => "PyTorch (zip)",
            Container::Npz => "NumPy npz",
            Container::Tfjs => "TensorFlow.js",
        })
    }
}

/// Element type of an array. Only floating-point arrays can be read; others are listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum ElementType {
    /// 64-bit floating point.
    F64,
    /// 32-bit floating point.
    F32,
    /// IEEE half precision.
    F16,
    /// Brain floating point.
    Bf16,
    /// 8-bit integers, which only vitpcm's model files use.
    I8,
    /// Anything else, by the file's own name.
    Other(String),
}

impl ElementType {
    /// Bytes of one element; `None` for types we do not read.
    fn size_in_bytes(&self) -> Option<usize> {
        match self {
            ElementType::F64 => Some(8),
            ElementType::F32 => Some(4),
            ElementType::F16 | ElementType::Bf16 => Some(2),
            ElementType::I8 => Some(1),
            ElementType::Other(_) => None,
        }
    }

    /// Whether [`WeightFile::read_f32`] reads it.
    pub(crate) fn is_float(&self) -> bool {
        !matches!(self, ElementType::I8 | ElementType::Other(_))
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::F64 => "f64",
            ElementType::F32 => "f32",
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::I8 => "i8",
            ElementType::Other(word) => word,
        })
    }
}

impl From<ElementType> for String {
    fn from(element_type: ElementType) -> Self {
        element_type.to_string()
    }
}

/// One array of a weight file, and where its bytes are.
#[derive(Debug, Clone)]
pub struct ArrayEntry {
    /// The name in the file (without `.npy` in npz files).
    pub name: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Elements between neighbours along each dimension; `None` for row-major.
    strides: Option<Vec<usize>>,
    place: Place,
    /// Byte offset of the first element within the place.
    byte_offset: usize,
}

/// Where the bytes of an array are.
#[derive(Debug, Clone)]
enum Place {
    /// A range of the file, checked to lie within it.
    File { start: usize, length: usize },
    /// An entry of the zip file.
    Zip(ZipEntry),
}

impl ArrayEntry {
    /// Number of elements, saturating.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().fold(1usize, |product, &n| product.saturating_mul(n))
    }
}

/// The bytes of a file: mapped from disk or in memory.
enum FileBytes {
    Mapped(memmap2::Mmap),
    InMemory(Cow<'static, [u8]>),
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(map) => map,
            FileBytes::InMemory(bytes) => bytes,
        }
    }
}

/// An open weight file: its arrays by name, and for safetensors its metadata.
pub struct WeightFile {
    path: PathBuf,
    bytes: FileBytes,
    container: Container,
    entries: BTreeMap<String, ArrayEntry>,
    metadata: BTreeMap<String, String>,
    /// CRC-32 of each array's bytes, if the file has checksums.
    sums: Option<BTreeMap<String, String>>,
}

impl WeightFile {
    /// Opens a file and lists its arrays. The container is detected by content, not by name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |source| NetsError::Io { path: path.to_owned(), source };
        // Before opening: opening a pipe would block until somebody writes to it.
        let about = std::fs::metadata(path).map_err(io)?;
        if !about.is_file() {
            return Err(Fault::from("not a regular file").at(path));
        }
        let file = File::open(path).map_err(io)?;
        if about.len() == 0 {
            return Err(
                Fault::from("the file is empty; expected safetensors, a PyTorch zip file or npz").at(path)
            );
        }
        // SAFETY: the map is read-only and private to this value. As with every mapped file, another process that
        // truncates the file during a read can crash this one; weight files are not edited in place, and our own writer
        // replaces files by renaming.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        if tfjs::is_json(&map) {
            let (bytes, entries) = tfjs::read(path, &map).map_err(|fault| fault.at(path))?;
            let (path, bytes) = (path.to_owned(), FileBytes::InMemory(bytes.into()));
            let (container, metadata) = (Container::Tfjs, BTreeMap::new());
            return Ok(Self { path, bytes, container, entries, metadata, sums: None });
        }
        Self::parse(path, FileBytes::Mapped(map))
    }

    /// Lists the arrays of a file in memory, e.g. embedded in the program; `label` stands for its path in messages.
    pub fn from_bytes(label: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::parse(Path::new(label), FileBytes::InMemory(bytes.into()))
    }

    fn parse(path: &Path, bytes: FileBytes) -> Result<Self> {
        let (container, Header { entries, metadata, tensor_sums: sums }) =
            parse_any(&bytes).map_err(|fault| fault.at(path))?;
        Ok(Self { path: path.to_owned(), bytes, container, entries, metadata, sums })
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its container format.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The file's own metadata: safetensors' `__metadata__`, empty for the other containers.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whether the file has checksums.
    pub fn has_checksums(&self) -> bool {
        self.sums.is_some()
    }

    /// Reads all numeric arrays and returns an error for each that is damaged or not finite.
    pub fn find_damage(&self) -> Vec<NetsError> {
        let readable = self.entries().filter(|entry| entry.element_type.size_in_bytes().is_some());
        readable.filter_map(|entry| self.read_numbers(entry).err()).collect()
    }

    /// All arrays, by name.
    pub fn entries(&self) -> impl Iterator<Item = &ArrayEntry> {
        self.entries.values()
    }

    /// The array of this name.
    pub fn entry(&self, name: &str) -> Option<&ArrayEntry> {
        self.entries.get(name)
    }

    /// The elements of a floating-point array in row-major order, converted to f32. Fails if the checksum does not
    /// match or a value is not finite.
    pub fn read_f32(&self, entry: &ArrayEntry) -> Result<Vec<f32>> {
        if !entry.element_type.is_float() {
            let reason = format!(
                "`{}`: elements of type {}; expected f32, f16, bf16 or f64",
                entry.name, entry.element_type
            );
            return Err(Fault::from(reason).at(&self.path));
        }
        self.read_numbers(entry)
    }

    /// The elements of an array of any supported numeric type.
    pub(crate) fn read_numbers(&self, entry: &ArrayEntry) -> Result<Vec<f32>> {
        let values = self
            .read_entry(entry)
            .map_err(|fault| match fault {
                Fault::Malformed(reason) => Fault::Malformed(format!("`{}`: {reason}", entry.name)),
                other => other,
            })
            .map_err(|fault| fault.at(&self.path))?;
        self.forget_pages_of(entry);
        self.check_finite(&entry.name, &values)?;
        Ok(values)
    }

    /// Refuses an array with a value that is not finite.
    pub(crate) fn check_finite(&self, name: &str, values: &[f32]) -> Result<()> {
        match values.iter().find(|value| !value.is_finite()) {
            None => Ok(()),
            Some(&value) => {
                Err(NetsError::NotFinite { path: self.path.clone(), name: name.to_owned(), value })
            }
        }
    }

    /// Releases an array's mapped pages after copying it, so that loading a model never holds it twice.
    #[cfg(unix)]
    fn forget_pages_of(&self, entry: &ArrayEntry) {
        if let (FileBytes::Mapped(map), &Place::File { start, length }) = (&self.bytes, &entry.place) {
            // SAFETY: the map is of a file and never written to, so pages that are needed again are read again. An
            // error affects nothing but memory use.
            drop(unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, length) });
        }
    }

    /// Windows takes pages of a mapped file back by itself when memory is short.
    #[cfg(not(unix))]
    fn forget_pages_of(&self, _: &ArrayEntry) {}

    fn read_entry(&self, entry: &ArrayEntry) -> Parsed<Vec<f32>> {
        let element_size = entry.element_type.size_in_bytes().ok_or_else(|| {
            format!("elements of type {}; expected f32, f16, bf16 or f64", entry.element_type)
        })?;
        let inflated;
        let place: &[u8] = match &entry.place {
            Place::File { start, length } => &self.bytes[*start..*start + *length],
            Place::Zip(zip_entry) => {
                inflated = zip_entry.read(&self.bytes)?;
                &inflated
            }
        };
        if let Some(sums) = &self.sums
            && sums.get(&entry.name) != Some(&checksums::text_of(crc32fast::hash(place)))
        {
            return Err(Fault::Damaged(format!("the tensor `{}`", entry.name)));
        }
        let bytes =
            place.get(entry.byte_offset..).ok_or("its first element lies beyond the end of its storage")?;
        let num_elements = checked_num_elements(&entry.shape)?;
        // Holds for every array that is not a broadcast view of fewer elements, so the allocation below never exceeds
        // the file's size.
        if num_elements.checked_mul(element_size).is_none_or(|needed| needed > bytes.len()) {
            return Err(format!(
                "shape {:?} of {} needs more than the {} bytes the file holds for it",
                entry.shape,
                entry.element_type,
                bytes.len()
            )
            .into());
        }
        match &entry.strides {
            None => Ok(widen(&bytes[..num_elements * element_size], &entry.element_type)),
            Some(strides) => {
                let held = widen(&bytes[..bytes.len() / element_size * element_size], &entry.element_type);
                gather(&held, &entry.shape, strides, num_elements)
            }
        }
    }
}

fn parse_any(bytes: &[u8]) -> Parsed<(Container, Header)> {
    let unchecked = |entries| Header { entries, metadata: BTreeMap::new(), tensor_sums: None };
    if bytes.starts_with(b"PK") {
        let directory = zip_directory::read(bytes)?;
        return if directory.iter().any(|entry| entry.name.ends_with("data.pkl")) {
            Ok((Container::TorchZip, unchecked(torch_zip::read(bytes, &directory)?)))
        } else {
            Ok((Container::Npz, unchecked(npz::read(bytes, &directory)?)))
        };
    }
    if bytes.starts_with(&[0x80]) && matches!(bytes.get(1), Some(2..=5)) && bytes.get(8) != Some(&b'{') {
        return Err(
            "a bare pickle, as PyTorch before 1.6 or `pickle.dump` wrote; load it once in PyTorch and \
                    save it again with torch.save(state_dict, path)"
                .into(),
        );
    }
    Ok((Container::Safetensors, safetensors_header::read(bytes)?))
}

/// The product of a shape; fails on overflow.
fn checked_num_elements(shape: &[usize]) -> Parsed<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n))
        .ok_or_else(|| format!("shape {shape:?} overflows").into())
}

/// Little-endian elements to f32.
fn widen(bytes: &[u8], element_type: &ElementType) -> Vec<f32> {
    match element_type {
        ElementType::F64 => {
            bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()) as f32).collect()
        }
        ElementType::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        }
        ElementType::F16 => {
            bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        ElementType::Bf16 => {
            bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        ElementType::I8 => bytes.iter().map(|&byte| f32::from(byte as i8)).collect(),
        ElementType::Other(_) => Vec::new(),
    }
}

/// Row-major copy of a strided view (a transposed PyTorch tensor, a Fortran-order NumPy array).
fn gather(held: &[f32], shape: &[usize], strides: &[usize], num_elements: usize) -> Parsed<Vec<f32>> {
    if num_elements == 0 {
        return Ok(Vec::new());
    }
    let last = shape
        .iter()
        .zip(strides)
        .try_fold(0usize, |sum, (&n, &stride)| sum.checked_add((n - 1).checked_mul(stride)?))
        .ok_or("its strides overflow")?;
    if last >= held.len() {
        return Err(
            format!("strides {strides:?} of shape {shape:?} reach beyond the end of its storage").into()
        );
    }
    let mut out = Vec::with_capacity(num_elements);
    let mut index = vec![0usize; shape.len()];
    let mut position = 0usize;
    for _ in 0..num_elements {
        out.push(held[position]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            position += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            position -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    Ok(out)
}
