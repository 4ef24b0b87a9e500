//! Packs a download's files: a single file as it is, several as a zip archive.

use crate::answer::Refusal;
use crate::memory::{Budget, Pieces};
use axum::body::Bytes;
use std::collections::VecDeque;
use std::io::{self, Write};
use vitpcm_exports::{Destination, ExportError, Zip};

/// A file to download.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) content_type: &'static str,
    pub(crate) pieces: VecDeque<Bytes>,
}

/// Collects a download's files.
pub(crate) struct Bundle {
    budget: Budget,
    max_bytes: usize,
    content: Content,
    left_out: Option<&'static str>,
    is_leaving_out: bool,
}

enum Content {
    Nothing,
    One(String, Pieces),
    Archive(Box<Zip<Pieces>>),
}

impl Bundle {
    /// For at most `max_bytes`, charged to the budget as they are written.
    pub(crate) fn new(budget: &Budget, max_bytes: usize) -> Bundle {
        let (budget, content) = (budget.clone(), Content::Nothing);
        Bundle { budget, max_bytes, content, left_out: None, is_leaving_out: false }
    }

    /// Skips the file at a path.
    pub(crate) fn leave_out(&mut self, path: &'static str) {
        self.left_out = Some(path);
    }

    /// The single file, or the archive under the given name.
    pub(crate) fn finish(self, archive_name: &str) -> Result<File, ExportError> {
        match self.content {
            Content::One(path, pieces) => {
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                let content_type = match name.rsplit('.').next() {
                    Some("png") => "image/png",
                    Some("json") => "application/json",
                    _ => "application/octet-stream",
                };
                Ok(File { name, content_type, pieces: pieces.into_bytes() })
            }
            Content::Archive(archive) => {
                let pieces = archive.finish()?.into_bytes();
                Ok(File { name: archive_name.to_owned(), content_type: "application/zip", pieces })
            }
            Content::Nothing => Err(failed(io::Error::other("no file in this download"))),
        }
    }
}

impl Destination for Bundle {
    fn begin(&mut self, path: &str) -> Result<(), ExportError> {
        self.is_leaving_out = self.left_out == Some(path);
        if self.is_leaving_out {
            return Ok(());
        }
        let new = || Pieces::new(&self.budget, self.max_bytes);
        self.content = match std::mem::replace(&mut self.content, Content::Nothing) {
            Content::Nothing => Content::One(path.to_owned(), new()),
            Content::One(first, pieces) => {
                let mut archive = Zip::new(new());
                archive.begin(&first)?;
                for piece in pieces.into_bytes() {
                    archive.write(&piece)?;
                }
                archive.end()?;
                archive.begin(path)?;
                Content::Archive(Box::new(archive))
            }
            Content::Archive(mut archive) => {
                archive.begin(path)?;
                Content::Archive(archive)
            }
        };
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        match &mut self.content {
            _ if self.is_leaving_out => Ok(()),
            Content::One(_, pieces) => pieces.write_all(bytes).map_err(failed),
            Content::Archive(archive) => archive.write(bytes),
            Content::Nothing => unreachable!("a file was begun"),
        }
    }

    fn end(&mut self) -> Result<(), ExportError> {
        self.is_leaving_out = false;
        Ok(())
    }
}

fn failed(source: io::Error) -> ExportError {
    ExportError::Io { path: "download".into(), source }
}

impl From<ExportError> for Refusal {
    fn from(error: ExportError) -> Refusal {
        match error {
            ExportError::Io { source, .. } if source.kind() == io::ErrorKind::OutOfMemory => Refusal::busy(),
            other => Refusal::unprocessable(other.to_string()),
        }
    }
}
