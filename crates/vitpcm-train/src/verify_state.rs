//! The full state of a verification run, `last/state.safetensors`: weights, velocities, average, place in the epoch. One
//! file, of which there is always a whole one.

use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use vitpcm_nets::{DeepLabInfo, Parameters, WeightFile};

use crate::ema::Ema;
use crate::error::Result;
use crate::sgd::Sgd;
use crate::state_file::{SavedTensors, WEIGHT, Words, check_format, read_tensors, state_path, word};
use crate::verify_step::VerifyStep;

const FORMAT: &str = "vitpcm-verification-state";
/// In front of tensor names: what they are.
const VELOCITY: &str = "velocity/";

/// Where a run stands, tensors apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    /// The running epoch, from 0.
    pub(crate) epoch: u64,
    /// Images of the epoch's order that were taken, broken ones included.
    pub(crate) images_taken: usize,
    /// Steps of the whole run.
    pub(crate) step: u64,
    /// Tells other images and classes from those the run began with.
    pub(crate) data_fingerprint: u64,
}

/// A state as it was saved.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) info: DeepLabInfo,
    pub(crate) parameters: Parameters,
    pub(crate) progress: Progress,
    /// Velocities, and averages where weights are averaged.
    pub(crate) tensors: SavedTensors,
}

/// Writes the state. On any failure the one before stays.
pub(crate) fn save(
    out: &Path,
    info: &DeepLabInfo,
    progress: &Progress,
    step: &VerifyStep,
    sgd: &Sgd,
    average: Option<&Ema>,
) -> Result<()> {
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    let parameters = step.parameters();
    tensors.extend(parameters.iter().map(|(name, tensor)| (format!("{WEIGHT}{name}"), tensor.clone())));
    let velocities = sgd.moving.iter();
    tensors.extend(velocities.map(|moving| (format!("{VELOCITY}{}", moving.name), moving.velocity.clone())));
    tensors.extend(average.into_iter().flat_map(Ema::to_save));
    Words::new(&state_path(out), FORMAT).with("info", info)?.with("progress", progress)?.write(&tensors)
}

/// Whether a file says that it is a state of this kind.
pub(crate) fn is_state(file: &WeightFile) -> bool {
    file.metadata().get("format").is_some_and(|format| format == FORMAT)
}

/// A state from its open file.
pub(crate) fn parse(file: &WeightFile, device: &Device) -> Result<Saved> {
    check_format(file, FORMAT)?;
    let (info, progress) = (word(file, "info")?, word(file, "progress")?);
    let (parameters, tensors) = read_tensors(file, device)?;
    Ok(Saved { info, parameters, progress, tensors })
}

/// Puts saved velocities into a new optimiser of the same parameters, and the average into a new average.
pub(crate) fn restore(
    tensors: &mut SavedTensors,
    progress: &Progress,
    sgd: &mut Sgd,
    average: Option<&mut Ema>,
) -> Result<()> {
    for moving in &mut sgd.moving {
        moving.velocity = tensors.take(VELOCITY, &moving.name, &moving.velocity)?;
    }
    match average {
        // An average is kept from the first step on or not at all.
        Some(average) => average.restore(progress.step, tensors),
        None => Ok(()),
    }
}
