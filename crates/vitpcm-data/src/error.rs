//! Fatal errors about a data set or one of its files; every message names the file and what was expected.

use crate::layout::EXPECTED_LAYOUTS;
use std::path::PathBuf;
use vitpcm_masks::MaskError;

/// An error about a data set as a whole, or about one requested image or mask.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The data set's folder or a requested file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// No known layout was detected.
    #[error("{}: no data set recognised here; expected one of\n{EXPECTED_LAYOUTS}", path.display())]
    NothingRecognised {
        /// The folder.
        path: PathBuf,
    },
    /// No image has a tag.
    #[error("{}: {}{}{HOW_TO_TAG}", path.display(), no_tags(*images), cause_of(cause))]
    NoTags {
        /// The folder, or the tag file.
        path: PathBuf,
        /// Number of its images.
        images: usize,
        /// The probable cause, with its file.
        cause: Option<String>,
    },
    /// A file would be overwritten.
    #[error("{}: another file of this name would be overwritten; choose an empty folder", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// An image that cannot be used.
    #[error("{}: {reason}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// An image in a list is no longer there.
    #[error("{name}: no longer in the data set")]
    Gone {
        /// The image.
        name: String,
    },
    /// A mask or class list is invalid; the message names it.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// Class names conflict.
    #[error("{}: {source}", path.display())]
    Classes {
        /// The data set's folder.
        path: PathBuf,
        /// What is wrong.
        source: MaskError,
    },
    /// A true mask has a label that is no class.
    #[error("{}: class index {label} at column {x}, row {y}; expected 0 to {} or 255", path.display(), num_classes - 1)]
    MaskIndex {
        /// The file.
        path: PathBuf,
        /// The offending index.
        label: u8,
        /// Column of the first such pixel.
        x: usize,
        /// Row of the first such pixel.
        y: usize,
        /// Number of classes, including background.
        num_classes: usize,
    },
    /// The COCO annotations of an image give no mask.
    #[error("{}: {source}", path.display())]
    Annotation {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        source: MaskError,
    },
    /// A fraction that is not between 0 and 1.
    #[error("validation share {0}: expected a number from 0 to 1")]
    BadShare(f64),
}

/// Appended to the message if no image has a tag.
const HOW_TO_TAG: &str = "
  Tags say what is in each image. Write them into tags.csv in this folder, one line per image:
    image,tags
    a.jpg,rust;mildew
    b.jpg,
  (b.jpg shows neither), or sort the images into one folder for each class.";

fn no_tags(images: usize) -> String {
    match images {
        0 => "no tagged image".to_string(),
        1 => "1 image, and it has no tag".to_string(),
        images => format!("{images} images, and none of them has a tag"),
    }
}

fn cause_of(cause: &Option<String>) -> String {
    cause.as_ref().map_or_else(String::new, |cause| format!("\n  {cause}"))
}

impl DataError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        DataError::Io { path: path.into(), source }
    }
}
