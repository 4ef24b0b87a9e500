//! The training loop, top to bottom: open or resume the run folder, take batches, step, validate, keep the best, save.
//!
//! The run folder: `config.toml` (all settings), `model.safetensors` (the best model), `last/` (the full state),
//! `metrics.csv`, TensorBoard's event files, with class activation maps `thresholds.csv`. Every file is replaced whole or
//! only appended to.
//!
//! On several ranks all run this loop in step: each takes its share of every step's images, the gradients are summed,
//! and all take the same step. What decides the course (losses, a wish to stop, validation) is summed as well, so that
//! all decide alike. The first rank alone writes.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use candle_core::Device;
use vitpcm_data::{Loader, LoaderOptions};
use vitpcm_nets::{Localisation, Model, ModelInfo, Parameters, Precision, PretrainedBackbone, Storage};

use crate::batch::TaggedBatch;
use crate::batch_stream::{BatchMaker, StepImages, steps_of_epoch};
use crate::begun_with;
use crate::checkpoint::{self, Progress};
use crate::config::{LocalisationKind, TrainConfig};
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::events::{Event, RunSummary};
use crate::feature_cache::FeatureCache;
use crate::fingerprint;
use crate::metrics_csv::MetricsRow;
use crate::optimiser::{Adam, AdamConfig};
use crate::pcm_step::PcmStep;
use crate::ranks::Ranks;
use crate::run_files::{RunFiles, lock};
use crate::run_start::{
    check_files, images_of_run, initial_state, list_if_changed, open_run_folder, remember_images,
};
use crate::shares::{Shares, StepOfAll};
use crate::state_file::state_path;
use crate::threshold_sweep::ThresholdSweep;
use crate::train_data::{TrainData, remember_held_out};
use crate::validation::{Validation, ValidationImage, Validator};

/// A training run: what on, what with, where to.
#[derive(Debug)]
pub struct TrainJob {
    /// All settings.
    pub config: TrainConfig,
    /// What to train and validate on.
    pub data: TrainData,
    /// What the backbone starts from; not looked at where a state is resumed.
    pub backbone: InitialBackbone,
    /// The run folder.
    pub out: PathBuf,
    /// Whether the run is new.
    pub start: Start,
    /// Where it is computed.
    pub device: Device,
    /// In what numbers; may change where a run is resumed.
    pub precision: Precision,
    /// Where frozen features are kept, with `views.pool`; in the run folder if not given. Rounds over the same images may share
    /// it.
    pub features: Option<PathBuf>,
    /// What the model file will say about its origin, beside what the run itself knows.
    pub provenance: BTreeMap<String, String>,
}

/// What the backbone starts from.
#[derive(Debug)]
pub enum InitialBackbone {
    /// Random numbers.
    Scratch,
    /// Published weights, or those of a model of ours.
    Weights(Box<PretrainedBackbone>),
}

/// Whether a run is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// In a folder that is new or empty.
    Fresh,
    /// From the folder's saved state; from the beginning where the run was stopped before it saved one. A folder without a run is
    /// refused, and so are training images that changed since the run began.
    Resume,
    /// The same, and with images that changed.
    ResumeWithChangedImages,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainOutcome {
    /// Why.
    pub ending: Ending,
    /// Steps taken in all.
    pub steps: u64,
    /// The best epoch, from 1, and its score, where there was something to validate on.
    pub best: Option<(usize, f64)>,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All epochs are done.
    Finished,
    /// Validation did not get better for `schedule.patience` epochs.
    OutOfPatience,
    /// It was asked to stop; the state is saved.
    Interrupted,
}

/// Trains, together with all other `ranks`. `events`, to be listened to or dropped, hears what happens (on other ranks than the first, of inputs left
/// out only); `stop`, once true on any rank, ends the run after the running step with its state saved. An error is this
/// rank's: whoever gets one on several ranks ends the others, which wait for it ([`Ranks::abort`]).
pub fn train(
    job: &TrainJob,
    ranks: &Ranks,
    events: &SyncSender<Event>,
    stop: &AtomicBool,
) -> Result<TrainOutcome> {
    let config = &job.config;
    config.check()?;
    if config.model.localisation == LocalisationKind::Cam && job.data.pseudo_masks.is_some() {
        let reason = "class activation maps are no probabilities, and pseudo-masks cannot teach them";
        return Err(TrainError::Config(reason.to_owned()));
    }
    let tell = |event: Event| {
        // A run does not depend on being heard. Of steps, those are left out that nobody has time for.
        match event {
            Event::Step { .. } if ranks.is_first() => drop(events.try_send(event)),
            event if ranks.is_first() || matches!(event, Event::Warning(_)) => drop(events.send(event)),
            _ => {}
        }
    };
    let schedule = &config.schedule;
    let shares = Shares::new(schedule, ranks)?;
    if !ranks.all_equal(fingerprint::of_bytes(config.to_toml()?.bytes()) ^ job.data.fingerprint()) {
        let reason = "the ranks do not see the same settings and the same data set".to_owned();
        return Err(TrainError::Ranks(reason));
    }

    if job.data.training.is_empty() {
        return Err(TrainError::NoImages("the data set has no training split with images".to_owned()));
    }

    // The state: loaded, or new; on other ranks the first one's.
    let _lock = ranks.is_first().then(|| lock(&job.out, "train")).transpose()?;
    let mut saved = match ranks.is_first() {
        true => open_run_folder(job)?,
        false => Some(checkpoint::receive(ranks, &job.device)?),
    };
    let begun_with = saved.as_ref().map(|saved| list_if_changed(job, saved, ranks)).transpose()?.flatten();
    let training = match (&saved, &begun_with) {
        (Some(saved), Some(list)) => images_of_run(job, saved, list)?,
        _ => job.data.training.clone(),
    };
    let is_resumed_here = saved.is_some() && ranks.is_first();
    let accepted_changes = if is_resumed_here { check_files(job, &training)? } else { None };
    let (info, parameters, mut progress) = match &saved {
        Some(saved) => (saved.info.clone(), saved.parameters.clone(), saved.progress.clone()),
        None => initial_state(job)?,
    };
    let network = info.network.clone();
    let patch = network.backbone.patch();
    let maker = config.view_maker(patch);
    let features = FeatureCache::of_run(job, &network.backbone, &training, &parameters)?.map(Arc::new);
    let new_phase = |epoch: usize, parameters: Parameters| -> Result<(PcmStep, Adam, Option<Ema>)> {
        let step =
            PcmStep::new(&network, &config.losses, schedule.trained(epoch), job.precision, parameters)?
                .with_features(features.clone());
        let adam = Adam::new(AdamConfig::of(schedule), step.variables().to_vec())?;
        let average = Ema::of_decay(schedule.ema_decay, step.variables())?;
        Ok((step, adam, average))
    };
    let (mut step, mut adam, mut average) = new_phase(progress.epoch, parameters)?;
    if let Some(saved) = &mut saved {
        saved.restore(&mut adam, average.as_mut())?;
    }

    // The run folder's files, which the first rank writes.
    let mut files = match ranks.is_first() {
        true => Some(RunFiles::open(&job.out, config, progress.step)?),
        false => None,
    };
    let save = |progress: &mut Progress,
                step: &PcmStep,
                adam: &Adam,
                average: Option<&Ema>,
                files: &Option<RunFiles>| {
        let Some(files) = files else { return Ok(()) };
        // Rows first: a state must never be ahead of its metrics.
        files.metrics.sync()?;
        progress.adam_steps = adam.num_steps;
        progress.average_updates = average.map_or(0, |average| average.num_updates);
        checkpoint::save(&job.out, &info, progress, step, adam, average)?;
        tell(Event::Saved { step: progress.step });
        Ok::<(), TrainError>(())
    };
    if ranks.is_first() && (saved.is_none() || !begun_with::exists(&job.out)) {
        remember_images(job, &training)?;
    }
    if saved.is_none() && ranks.is_first() && !job.data.held_out.is_empty() {
        remember_held_out(&job.out, &job.data.held_out)?;
    }
    if saved.is_none() {
        save(&mut progress, &step, &adam, average.as_ref(), &files)?;
    }
    if ranks.is_first() {
        checkpoint::send(&job.out, ranks)?;
        begun_with.map(|list| ranks.broadcast(list));
    }

    // The data.
    let (num_images, num_found) = (training.len(), job.data.training.len());
    let loader = Loader::new(training, maker, loader_options(job));
    let mut batch_maker = BatchMaker {
        maker,
        normalisation: info.normalisation,
        num_classes: network.num_classes,
        device: job.device.clone(),
        shares: shares.clone(),
        view_set: None,
    };
    let validator = validator(job, &loader);
    let steps_per_epoch = num_images.div_ceil(schedule.effective_batch) as u64;
    let num_steps = steps_per_epoch * schedule.epochs as u64;
    tell(Event::Started(RunSummary {
        steps_before: progress.step,
        num_images,
        num_validation_images: validator.images.len(),
        num_validation_masks: validator.images.iter().filter(|image| image.truth.is_some()).count(),
        num_classes: info.classes.len(),
        num_epochs: schedule.epochs,
        steps_per_epoch,
        num_parameters: network.num_parameters(),
        train_size: info.train_size,
    }));
    let notes = [accepted_changes, shares.unevenness(), ranks.connect_devices(&job.device)];
    notes.into_iter().flatten().for_each(|text| tell(Event::Note(text)));
    if num_found < num_images && ranks.is_first() {
        tell(Event::Warning(begun_with::warning(num_images - num_found, num_images)));
    }

    let (session_start, steps_before) = (Instant::now(), progress.step);
    let mut last_save = Instant::now();
    let mut warned: HashSet<String> = HashSet::new();
    let mut warn = |text: String| {
        if warned.insert(text.clone()) {
            tell(Event::Warning(text));
        }
    };
    let outcome = |ending: Ending, progress: &Progress| {
        Ok(TrainOutcome { ending, steps: progress.step, best: progress.best })
    };
    while progress.epoch < schedule.epochs {
        if progress.epochs_since_best >= schedule.patience {
            return outcome(Ending::OutOfPatience, &progress);
        }
        let view_set = config.views.view_set(progress.epoch);
        batch_maker.view_set = features.is_some().then_some(view_set);
        let steps = steps_of_epoch(&loader, &batch_maker, view_set, progress.images_taken);
        let mut step_start = Instant::now();
        // Steps, until the epoch's images are used up.
        for images in steps {
            let StepImages { batches, broken, num_places } = images?;
            broken.iter().for_each(|reason| warn(format!("{reason}; left out of the training")));
            progress.images_taken += num_places;
            let is_last = progress.images_taken == num_images;
            let mut dropout = progress.dropout.after_batches(shares.own_batches(num_places).start);
            let (losses, gradients) = step.gradients(&batches, &mut dropout)?;
            progress.dropout = progress.dropout.after_batches(shares.num_batches(num_places));
            let own_images: usize = batches.iter().map(TaggedBatch::len).sum();
            let StepOfAll { losses, num_images: step_images, stop: is_stopped } =
                StepOfAll::sum(ranks, &losses, own_images, stop.load(Ordering::Relaxed));
            if step_images == 0 {
                continue; // none of them could be read; behind the last step, the epoch ends without a row to validate on
            }
            if !losses.are_finite() {
                let own = batches.iter().flat_map(|batch| &batch.names).map(|name| format!("{name}\n"));
                let names = ranks.gather(own.collect::<String>().into_bytes()).concat();
                return Err(TrainError::NotFinite {
                    epoch: progress.epoch + 1,
                    step: progress.step + 1,
                    mce: losses.mce,
                    et: losses.et,
                    masks: losses.masks,
                    l2: losses.l2,
                    names: String::from_utf8_lossy(&names).lines().map(str::to_owned).collect(),
                });
            }
            let share = own_images as f64 / step_images as f64;
            let gradients = ranks.sum_gradients(gradients, share, step.variables())?;
            let epochs_done = progress.epoch as f64
                + progress.epoch_steps as f64 / steps_per_epoch.max(progress.epoch_steps + 1) as f64;
            let rate = schedule.rate_at(epochs_done, adam.num_steps);
            adam.step(&gradients, rate)?;
            if let Some(average) = &mut average {
                average.update(step.variables())?;
            }

            progress.step += 1;
            progress.epoch_steps += 1;
            progress.epoch_loss_sum += f64::from(losses.total);
            let row = MetricsRow {
                epoch: progress.epoch + 1,
                step: progress.step,
                images: progress.images_taken,
                rate,
                loss_mce: losses.mce,
                loss_et: losses.et,
                loss_masks: losses.masks,
                loss_l2: losses.l2,
                loss: losses.total,
                images_per_second: step_images as f64 / step_start.elapsed().as_secs_f64().max(1e-9),
            };
            step_start = Instant::now();
            if let Some(files) = &mut files {
                files.write_step_events(&row)?;
                if !is_last {
                    files.metrics.append(&row, None)?;
                }
            }
            progress.waiting_row = is_last.then(|| row.clone());
            let done = (progress.step - steps_before) as f64;
            let seconds_left =
                session_start.elapsed().as_secs_f64() / done * num_steps.saturating_sub(progress.step) as f64;
            tell(Event::Step { row, num_steps, seconds_left });

            if is_stopped {
                save(&mut progress, &step, &adam, average.as_ref(), &files)?;
                keep_first_model(job, ranks, &progress, model_now(&info, &step, average.as_ref()))?;
                return outcome(Ending::Interrupted, &progress);
            }
            if !is_last && last_save.elapsed().as_secs_f64() > 60.0 * config.loader.save_minutes {
                save(&mut progress, &step, &adam, average.as_ref(), &files)?;
                last_save = Instant::now();
            }
        }
        if progress.epoch_steps == 0 {
            return Err(TrainError::NoImages(format!("none of the {num_images} images could be read")));
        }

        // The epoch's end: validate, keep the model if it is the best, save.
        let epoch = progress.epoch + 1;
        if ranks.size() > 1 && !ranks.all_equal(fingerprint::of_weights(step.variables())?) {
            let reason =
                format!("the ranks' weights differ after epoch {epoch}: one of them computes wrongly");
            return Err(TrainError::Ranks(reason));
        }
        let mut model = model_now(&info, &step, average.as_ref());
        let due = epoch.is_multiple_of(config.validation.every_epochs) || epoch == schedule.epochs;
        let validated = if due { validator.validate(&model, ranks, stop)? } else { None };
        let is_stopped = ranks.any(stop.load(Ordering::Relaxed));
        if is_stopped && validated.is_none() {
            save(&mut progress, &step, &adam, average.as_ref(), &files)?;
            keep_first_model(job, ranks, &progress, model)?;
            return outcome(Ending::Interrupted, &progress);
        }
        let (validation, sweep, reviews) = match validated {
            None => (None, None, Vec::new()),
            Some(validated) => {
                if let Some(files) = &mut files {
                    files.write_validation_events(progress.step, &validated)?;
                }
                validated.warnings.into_iter().for_each(&mut warn);
                (Some(validated.validation), validated.sweep, validated.reviews)
            }
        };
        let is_kept = match (&validation, progress.best) {
            _ if job.data.keeps_newest() => true,
            (Some(now), Some((_, best))) => now.score > best,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if is_kept {
            let chosen = validation.as_ref().filter(|_| !job.data.keeps_newest());
            progress.best = chosen.map(|validation| (epoch, validation.score));
            progress.epochs_since_best = 0;
            describe_model(&mut model.info, epoch, progress.step, validation.as_ref());
            if let Some(sweep) = &sweep {
                take_threshold(&mut model.info, sweep);
            }
            if ranks.is_first() {
                if let Some(sweep) = &sweep {
                    sweep.write(&job.out.join("thresholds.csv"))?;
                }
                model.save(job.out.join("model.safetensors"), Storage::F32)?;
            }
        } else if validation.is_some() {
            progress.epochs_since_best += 1;
        }
        if let (Some(row), Some(files)) = (progress.waiting_row.take(), &mut files) {
            files.metrics.append(&row, validation.as_ref())?;
        }
        let mean_loss = (progress.epoch_loss_sum / progress.epoch_steps as f64) as f32;
        tell(Event::Epoch { epoch, mean_loss, validation, reviews, is_kept });

        progress.epoch += 1;
        (progress.images_taken, progress.epoch_steps, progress.epoch_loss_sum) = (0, 0, 0.0);
        if schedule.trained(progress.epoch) != schedule.trained(progress.epoch - 1) {
            (step, adam, average) = new_phase(progress.epoch, step.parameters())?;
        }
        save(&mut progress, &step, &adam, average.as_ref(), &files)?;
        last_save = Instant::now();
        if is_stopped && progress.epoch < schedule.epochs {
            keep_first_model(job, ranks, &progress, model)?;
            return outcome(Ending::Interrupted, &progress);
        }
    }
    outcome(Ending::Finished, &progress)
}

/// The network as it is validated and kept: of averaged weights where they are averaged.
fn model_now(info: &ModelInfo, step: &PcmStep, average: Option<&Ema>) -> Model {
    let parameters = match average {
        Some(average) => average.apply(step.parameters()),
        None => step.parameters(),
    };
    Model { info: info.clone(), parameters }
}

/// Leaves a model that can be used where a run is stopped before an epoch's was kept.
fn keep_first_model(job: &TrainJob, ranks: &Ranks, progress: &Progress, mut model: Model) -> Result<()> {
    let has_kept_one = match job.data.keeps_newest() {
        true => progress.epoch > 0,
        false => progress.best.is_some(),
    };
    if has_kept_one || !ranks.is_first() {
        return Ok(());
    }
    describe_model(&mut model.info, progress.epoch + 1, progress.step, None);
    Ok(model.save(job.out.join("model.safetensors"), Storage::F32)?)
}

/// Whether a run folder holds a state to resume from.
pub fn has_saved_state(out: &Path) -> bool {
    state_path(out).is_file()
}

fn loader_options(job: &TrainJob) -> LoaderOptions {
    let loader = &job.config.loader;
    LoaderOptions {
        seed: job.config.seed,
        threads: NonZeroUsize::new(loader.threads),
        ahead: loader.ahead,
        cache_bytes: loader.cache_megabytes.saturating_mul(1 << 20),
        limits: job.data.limits.clone(),
        pseudo_masks: job.data.pseudo_masks(),
    }
}

/// The validation images, evenly chosen where there are more than asked for.
fn validator<'a>(job: &'a TrainJob, training: &Loader) -> Validator<'a> {
    let all = &job.data.validation;
    let count = all.len().min(job.config.validation.max_images);
    let images: Vec<ValidationImage> = (0..count).map(|i| all[i * all.len() / count].clone()).collect();
    let tagged = images.iter().map(|image| image.image.clone()).collect();
    let loader = training.of_other_images(tagged);
    let (config, classes, limits) = (&job.config, &job.data.classes, job.data.limits.clone());
    Validator {
        config,
        classes,
        images,
        loader,
        limits,
        device: &job.device,
        precision: job.precision,
        chooses_epoch: !job.data.keeps_newest(),
    }
}

/// What the model file says about how it came about.
fn describe_model(info: &mut ModelInfo, epoch: usize, step: u64, validation: Option<&Validation>) {
    let mut say = |key: &str, value: String| info.provenance.insert(key.to_owned(), value);
    say("epoch", epoch.to_string());
    say("step", step.to_string());
    let Some(validation) = validation else { return };
    if let Some(miou) = validation.miou {
        say("val_miou_tags_given", format!("{miou:.2}"));
    }
    say("val_tag_f1", format!("{:.2}", validation.tag_f1));
}

/// The background threshold that did best, and on what it was chosen.
fn take_threshold(info: &mut ModelInfo, sweep: &ThresholdSweep) {
    let (Some(best), [first, .., last]) = (sweep.best(), sweep.rows.as_slice()) else { return };
    info.network.localisation = Localisation::Cam { background_threshold: best.threshold };
    let text = format!(
        "{:.2}, the best of {} from {:.2} to {:.2} by the mIoU of {} validation masks",
        best.threshold,
        sweep.rows.len(),
        first.threshold,
        last.threshold,
        sweep.num_masks
    );
    info.provenance.insert("background_threshold".to_owned(), text);
}
