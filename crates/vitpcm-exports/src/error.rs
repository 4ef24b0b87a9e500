//! Errors of exporting masks to other tools and of reading them back.

use std::path::PathBuf;
use vitpcm_data::DataError;
use vitpcm_masks::MaskError;

/// An error about an export or about the files of another tool; the message names the file and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or its path within an archive.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A name that would leave the output folder, or that no file can have.
    #[error("`{name}` cannot be the name of an image: expected a relative path without `..`")]
    BadName {
        /// The name.
        name: String,
    },
    /// A label that is not in the class list.
    #[error("{name}: class index {label}; the class list has 0 to {} (and 255)", num_classes - 1)]
    LabelOutOfRange {
        /// The image.
        name: String,
        /// The offending index.
        label: u8,
        /// Number of classes, including background.
        num_classes: usize,
    },
    /// A format that needs scores was requested, but only a mask is known.
    #[error("{name}: {format} needs scores, and there are none")]
    NoScores {
        /// The image.
        name: String,
        /// The format.
        format: &'static str,
    },
    /// Masks of class indices without class names.
    #[error("{}: no class names: there is no classes.txt beside the masks, and none were given", path.display())]
    NoClassNames {
        /// The folder.
        path: PathBuf,
    },
    /// An invalid file of another tool.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// An error about a mask, a score file or a class list.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// An error about an image or a data set.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl ExportError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        ExportError::Io { path: path.into(), source }
    }

    pub(crate) fn bad_file(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        ExportError::BadFile { path: path.into(), reason: reason.into() }
    }
}
