//! `train --weights`: the backbone's initial weights, and their description in messages, settings and model files.

use crate::embedded_model;
use anyhow::bail;
use std::fmt;
use std::path::{Path, PathBuf};
use vitpcm::{Device, EMBEDDED_BACKBONE, EMBEDDED_NAME};
use vitpcm_nets::PretrainedBackbone;

/// A backbone's initial weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitialWeights {
    /// The backbone of the embedded model.
    Embedded,
    /// Random initialisation.
    Random,
    /// Published weights or a vitpcm model.
    File(PathBuf),
}

impl InitialWeights {
    /// Parses the option; a file named like a keyword is typed `./none`.
    pub(crate) fn new(typed: &Path) -> Self {
        match typed.to_str() {
            Some("embedded") => InitialWeights::Embedded,
            Some("none") => InitialWeights::Random,
            _ => InitialWeights::File(typed.to_owned()),
        }
    }

    /// The weights, unless random. They must belong to the backbone `expected`, if given.
    pub(crate) fn load(&self, expected: Option<&str>) -> anyhow::Result<Option<PretrainedBackbone>> {
        Ok(match self {
            InitialWeights::Random => None,
            InitialWeights::File(path) => Some(PretrainedBackbone::import(path, expected, &Device::Cpu)?),
            InitialWeights::Embedded => {
                let instead = "--weights FILE, or --weights none to start from random numbers";
                let embedded = PretrainedBackbone::of_model(&embedded_model::load(&Device::Cpu, instead)?)?;
                let name = embedded.config.name();
                if let Some(expected) = expected.filter(|expected| *expected != name) {
                    bail!(
                        "--backbone {expected}: the embedded weights are those of {name}; expected --weights FILE \
                         with those of {expected}, or --weights none for random weights"
                    );
                }
                Some(embedded)
            }
        })
    }

    /// One line for people.
    pub(crate) fn described(&self, backbone: &str) -> String {
        match self {
            InitialWeights::Embedded => format!("starts from the embedded {EMBEDDED_BACKBONE}"),
            InitialWeights::Random => format!("{backbone} starts from random weights"),
            InitialWeights::File(path) => format!("starts from the {backbone} of {}", path.display()),
        }
    }

    /// Its entry in a model file's provenance.
    pub(crate) fn provenance(&self) -> String {
        match self {
            InitialWeights::Embedded => format!("embedded ({EMBEDDED_NAME}): {EMBEDDED_BACKBONE}"),
            InitialWeights::Random => "none: random numbers".to_owned(),
            InitialWeights::File(path) => path.display().to_string(),
        }
    }
}

/// As typed.
impl fmt::Display for InitialWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitialWeights::Embedded => f.write_str("embedded"),
            InitialWeights::Random => f.write_str("none"),
            InitialWeights::File(path) => path.display().fmt(f),
        }
    }
}
