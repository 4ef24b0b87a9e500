//! Errors of networks and weight files; every message names the file or value and what was expected.

use std::path::{Path, PathBuf};

use crate::import::Mismatch;

/// An error about a network, its weights or a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetsError {
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A weight file is damaged, truncated or of an unknown kind.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// A checksum does not match.
    #[error(
        "{}: {what} does not match its checksum: the file is damaged, or another program changed it; restore it from a \
         copy, or make it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The header, or a tensor's name.
        what: String,
    },
    /// A weight is not finite.
    #[error(
        "{}: the tensor `{name}` holds {value}; expected finite numbers: the file is damaged, or its training diverged; \
         use another",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its value.
        value: f32,
    },
    /// A weight cannot be stored: it is not finite, or out of range for the number format. Nothing was written.
    #[error("{}: not written: the tensor `{name}` holds {value}; {expected}", path.display())]
    NotStorable {
        /// The file to write.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its value.
        value: f32,
        /// The values that can be stored.
        expected: &'static str,
    },
    /// A pickle calls or creates something that no state dict needs. Nothing was executed.
    #[error("{}: the pickle refers to `{global}`, which no plain state dict needs; refused, nothing was executed", path.display())]
    ForbiddenPickle {
        /// The file.
        path: PathBuf,
        /// The Python name in the pickle.
        global: String,
    },
    /// The tensors of a file are not the network's; lists all differences.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// A backbone name that is not in the table of variants.
    #[error("unknown backbone `{name}`; known are {}", known.join(", "))]
    UnknownVariant {
        /// The unknown name.
        name: String,
        /// The names in the table.
        known: Vec<String>,
    },
    /// The numbers describe no possible network.
    #[error("impossible network: {reason}")]
    BadConfig {
        /// What is wrong.
        reason: String,
    },
    /// The mean of models that differ in more than their parameters.
    #[error(
        "they differ in network, classes or pixel statistics; expected several training runs of one network"
    )]
    ModelsDiffer,
    /// Pixels whose shape does not fit the network.
    #[error(
        "pixels of shape {shape:?}; expected [batch, 3, height, width], both multiples of the patch size {patch}"
    )]
    BadPixels {
        /// The given shape.
        shape: Vec<usize>,
        /// Side of a patch in pixels.
        patch: usize,
    },
    /// A parameter of the network is missing.
    #[error("the parameter `{name}` is missing")]
    MissingParameter {
        /// Its name.
        name: String,
    },
    /// The tensor framework failed (shapes, devices, memory).
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, NetsError>;

/// A parser's error, before the file's path is added.
#[derive(Debug)]
pub(crate) enum Fault {
    Malformed(String),
    Damaged(String),
    ForbiddenPickle(String),
}

impl Fault {
    pub(crate) fn at(self, path: &Path) -> NetsError {
        let path = path.to_owned();
        match self {
            Fault::Malformed(reason) => NetsError::Malformed { path, reason },
            Fault::Damaged(what) => NetsError::Damaged { path, what },
            Fault::ForbiddenPickle(global) => NetsError::ForbiddenPickle { path, global },
        }
    }
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Fault::Malformed(reason)
    }
}

impl From<&str> for Fault {
    fn from(reason: &str) -> Self {
        Fault::Malformed(reason.to_owned())
    }
}

/// The result of a parser.
pub(crate) type Parsed<T> = std::result::Result<T, Fault>;
