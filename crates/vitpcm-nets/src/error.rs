//! What can go wrong with networks and weight files; every message names the file or the value and what was expected.

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
        /// What the system said.
        source: std::io::Error,
    },
    /// A weight file is broken, cut short, or of a kind we do not read.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// Bytes that are not the ones that were written: a checksum of the file does not hold.
    #[error(
        "{}: {what} does not match its checksum: the file is damaged, or another program changed it; restore it from a \
         copy, or make it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The header, or a tensor by its name.
        what: String,
    },
    /// A file with weights that no network can compute with.
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
        /// What it holds.
        value: f32,
    },
    /// Weights that cannot be stored: not finite, or not in the numbers asked for. Nothing was written.
    #[error("{}: not written: the tensor `{name}` holds {value}; {expected}", path.display())]
    NotStorable {
        /// The file that was to be written.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What it holds.
        value: f32,
        /// What can be stored.
        expected: &'static str,
    },
    /// A pickle wants something called or created that no state dict needs. Nothing was executed.
    #[error("{}: the pickle refers to `{global}`, which no plain state dict needs; refused, nothing was executed", path.display())]
    ForbiddenPickle {
        /// The file.
        path: PathBuf,
        /// The Python name the pickle refers to.
        global: String,
    },
    /// The tensors of a file are not those of the network: everything that differs, at once.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// A backbone name that is not in the table of variants.
    #[error("unknown backbone `{name}`; known are {}", known.join(", "))]
    UnknownVariant {
        /// The name asked for.
        name: String,
        /// The names in the table.
        known: Vec<String>,
    },
    /// A network description with impossible numbers.
    #[error("impossible network: {reason}")]
    BadConfig {
        /// What is wrong with it.
        reason: String,
    },
    /// Models of which the mean would mean nothing.
    #[error("they differ in network, classes or pixel statistics; expected several trainings of one network")]
    ModelsDiffer,
    /// Pixels whose shape does not fit the network.
    #[error(
        "pixels of shape {shape:?}; expected [batch, 3, height, width], both multiples of the patch size {patch}"
    )]
    BadPixels {
        /// The shape given.
        shape: Vec<usize>,
        /// Pixels along the side of a patch.
        patch: usize,
    },
    /// A parameter that the network needs is not in the store.
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

/// What a parser found wrong, before it is known which file it came from.
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
