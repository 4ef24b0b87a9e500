//! `train --weights`: what the backbone starts from, and how that is named in messages, settings and model files.

use crate::embedded_model;
use anyhow::bail;
use std::fmt;
use std::path::{Path, PathBuf};
use vitpcm::{Device, EMBEDDED_BACKBONE, EMBEDDED_NAME};
use vitpcm_nets::PretrainedBackbone;

/// What a backbone starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitialWeights {
    /// The backbone of the embedded model.
    Embedded,
    /// Random numbers.
    Random,
    /// Published weights, or a model of ours.
    File(PathBuf),
}

impl InitialWeights {
    /// As typed; a file of a name that has a meaning here is `./none`.
    pub(crate) fn new(typed: &Path) -> Self {
        match typed.to_str() {
            Some("embedded") => InitialWeights::Embedded,
            Some("none") => InitialWeights::Random,
            _ => InitialWeights::File(typed.to_owned()),
        }
    }

    /// The weights, where they are not random; they must be those of the backbone `expected`, if one is named.
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
                         with those of {expected}, or --weights none to start from random numbers"
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
            InitialWeights::Random => format!("{backbone} starts from random numbers"),
            InitialWeights::File(path) => format!("starts from the {backbone} of {}", path.display()),
        }
    }

    /// What a model file says of it.
    pub(crate) fn provenance(&self) -> String {
        match self {
            InitialWeights::Embedded => format!("embedded ({EMBEDDED_NAME}): {EMBEDDED_BACKBONE}"),
            InitialWeights::Random => "none: random numbers".to_owned(),
            InitialWeights::File(path) => path.display().to_string(),
        }
    }
}

/// As it is typed.
impl fmt::Display for InitialWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitialWeights::Embedded => f.write_str("embedded"),
            InitialWeights::Random => f.write_str("none"),
            InitialWeights::File(path) => path.display().fmt(f),
        }
    }
}
