//! The training loop, of tags and of masks, top to bottom: take a step's images, step, validate, keep a model, save.
//!
//! The run folder: `config.toml` (all settings), `model.safetensors` (the model that is kept), `last/` (the full state),
//! `metrics.csv`, TensorBoard's event files, with class activation maps `thresholds.csv`. Every file is replaced whole or
//! only appended to.
//!
//! On several ranks all run this loop in step: each takes its share of every step's images, the gradients are summed,
//! and all take the same step. What decides the course (losses, a wish to stop, validation) is summed as well, so that
//! all decide alike. The first rank alone writes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use candle_core::{Tensor, Var};
use vitpcm_masks::FolderLock;
use vitpcm_nets::Parameters;

use crate::batch_stream::StepImages;
use crate::checkpoint::{self, NetworkInfo, Progress};
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::events::{Ending, Event, RunSummary, Teller, TrainOutcome};
use crate::fingerprint;
use crate::losses::Losses;
use crate::metrics_csv::{Columns, MetricsRow};
use crate::optimiser::{Optimiser, UpdateRule};
use crate::ranks::Ranks;
use crate::run_files::RunFiles;
use crate::shares::StepOfAll;
use crate::validation::Validated;

/// What the kinds of training differ in: how a step's batches come, what they say of the weights, when the network is validated
/// and how, and which model is kept.
pub(crate) trait Training {
    type Batch;

    /// The parameters that are trained now, in the order of their names.
    fn variables(&self) -> &[(String, Var)];
    /// All parameters as they are now; they change with the next step.
    fn parameters(&self) -> Parameters;

    /// The steps of the running epoch that are left.
    fn steps(&self, progress: &Progress) -> Receiver<Result<StepImages<Self::Batch>>>;
    /// The losses, and the gradient of every variable.
    fn gradients(
        &self,
        images: &StepImages<Self::Batch>,
        progress: &mut Progress,
    ) -> Result<(Losses, Vec<Tensor>)>;
    /// The next step's learning rate.
    fn rate(&self, progress: &Progress) -> f64;

    /// Whether a point is reached at which the network is validated, its model kept and the state saved.
    fn is_due(&self, progress: &Progress) -> bool;
    /// Validates the network; nothing where there is nothing to validate on, or where `stop` was set meanwhile.
    fn validate(
        &self,
        parameters: &Parameters,
        progress: &Progress,
        stop: &AtomicBool,
    ) -> Result<Option<Validated>>;
    /// Keeps the model, if it is to be kept; whether it was.
    fn keep(&self, parameters: Parameters, at: KeptAt<'_>, progress: &mut Progress) -> Result<bool>;
    /// Prepares for an epoch; whether other parameters are trained from there on.
    fn begin_epoch(&mut self, epoch: usize) -> Result<bool>;
    /// Why the run ends here, if it does.
    fn ending(&self, progress: &Progress) -> Option<Ending>;
}

/// When a model may be kept.
#[derive(Clone, Copy)]
pub(crate) enum KeptAt<'a> {
    /// Where the network is validated, if there is something to validate on.
    Validation(Option<&'a Validated>),
    /// Where the run is stopped: so that there is one that can be used.
    Stop,
}

/// The numbers of a run that do not change.
pub(crate) struct Plan {
    pub(crate) rule: UpdateRule,
    /// Of the average of weights; 0 for none.
    pub(crate) ema_decay: f64,
    pub(crate) save_minutes: f64,
    /// Images of an epoch.
    pub(crate) epoch_places: usize,
    pub(crate) columns: Columns,
    pub(crate) summary: RunSummary,
}

/// A run under way.
pub(crate) struct RunLoop<'a, I, T> {
    pub(crate) training: T,
    pub(crate) plan: Plan,
    pub(crate) info: I,
    pub(crate) out: &'a Path,
    pub(crate) progress: Progress,
    pub(crate) optimiser: Optimiser,
    pub(crate) average: Option<Ema>,
    /// On the first rank.
    pub(crate) files: Option<RunFiles>,
    pub(crate) ranks: &'a Ranks,
    pub(crate) teller: Teller<'a>,
    pub(crate) _lock: Option<FolderLock>,
}

impl<I: NetworkInfo, T: Training> RunLoop<'_, I, T> {
    /// Trains to the end, or until `stop`.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> Result<TrainOutcome> {
        let ranks = self.ranks;
        let RunSummary { num_steps, num_images, .. } = self.plan.summary;
        let (session_start, steps_before) = (Instant::now(), self.progress.step);
        let mut last_save = Instant::now();
        loop {
            if let Some(ending) = self.training.ending(&self.progress) {
                return Ok(self.outcome(ending));
            }
            // Steps, until a validation is due or the epoch's images are used up. A row waits where one was due before.
            let first_place = self.progress.images_taken;
            let steps = self.progress.waiting_row.is_none().then(|| self.training.steps(&self.progress));
            let mut step_start = Instant::now();
            for images in steps.into_iter().flatten() {
                let images = images?;
                for reason in &images.broken {
                    self.teller.warn(format!("{reason}; left out of the training"));
                }
                self.progress.images_taken += images.num_places;
                let (losses, gradients) = self.training.gradients(&images, &mut self.progress)?;
                let own_images = images.names.len();
                let StepOfAll { losses, num_images: step_images, stop: is_stopped } =
                    StepOfAll::sum(ranks, losses, own_images, stop.load(Ordering::Relaxed));
                if step_images == 0 {
                    continue; // none of them could be read
                }
                if !losses.are_finite() {
                    return Err(self.not_finite(losses, &images.names));
                }
                let share = own_images as f64 / step_images as f64;
                let gradients = ranks.sum_gradients(gradients, share, self.training.variables())?;
                let rate = self.training.rate(&self.progress);
                self.optimiser.step(&gradients, rate)?;
                if let Some(average) = &mut self.average {
                    average.update(self.training.variables())?;
                }

                let progress = &mut self.progress;
                progress.step += 1;
                progress.epoch_steps += 1;
                progress.epoch_loss_sum += f64::from(losses.total);
                progress.optimiser_steps = self.optimiser.num_steps;
                progress.average_updates = self.average.as_ref().map(|average| average.num_updates);
                let row = MetricsRow {
                    epoch: progress.epoch + 1,
                    step: progress.step,
                    images: progress.images_taken,
                    rate,
                    losses,
                    images_per_second: step_images as f64 / step_start.elapsed().as_secs_f64().max(1e-9),
                };
                step_start = Instant::now();
                if let Some(files) = &mut self.files {
                    files.write_step_events(&row)?;
                }
                progress.waiting_row = Some(row.clone());
                let done = (progress.step - steps_before) as f64;
                let seconds_left = session_start.elapsed().as_secs_f64() / done
                    * num_steps.saturating_sub(progress.step) as f64;
                self.teller.tell(Event::Step { row, seconds_left });

                let is_due = self.training.is_due(&self.progress);
                if !is_due {
                    self.write_row(None)?;
                }
                if is_stopped && self.training.ending(&self.progress).is_none() {
                    return self.interrupted();
                }
                if is_due {
                    break;
                }
                if last_save.elapsed().as_secs_f64() > 60.0 * self.plan.save_minutes {
                    self.save()?;
                    last_save = Instant::now();
                }
            }
            let is_epoch_end = self.progress.images_taken >= self.plan.epoch_places;
            if is_epoch_end && first_place == 0 && self.progress.epoch_steps == 0 {
                return Err(TrainError::NoImages(format!("none of the {num_images} images could be used")));
            }

            // A validation is due, or the epoch is over.
            if self.progress.waiting_row.is_none() && !self.training.is_due(&self.progress) {
                self.next_epoch()?;
                continue;
            }
            if ranks.size() > 1 && !ranks.all_equal(fingerprint::of_weights(self.training.variables())?) {
                let epoch = self.progress.epoch + 1;
                let reason =
                    format!("the ranks' weights differ after epoch {epoch}: one of them computes wrongly");
                return Err(TrainError::Ranks(reason));
            }
            let parameters = self.averaged_parameters();
            let validated = self.training.validate(&parameters, &self.progress, stop)?;
            let is_stopped = ranks.any(stop.load(Ordering::Relaxed));
            if is_stopped && validated.is_none() && self.training.ending(&self.progress).is_none() {
                return self.interrupted();
            }
            let at = KeptAt::Validation(validated.as_ref());
            let is_kept = self.training.keep(parameters.clone(), at, &mut self.progress)?;
            self.write_row(validated.as_ref())?;
            self.tell_validation(validated, is_kept);
            if is_epoch_end {
                self.next_epoch()?;
            }
            self.save()?;
            last_save = Instant::now();
            if is_stopped && self.training.ending(&self.progress).is_none() {
                self.training.keep(parameters, KeptAt::Stop, &mut self.progress)?;
                return Ok(self.outcome(Ending::Interrupted));
            }
        }
    }

    fn outcome(&self, ending: Ending) -> TrainOutcome {
        TrainOutcome { ending, steps: self.progress.step, best: self.progress.best }
    }

    /// Ends the run so that it can be resumed.
    fn interrupted(mut self) -> Result<TrainOutcome> {
        self.save()?;
        self.training.keep(self.averaged_parameters(), KeptAt::Stop, &mut self.progress)?;
        Ok(self.outcome(Ending::Interrupted))
    }

    /// Saves the state, on the first rank.
    pub(crate) fn save(&mut self) -> Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        // Rows first: a state must never be ahead of its metrics.
        files.metrics.sync()?;
        let Self { training, info, out, progress, optimiser, average, .. } = self;
        checkpoint::save(out, info, progress, &training.parameters(), optimiser, average.as_ref())
    }

    /// The weights as they are validated and kept: averaged where they are averaged.
    fn averaged_parameters(&self) -> Parameters {
        match &self.average {
            Some(average) => average.apply(self.training.parameters()),
            None => self.training.parameters(),
        }
    }

    /// Writes the row that waits, with its validation.
    fn write_row(&mut self, validated: Option<&Validated>) -> Result<()> {
        let (row, Some(files)) = (self.progress.waiting_row.take(), &mut self.files) else { return Ok(()) };
        if let Some(validated) = validated {
            files.write_validation_events(self.progress.step, validated)?;
        }
        row.map_or(Ok(()), |row| files.metrics.append(&row, validated.map(|validated| &validated.validation)))
    }

    fn tell_validation(&mut self, validated: Option<Validated>, is_kept: bool) {
        let (validation, reviews) = match validated {
            None => (None, Vec::new()),
            Some(Validated { validation, reviews, warnings, .. }) => {
                warnings.into_iter().for_each(|text| self.teller.warn(text));
                (Some(validation), reviews)
            }
        };
        let Progress { epoch, step, epoch_steps, epoch_loss_sum, .. } = self.progress;
        let mean_loss = (epoch_loss_sum / epoch_steps as f64) as f32;
        let epoch = epoch + 1;
        self.teller.tell(Event::Validated { epoch, step, mean_loss, validation, reviews, is_kept });
    }

    /// Moves on to the next epoch, with a new optimiser where it trains other parameters.
    fn next_epoch(&mut self) -> Result<()> {
        let progress = &mut self.progress;
        progress.epoch += 1;
        (progress.images_taken, progress.epoch_steps, progress.epoch_loss_sum) = (0, 0, 0.0);
        if self.training.begin_epoch(progress.epoch)? {
            self.optimiser = Optimiser::new(self.plan.rule, self.training.variables())?;
            self.average = Ema::of_decay(self.plan.ema_decay, self.training.variables())?;
            progress.optimiser_steps = 0;
            progress.average_updates = self.average.as_ref().map(|_| 0);
        }
        Ok(())
    }

    /// The error of losses that are no numbers, with the images of all ranks.
    fn not_finite(&self, losses: Losses, own_names: &[String]) -> TrainError {
        let own = own_names.iter().map(|name| format!("{name}\n")).collect::<String>();
        let names = self.ranks.gather(own.into_bytes()).concat();
        let names = String::from_utf8_lossy(&names).lines().map(str::to_owned).collect();
        let (epoch, step) = (self.progress.epoch + 1, self.progress.step + 1);
        TrainError::NotFinite { epoch, step, losses, names }
    }
}
