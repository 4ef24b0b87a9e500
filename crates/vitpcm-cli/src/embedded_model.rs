//! The embedded model, and what to type in a build that has none.

use crate::outcome::usage;
use anyhow::anyhow;
use vitpcm::{Device, HAS_EMBEDDED_MODEL, Model};

/// The embedded model. A build without it expects `instead`.
pub(crate) fn load(device: &Device, instead: &str) -> anyhow::Result<Model> {
    check(instead)?;
    Ok(vitpcm::embedded_model(device)?)
}

/// Whether there is an embedded model. A build without it expects `instead`.
pub(crate) fn check(instead: &str) -> anyhow::Result<()> {
    match HAS_EMBEDDED_MODEL {
        true => Ok(()),
        false => Err(usage(anyhow!("this build has no embedded model; expected {instead}"))),
    }
}
