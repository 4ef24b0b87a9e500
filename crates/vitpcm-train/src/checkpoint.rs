//! The full state of a run, `last/state.safetensors`: weights, optimiser, average, dropout's counter, position in the
//! epoch, best so far. One file, written beside its place and renamed, so that there is always a whole state.

use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use vitpcm_nets::{Dropout, ModelInfo, Parameters, WeightFile};

use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::metrics_csv::MetricsRow;
use crate::optimiser::Adam;
use crate::pcm_step::PcmStep;
use crate::ranks::Ranks;
use crate::state_file::{self, SavedTensors, WEIGHT, Words, check_format, read_tensors, state_path, word};

const FORMAT: &str = "vitpcm-training-state";
/// In front of tensor names: what they are.
const ADAM_MEAN: &str = "adam-mean/";
const ADAM_MEAN_SQUARE: &str = "adam-mean-square/";

/// Where a run stands, tensors apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    /// The running epoch, from 0.
    pub(crate) epoch: usize,
    /// Images of the epoch's order that were taken, broken ones included.
    pub(crate) images_taken: usize,
    /// Steps of the whole run.
    pub(crate) step: u64,
    /// Steps of this epoch and the sum of their losses.
    pub(crate) epoch_steps: u64,
    pub(crate) epoch_loss_sum: f64,
    /// The epoch's last row, which waits for the validation.
    pub(crate) waiting_row: Option<MetricsRow>,
    /// The best epoch, from 1, and its score.
    pub(crate) best: Option<(usize, f64)>,
    /// Validated epochs since.
    pub(crate) epochs_since_best: usize,
    /// Dropout's counter.
    pub(crate) dropout: Dropout,
    pub(crate) adam_steps: u64,
    pub(crate) average_updates: u64,
    /// Tells another data set from the one the run began with.
    pub(crate) data_fingerprint: u64,
}

/// A state as it was saved.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) info: ModelInfo,
    pub(crate) progress: Progress,
    pub(crate) parameters: Parameters,
    tensors: SavedTensors,
}

/// Writes the state. On any failure the one before stays.
pub(crate) fn save(
    out: &Path,
    info: &ModelInfo,
    progress: &Progress,
    step: &PcmStep,
    adam: &Adam,
    average: Option<&Ema>,
) -> Result<()> {
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    tensors
        .extend(step.parameters().iter().map(|(name, tensor)| (format!("{WEIGHT}{name}"), tensor.clone())));
    for moments in &adam.moments {
        tensors.push((format!("{ADAM_MEAN}{}", moments.name), moments.mean.clone()));
        tensors.push((format!("{ADAM_MEAN_SQUARE}{}", moments.name), moments.mean_square.clone()));
    }
    tensors.extend(average.into_iter().flat_map(Ema::to_save));
    Words::new(&state_path(out), FORMAT).with("info", info)?.with("progress", progress)?.write(&tensors)
}

/// Reads the state of a run folder; `None` where none was saved yet.
pub(crate) fn load(out: &Path, device: &Device) -> Result<Option<Saved>> {
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
pub(crate) fn receive(ranks: &Ranks, device: &Device) -> Result<Saved> {
    parse(&WeightFile::from_bytes("the first rank's state", ranks.broadcast(Vec::new()))?, device)
}

/// A state from its open file.
pub(crate) fn parse(file: &WeightFile, device: &Device) -> Result<Saved> {
    check_format(file, FORMAT)?;
    let (info, progress) = (word(file, "info")?, word(file, "progress")?);
    let (parameters, tensors) = read_tensors(file, device)?;
    Ok(Saved { info, progress, parameters, tensors })
}

impl Saved {
    /// Puts the saved means into a new optimiser of the same parameters, and the average into a new average.
    pub(crate) fn restore(&mut self, adam: &mut Adam, average: Option<&mut Ema>) -> Result<()> {
        adam.num_steps = self.progress.adam_steps;
        for moments in &mut adam.moments {
            moments.mean = self.tensors.take(ADAM_MEAN, &moments.name, &moments.mean)?;
            moments.mean_square = self.tensors.take(ADAM_MEAN_SQUARE, &moments.name, &moments.mean_square)?;
        }
        match average {
            Some(average) => average.restore(self.progress.average_updates, &mut self.tensors),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_file::drawn;
    use proptest::prelude::*;
    use vitpcm_nets::DropoutRates;

    fn row() -> impl Strategy<Value = MetricsRow> {
        (any::<[usize; 2]>(), any::<u64>(), 0.0..1.0f64, proptest::array::uniform5(0.0..f32::MAX)).prop_map(
            |([epoch, images], step, rate, [loss_mce, loss_et, loss_masks, loss_l2, loss])| MetricsRow {
                epoch,
                step,
                images,
                rate,
                loss_mce,
                loss_et,
                loss_masks,
                loss_l2,
                loss,
                images_per_second: 0.1,
            },
        )
    }

    fn progress() -> impl Strategy<Value = Progress> {
        let best = proptest::option::of((any::<usize>(), 0.0..100.0f64));
        let rows = (proptest::option::of(row()), best);
        (any::<[usize; 3]>(), any::<[u64; 6]>(), 0.0..1e9f64, rows, 0..1000usize).prop_map(
            |(
                [epoch, images_taken, epochs_since_best],
                numbers,
                epoch_loss_sum,
                (waiting_row, best),
                batches,
            )| {
                let [step, epoch_steps, adam_steps, average_updates, data_fingerprint, seed] = numbers;
                let rates = DropoutRates { backbone: 0.0, conditioning: 0.1, classifier: 0.5 };
                Progress {
                    epoch,
                    images_taken,
                    step,
                    epoch_steps,
                    epoch_loss_sum,
                    waiting_row,
                    best,
                    epochs_since_best,
                    dropout: Dropout::new(seed, rates).after_batches(batches),
                    adam_steps,
                    average_updates,
                    data_fingerprint,
                }
            },
        )
    }

    proptest! {
        #![proptest_config(drawn(500))]

        #[test]
        fn where_a_run_stands_is_read_as_it_was_written(progress in progress()) {
            let text = serde_json::to_string(&progress).unwrap();
            prop_assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
        }
    }
}
