//! The full state of a run of either kind, `last/state.safetensors`: weights, optimiser, average, place in the epoch, best so
//! far. One file, written beside its place and renamed, so that there is always a whole state.

use std::path::Path;

use candle_core::{Device, Tensor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vitpcm_nets::{DeepLabInfo, Dropout, ModelInfo, Parameters, WeightFile};

use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::metrics_csv::MetricsRow;
use crate::optimiser::Optimiser;
use crate::ranks::Ranks;
use crate::state_file::{self, SavedTensors, WEIGHT, Words, check_format, read_tensors, state_path, word};

/// What a state says about its network.
pub(crate) trait NetworkInfo: Serialize + DeserializeOwned {
    /// What the file says that it is.
    const FORMAT: &'static str;
}

/// Training from tags.
impl NetworkInfo for ModelInfo {
    const FORMAT: &'static str = "vitpcm-training-state";
}

/// Training on masks.
impl NetworkInfo for DeepLabInfo {
    const FORMAT: &'static str = "vitpcm-verification-state";
}

/// Where a run stands, tensors apart. What has a default is absent in states that earlier versions saved of verification runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    /// The running epoch, from 0.
    pub(crate) epoch: usize,
    /// Images of the epoch's order that were taken, broken ones included.
    pub(crate) images_taken: usize,
    /// Steps of the whole run.
    pub(crate) step: u64,
    /// Steps of this epoch and the sum of their losses.
    #[serde(default)]
    pub(crate) epoch_steps: u64,
    #[serde(default)]
    pub(crate) epoch_loss_sum: f64,
    /// The last row, where it waits for its validation.
    #[serde(default)]
    pub(crate) waiting_row: Option<MetricsRow>,
    /// The best epoch, from 1, and its score.
    #[serde(default)]
    pub(crate) best: Option<(usize, f64)>,
    /// Validated epochs since.
    #[serde(default)]
    pub(crate) epochs_since_best: usize,
    /// Dropout's counter, from the first step on of a network that has dropout.
    #[serde(default)]
    pub(crate) dropout: Option<Dropout>,
    /// Steps of the optimiser.
    #[serde(default, alias = "adam_steps")]
    pub(crate) optimiser_steps: u64,
    /// Updates of the average; as many as steps where nothing is said.
    #[serde(default)]
    pub(crate) average_updates: Option<u64>,
    /// Tells another data set from the one the run began with.
    pub(crate) data_fingerprint: u64,
}

/// A state as it was saved.
#[derive(Debug)]
pub(crate) struct Saved<I> {
    pub(crate) info: I,
    pub(crate) progress: Progress,
    pub(crate) parameters: Parameters,
    /// Those of the optimiser, and averages where weights are averaged.
    pub(crate) tensors: SavedTensors,
}

/// Writes the state. On any failure the one before stays.
pub(crate) fn save<I: NetworkInfo>(
    out: &Path,
    info: &I,
    progress: &Progress,
    parameters: &Parameters,
    optimiser: &Optimiser,
    average: Option<&Ema>,
) -> Result<()> {
    let weights = parameters.iter().map(|(name, tensor)| (format!("{WEIGHT}{name}"), tensor.clone()));
    let averages = average.into_iter().flat_map(Ema::to_save);
    let tensors: Vec<(String, Tensor)> = weights.chain(optimiser.to_save()).chain(averages).collect();
    Words::new(&state_path(out), I::FORMAT).with("info", info)?.with("progress", progress)?.write(&tensors)
}

/// Reads the state of a run folder; `None` where none was saved yet.
pub(crate) fn load<I: NetworkInfo>(out: &Path, device: &Device) -> Result<Option<Saved<I>>> {
    state_file::open(out)?.map(|file| parse(&file, device)).transpose()
}

/// The first rank's state for all ranks: the first one's file is sent to the others, who get it as if they had read it.
pub(crate) fn send(out: &Path, ranks: &Ranks) -> Result<()> {
    let path = state_path(out);
    if ranks.size() > 1 {
        ranks.broadcast(std::fs::read(&path).map_err(TrainError::io(&path))?);
    }
    Ok(())
}

/// The state that the first rank sends.
pub(crate) fn receive<I: NetworkInfo>(ranks: &Ranks, device: &Device) -> Result<Saved<I>> {
    parse(&WeightFile::from_bytes("the first rank's state", ranks.broadcast(Vec::new()))?, device)
}

/// A state from its open file.
fn parse<I: NetworkInfo>(file: &WeightFile, device: &Device) -> Result<Saved<I>> {
    check_format(file, I::FORMAT)?;
    let (info, progress) = (word(file, "info")?, word(file, "progress")?);
    let (parameters, tensors) = read_tensors(file, device)?;
    Ok(Saved { info, progress, parameters, tensors })
}

/// Reads all of a saved state (`last/state.safetensors` of `train` or `verify`), as resuming it would, and lets go of it.
pub fn check_saved_state(file: &WeightFile) -> Result<()> {
    match file.metadata().get("format").map(String::as_str) {
        Some(DeepLabInfo::FORMAT) => parse::<DeepLabInfo>(file, &Device::Cpu).map(drop),
        _ => parse::<ModelInfo>(file, &Device::Cpu).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::losses::{ET, L2, Losses, MASKS, MCE, OF_TAGS};
    use crate::state_file::drawn;
    use proptest::prelude::*;
    use vitpcm_nets::DropoutRates;

    proptest! {
        #![proptest_config(drawn(500))]

        #[test]
        fn where_a_run_stands_is_read_as_it_was_written(
            [epoch, images_taken, images, epochs_since_best] in any::<[usize; 4]>(),
            [step, epoch_steps, optimiser_steps, average_updates, data_fingerprint, seed] in any::<[u64; 6]>(),
            (epoch_loss_sum, rate) in (0.0..1e9f64, 0.0..1.0f64),
            losses in proptest::option::of(proptest::array::uniform5(0.0..f32::MAX)),
            best in proptest::option::of((any::<usize>(), 0.0..100.0f64)),
            batches in proptest::option::of(0..1000usize),
        ) {
            let rates = DropoutRates { backbone: 0.0, conditioning: 0.1, classifier: 0.5 };
            let waiting_row = losses.map(|[total, values @ ..]| {
                let losses = Losses { total, parts: OF_TAGS.into_iter().zip(values).collect() };
                MetricsRow { epoch, step, images, rate, losses, images_per_second: 0.1 }
            });
            let progress = Progress {
                epoch,
                images_taken,
                step,
                epoch_steps,
                epoch_loss_sum,
                waiting_row,
                best,
                epochs_since_best,
                dropout: batches.map(|batches| Dropout::new(seed, rates).after_batches(batches)),
                optimiser_steps,
                average_updates: Some(average_updates),
                data_fingerprint,
            };
            let text = serde_json::to_string(&progress).unwrap();
            prop_assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
        }
    }

    /// From tags, before the validation of an epoch and before there were pseudo-masks; and on masks.
    #[test]
    fn where_runs_of_earlier_versions_stand_is_still_read() {
        let from_tags = r#"{"epoch":0,"images_taken":20,"step":3,"epoch_steps":3,"epoch_loss_sum":4.5,"waiting_row":
            {"epoch":1,"step":3,"images":20,"rate":0.001,"loss_mce":0.5,"loss_et":0.25,"loss_l2":0.125,"loss":0.875,
            "images_per_second":3.0},"best":null,"epochs_since_best":0,"dropout":{"rates":{"backbone":0.1,"conditioning":
            0.2,"classifier":0.2},"seed":5,"counter":7},"adam_steps":3,"average_updates":2,"data_fingerprint":9}"#;
        let progress: Progress = serde_json::from_str(from_tags).unwrap();
        assert_eq!((progress.optimiser_steps, progress.average_updates), (3, Some(2)));
        let row = progress.waiting_row.unwrap();
        let [mce, et, masks, l2] = [MCE, ET, MASKS, L2].map(|name| row.losses.get(name));
        assert_eq!((row.losses.total, [mce, et, masks, l2]), (0.875, [0.5, 0.25, 0.0, 0.125]));

        let on_masks = r#"{"epoch":1,"images_taken":4,"step":4,"data_fingerprint":9}"#;
        let progress: Progress = serde_json::from_str(on_masks).unwrap();
        assert_eq!((progress.epoch, progress.step, progress.average_updates), (1, 4, None));
        assert!(serde_json::from_str::<Progress>(r#"{"epoch":1,"images_taken":4,"step":4}"#).is_err());
    }
}
