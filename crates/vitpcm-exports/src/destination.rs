//! Where an export's files go: a folder, with atomic writes, a zip archive, or memory. One file at a time, so that a
//! collected file may grow while images arrive.

use crate::ExportError;
use crate::labelled_image::Photograph;
use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use vitpcm_masks::atomic_file::{AtomicFile, temporary_beside};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Receives the files of an export one by one. Paths are relative, with `/` as separator.
pub trait Destination {
    /// Starts a file.
    fn begin(&mut self, path: &str) -> Result<(), ExportError>;

    /// Appends to the current file.
    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError>;

    /// Completes the current file.
    fn end(&mut self) -> Result<(), ExportError>;

    /// Places an image; does nothing if its file is not known.
    fn place(&mut self, path: &str, photograph: Photograph<'_>) -> Result<(), ExportError> {
        match photograph {
            Photograph::Elsewhere => Ok(()),
            Photograph::Bytes(bytes) => self.file(path, bytes),
            Photograph::Copy(source) | Photograph::Link(source) => {
                let bytes = fs::read(source).map_err(|e| ExportError::io(source, e))?;
                self.file(path, &bytes)
            }
        }
    }

    /// Writes a whole file.
    fn file(&mut self, path: &str, bytes: &[u8]) -> Result<(), ExportError> {
        self.begin(path)?;
        self.write(bytes)?;
        self.end()
    }
}

/// A folder on disk; created if missing.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    current: Option<(PathBuf, AtomicFile)>,
}

impl Folder {
    /// Writes files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Folder {
        Folder { root: root.into(), current: None }
    }

    fn made(&self, path: &str) -> Result<PathBuf, ExportError> {
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(|e| ExportError::io(folder, e))?;
        Ok(path)
    }
}

impl Destination for Folder {
    fn begin(&mut self, path: &str) -> Result<(), ExportError> {
        let path = self.made(path)?;
        let file = AtomicFile::create(&path).map_err(|e| ExportError::io(&path, e))?;
        self.current = Some((path, file));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        let (path, file) = self.current.as_mut().expect("a file was begun");
        file.write_all(bytes).map_err(|e| ExportError::io(path.as_path(), e))
    }

    fn end(&mut self) -> Result<(), ExportError> {
        let (path, file) = self.current.take().expect("a file was begun");
        file.commit().map_err(|e| ExportError::io(path, e))
    }

    fn place(&mut self, path: &str, photograph: Photograph<'_>) -> Result<(), ExportError> {
        match photograph {
            Photograph::Elsewhere => Ok(()),
            Photograph::Bytes(bytes) => self.file(path, bytes),
            Photograph::Link(source) => {
                let path = self.made(path)?;
                // On another file system, or one without links, a copy serves as well.
                link(source, &path).or_else(|_| copy(source, &path)).map_err(|e| ExportError::io(source, e))
            }
            Photograph::Copy(source) => {
                let path = self.made(path)?;
                copy(source, &path).map_err(|e| ExportError::io(source, e))
            }
        }
    }
}

fn copy(source: &Path, path: &Path) -> io::Result<()> {
    let mut from = fs::File::open(source)?;
    vitpcm_masks::atomic_file::write(path, |file| io::copy(&mut from, file).map(drop))
}

/// Creates a hard link, replacing any file at `path`.
fn link(source: &Path, path: &Path) -> io::Result<()> {
    let temporary = temporary_beside(path)?;
    fs::hard_link(source, &temporary)?;
    let result = fs::rename(&temporary, path);
    // Renaming onto another link to the same file does nothing and leaves this one.
    let _ = fs::remove_file(&temporary);
    result
}

/// A zip archive in any writer. [`Zip::finish`] returns the writer.
pub struct Zip<W: Write + Seek> {
    writer: ZipWriter<W>,
    /// The current entry, for messages.
    entry: String,
}

impl<W: Write + Seek> Zip<W> {
    /// An empty archive.
    pub fn new(writer: W) -> Zip<W> {
        Zip { writer: ZipWriter::new(writer), entry: String::new() }
    }

    /// Writes the archive's directory, which completes it.
    pub fn finish(self) -> Result<W, ExportError> {
        let entry = self.entry;
        self.writer.finish().map_err(|e| ExportError::io(entry, e.into()))
    }
}

impl<W: Write + Seek> Destination for Zip<W> {
    fn begin(&mut self, path: &str) -> Result<(), ExportError> {
        // PNG and JPEG do not shrink by compressing them again.
        let is_packed = [".png", ".jpg", ".jpeg", ".webp"].iter().any(|end| path.ends_with(end));
        let method = if is_packed { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        self.entry = path.to_string();
        let options = SimpleFileOptions::default().compression_method(method);
        self.writer.start_file(path, options).map_err(|e| ExportError::io(path, e.into()))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.writer.write_all(bytes).map_err(|e| ExportError::io(self.entry.as_str(), e))
    }

    fn end(&mut self) -> Result<(), ExportError> {
        Ok(())
    }
}

/// Files in memory, in the order of writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Paths and contents.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Destination for Memory {
    fn begin(&mut self, path: &str) -> Result<(), ExportError> {
        self.files.push((path.to_string(), Vec::new()));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.files.last_mut().expect("a file was begun").1.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), ExportError> {
        Ok(())
    }
}
