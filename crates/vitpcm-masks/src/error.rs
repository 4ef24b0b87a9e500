//! Errors about masks; every message names the file or value and what was expected.

use std::path::PathBuf;

/// An error about a label map, a score map, a class list or a mask file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaskError {
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A mask file is not a PNG, or is damaged.
    #[error("{}: not a readable PNG mask: {reason}", path.display())]
    BadPng {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        reason: String,
    },
    /// A PNG without one class index per pixel.
    #[error("{}: {found}; expected a mask with one class index per pixel (8-bit indexed or grey PNG)", path.display())]
    NotALabelMap {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// A prediction and its truth differ in size.
    #[error(
        "the prediction is {prediction_size:?} pixels, the truth {truth_size:?} (width, height); they must be equal"
    )]
    SizeMismatch {
        /// Width and height of the prediction.
        prediction_size: (usize, usize),
        /// Width and height of the truth.
        truth_size: (usize, usize),
    },
    /// Two masks of one image differ in size.
    #[error("the first mask is {first:?} pixels, the second {second:?} (width, height); they must be equal")]
    SizesDiffer {
        /// Width and height of the first.
        first: (usize, usize),
        /// Width and height of the second.
        second: (usize, usize),
    },
    /// A label that is neither a class nor 255.
    #[error("{map} holds class index {label}, expected 0 to {} or 255 (ignore)", num_classes - 1)]
    LabelOutOfRange {
        /// "the prediction" or "the truth".
        map: &'static str,
        /// The offending index.
        label: u8,
        /// Number of classes, including background.
        num_classes: usize,
    },
    /// Width, height and number of values do not match.
    #[error("{what}: {found} values, expected {expected}")]
    WrongLength {
        /// The kind of map.
        what: &'static str,
        /// Number of values given.
        found: usize,
        /// Number of values expected, as a formula.
        expected: String,
    },
    /// A map without pixels, or with more than fit in 32 bits.
    #[error("{width}×{height} is not a valid size: each side at least 1, at most 4294967295 pixels in all")]
    BadSize {
        /// The requested width.
        width: usize,
        /// The requested height.
        height: usize,
    },
    /// A score that is not a probability.
    #[error("score {value} of class {class} at cell ({x}, {y}) is not a probability")]
    NotAProbability {
        /// The value.
        value: f32,
        /// Class index.
        class: usize,
        /// Column of the cell.
        x: usize,
        /// Row of the cell.
        y: usize,
    },
    /// An invalid class list.
    #[error("class list: {0}")]
    BadClasses(String),
    /// An invalid score file.
    #[error("{}: {reason}; expected an .npz file with `scores`, `classes` and `size`", path.display())]
    BadScoreFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Two subfolders match equally well.
    #[error("{} and {} hold files of the same names; say which of the two folders is meant", one.display(), other.display())]
    AmbiguousFolders {
        /// One of them.
        one: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// Malformed COCO segmentation.
    #[error("COCO segmentation: {0}")]
    BadCocoSegmentation(String),
}

impl MaskError {
    /// An I/O error with the file it concerns.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        MaskError::Io { path: path.into(), source }
    }
}
