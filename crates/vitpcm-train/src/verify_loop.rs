//! The verification network's training, top to bottom: open or resume the run folder, take batches of crops, step,
//! score now and then, save. The run folder is that of training from tags; `model.safetensors` is the newest network,
//! not one chosen by the truth.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use candle_core::Device;
use vitpcm::{Segmenter, SegmenterOptions};
use vitpcm_data::{CropLoader, ImageLimits, LoaderOptions, MaskedImage};
use vitpcm_masks::Classes;
use vitpcm_nets::{
    DeepLabConfig, DeepLabInfo, DeepLabModel, Normalisation, Parameters, Precision, ResNetConfig,
    ResNetVariant, Storage,
};

use crate::begun_with::{self, KnownImage};
use crate::crop_batch::{CropBatchMaker, StepCrops};
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::file_record::{self, FoundImage};
use crate::fingerprint;
use crate::metrics_csv::MetricsCsv;
use crate::pcm_loop::{Ending, Start};
use crate::run_files::{check_empty, check_run, lock, write_settings};
use crate::sgd::Sgd;
use crate::state_file;
use crate::tensorboard::EventFile;
use crate::verify_config::VerifyConfig;
use crate::verify_score::{ScoreOptions, VerifyScores, score_segmenter};
use crate::verify_state::{self, Progress, Saved};
use crate::verify_step::{VerifyLosses, VerifyStep};

/// Of `metrics.csv`.
const HEADING: &str = "epoch,step,images,rate,loss,loss_full,loss_three_quarters,loss_half,loss_largest,\
                       images_per_second,val_miou,val_pixel_accuracy";

/// A verification run: what on, what with, where to.
#[derive(Debug)]
pub struct VerifyJob {
    /// All settings.
    pub config: VerifyConfig,
    /// The classes, background first.
    pub classes: Classes,
    /// Images and pseudo-masks to train on.
    pub training: Vec<MaskedImage>,
    /// Images and true masks to score on; may be empty.
    pub validation: Vec<MaskedImage>,
    /// What the backbone starts from; not looked at where a state is resumed.
    pub backbone: VerifyBackbone,
    /// The run folder.
    pub out: PathBuf,
    /// Whether the run is new.
    pub start: Start,
    /// Where it is computed.
    pub device: Device,
    /// In what numbers; may change where a run is resumed.
    pub precision: Precision,
    /// What is refused before it is decoded.
    pub limits: ImageLimits,
    /// What the model file will say about its origin, beside what the run itself knows.
    pub provenance: BTreeMap<String, String>,
}

/// What the backbone starts from.
#[derive(Debug)]
pub enum VerifyBackbone {
    /// Random numbers.
    Scratch,
    /// Pretrained weights, of ImageNet or of an earlier network.
    Weights {
        /// The numbers of the ResNet.
        config: ResNetConfig,
        /// What its pixels went through.
        normalisation: Normalisation,
        /// Its parameters.
        parameters: Parameters,
    },
}

/// What a run tells whoever started it.
#[derive(Debug, Clone, PartialEq)]
pub enum VerifyEvent {
    /// The run begins or continues.
    Started {
        /// Steps taken before; 0 for a new run.
        steps_before: u64,
        /// Steps in all.
        num_steps: u64,
        /// Images to train on.
        num_images: usize,
        /// Images to score on.
        num_validation_images: usize,
        /// Numbers that the network holds.
        num_parameters: usize,
    },
    /// Something worth knowing that changes nothing.
    Note(String),
    /// An input that is left out, said once each.
    Warning(String),
    /// A step was taken.
    Step {
        /// What is known of it.
        row: VerifyRow,
        /// Seconds left, judged by this session.
        seconds_left: f64,
    },
    /// The network was scored, at one scale.
    Scored {
        /// Steps taken so far.
        step: u64,
        /// Mean IoU in percent.
        miou: Option<f64>,
        /// Images that count.
        num_images: usize,
    },
    /// The state was saved.
    Saved {
        /// Steps taken so far.
        step: u64,
    },
}

/// What is known of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifyRow {
    /// The epoch, from 1.
    pub epoch: u64,
    /// The step of the whole run, from 1.
    pub step: u64,
    /// Images of the epoch taken so far.
    pub images: usize,
    /// Learning rate of the backbone.
    pub rate: f64,
    /// The losses.
    pub losses: VerifyLosses,
    /// Images of this step a second.
    pub images_per_second: f64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyOutcome {
    /// Why.
    pub ending: Ending,
    /// Steps taken in all.
    pub steps: u64,
}

impl VerifyJob {
    fn fingerprint(&self, training: &[MaskedImage]) -> u64 {
        let classes = self.classes.names().iter().map(String::as_bytes);
        let images = training.iter().map(|image| image.name.as_bytes());
        // With a byte between the parts that neither holds.
        fingerprint::of_bytes(classes.chain(images).flat_map(|part| part.iter().copied().chain([255])))
    }

    fn validation_images(&self) -> Vec<MaskedImage> {
        let all = &self.validation;
        let count = all.len().min(self.config.validation.max_images);
        (0..count).map(|i| all[i * all.len() / count].clone()).collect()
    }
}

/// Trains. `events`, to be listened to or dropped, hears what happens; `stop`, once true, ends the run after the running step with its state saved.
pub fn verify(job: &VerifyJob, events: &SyncSender<VerifyEvent>, stop: &AtomicBool) -> Result<VerifyOutcome> {
    let config = &job.config;
    config.check()?;
    // A run does not depend on being heard. Of steps, those are left out that nobody has time for.
    let tell = |event: VerifyEvent| match event {
        VerifyEvent::Step { .. } => drop(events.try_send(event)),
        event => drop(events.send(event)),
    };

    if job.training.is_empty() {
        return Err(TrainError::NoImages("no image has a mask".to_owned()));
    }

    // The state: loaded, or new.
    let _lock = lock(&job.out, "verify")?;
    let saved = open_run_folder(job)?;
    let is_new = saved.is_none();
    let (info, parameters, mut progress, tensors) = match saved {
        Some(Saved { info, parameters, progress, tensors }) => (info, parameters, progress, Some(tensors)),
        None => {
            let (info, parameters, progress) = initial_state(job)?;
            (info, parameters, progress, None)
        }
    };
    let training = images_of_run(job, &progress)?;
    let accepted_changes = match is_new {
        true => None,
        false => file_record::check(&job.out, job.start, &found_images(job, &training), &job.limits)?,
    };
    let step = VerifyStep::new(&info.network, job.precision, config.crops.seen_at, parameters)?;
    let mut sgd = Sgd::new(&config.schedule, step.variables())?;
    let mut average = Ema::of_decay(config.schedule.ema_decay, step.variables())?;
    if let Some(mut tensors) = tensors {
        verify_state::restore(&mut tensors, &progress, &mut sgd, average.as_mut())?;
    }
    write_settings(&job.out, &config.to_toml()?)?;
    let mut metrics = MetricsCsv::open(&job.out.join("metrics.csv"), HEADING, progress.step)?;
    let mut board = EventFile::create(&job.out, progress.step)?;
    let save = |progress: &Progress, sgd: &Sgd, average: Option<&Ema>, metrics: &MetricsCsv| -> Result<()> {
        // Rows first: a state must never be ahead of its metrics.
        metrics.sync()?;
        verify_state::save(&job.out, &info, progress, &step, sgd, average)?;
        tell(VerifyEvent::Saved { step: progress.step });
        Ok(())
    };
    if is_new || !begun_with::exists(&job.out) {
        file_record::remember(&job.out, found_images(job, &training))?;
    }
    if is_new {
        save(&progress, &sgd, average.as_ref(), &metrics)?;
    }

    // The data.
    let (num_images, num_found) = (training.len(), job.training.len());
    let maker = CropBatchMaker {
        loader: CropLoader::new(
            training,
            config.crop_maker(&info.normalisation, job.classes.len()),
            loader_options(job),
        ),
        batch: config.schedule.batch,
        side: config.crops.side,
        normalisation: info.normalisation,
        compare_at: config.crops.compare_at,
        device: job.device.clone(),
    };
    let validation = job.validation_images();
    let num_steps = config.schedule.steps;
    tell(VerifyEvent::Started {
        steps_before: progress.step,
        num_steps,
        num_images,
        num_validation_images: validation.len(),
        num_parameters: info.network.num_parameters(),
    });
    accepted_changes.into_iter().for_each(|text| tell(VerifyEvent::Note(text)));

    let (session_start, steps_before) = (Instant::now(), progress.step);
    let mut last_save = Instant::now();
    let mut warned: HashSet<String> = HashSet::new();
    let mut warn = |text: String| {
        if warned.insert(text.clone()) {
            tell(VerifyEvent::Warning(text));
        }
    };
    if num_found < num_images {
        warn(begun_with::warning(num_images - num_found, num_images));
    }
    while progress.step < num_steps {
        let mut num_used = 0;
        let mut step_start = Instant::now();
        for crops in maker.epoch(progress.epoch, progress.images_taken) {
            let StepCrops { batch, broken, num_places } = crops?;
            broken.into_iter().for_each(|reason| warn(format!("{reason}; left out of the training")));
            progress.images_taken += num_places;
            let Some(batch) = batch else { continue };
            num_used += batch.names.len();
            let (losses, gradients) = step.gradients(&batch)?;
            if !losses.total().is_finite() {
                let (step, loss) = (progress.step + 1, losses.total());
                return Err(TrainError::VerificationNotFinite { step, loss, names: batch.names });
            }
            let rate = config.rate_at(progress.step);
            sgd.step(&gradients, rate)?;
            if let Some(average) = &mut average {
                average.update(step.variables())?;
            }
            progress.step += 1;
            let row = VerifyRow {
                epoch: progress.epoch + 1,
                step: progress.step,
                images: progress.images_taken,
                rate,
                losses,
                images_per_second: batch.names.len() as f64 / step_start.elapsed().as_secs_f64().max(1e-9),
            };
            write_step_events(&mut board, &row)?;
            let done = (progress.step - steps_before) as f64;
            let seconds_left =
                session_start.elapsed().as_secs_f64() / done * num_steps.saturating_sub(progress.step) as f64;
            tell(VerifyEvent::Step { row: row.clone(), seconds_left });

            let is_last = progress.step == num_steps;
            let every = config.validation.every_steps;
            let is_due = is_last || (every > 0 && progress.step.is_multiple_of(every));
            let is_stopped = stop.load(Ordering::Relaxed) && !is_last;
            let mut scores = None;
            if is_due || is_stopped {
                let model = model_now(&info, &step, average.as_ref(), progress.step);
                model.save(job.out.join("model.safetensors"), Storage::F32)?;
                if is_due {
                    scores = score(job, &model, &validation, stop)?;
                }
            }
            metrics.append_line(&metrics_line(&row, scores.as_ref()))?;
            if let Some(scores) = scores {
                write_score_events(&mut board, progress.step, &scores)?;
                let (miou, num_images) = (scores.baseline.mean_iou, scores.num_images);
                tell(VerifyEvent::Scored { step: progress.step, miou, num_images });
                scores.failures.into_iter().for_each(&mut warn);
            }
            let is_stopped = is_stopped || (stop.load(Ordering::Relaxed) && !is_last);
            if is_stopped || is_due || last_save.elapsed().as_secs_f64() > 60.0 * config.loader.save_minutes {
                save(&progress, &sgd, average.as_ref(), &metrics)?;
                last_save = Instant::now();
            }
            if is_stopped {
                return Ok(VerifyOutcome { ending: Ending::Interrupted, steps: progress.step });
            }
            if is_last {
                break;
            }
            step_start = Instant::now();
        }
        if progress.step < num_steps {
            if num_used == 0 && progress.images_taken >= num_images {
                let reason = format!("none of {num_images} images and masks could be used");
                return Err(TrainError::NoImages(reason));
            }
            progress.epoch += 1;
            progress.images_taken = 0;
        }
    }
    Ok(VerifyOutcome { ending: Ending::Finished, steps: progress.step })
}

/// The folder's state, where there is one to go on from.
fn open_run_folder(job: &VerifyJob) -> Result<Option<Saved>> {
    let out = &job.out;
    let refuse = |reason: &str| Err(TrainError::RunFolder { path: out.clone(), reason: reason.to_owned() });
    if job.start == Start::Fresh {
        check_empty(out)?;
        return Ok(None);
    }
    check_run(out)?;
    let Some(file) = state_file::open(out)? else { return Ok(None) };
    let saved = verify_state::parse(&file, &job.device)?;
    let info = &saved.info;
    if info.classes != job.classes.names() {
        return refuse("the run began with other classes");
    }
    if info.network.backbone.name() != job.config.model.backbone || info.crop != job.config.crops.side {
        return refuse(
            "the run began with another network or crop: model.backbone and crops.side cannot change",
        );
    }
    Ok(Some(saved))
}

/// The images that the run began with, those that are gone since as such. Refused where more than that has changed.
fn images_of_run(job: &VerifyJob, progress: &Progress) -> Result<Vec<MaskedImage>> {
    let found = &job.training;
    if progress.data_fingerprint == job.fingerprint(found) {
        return Ok(found.clone());
    }
    let refuse = |reason: String| TrainError::RunFolder { path: job.out.clone(), reason };
    let image = |(known, place): (KnownImage, Option<usize>)| match place {
        Some(index) => found[index].clone(),
        None => MaskedImage::gone(known.image),
    };
    let places = begun_with::places(&begun_with::read(&job.out)?, found.iter().map(Into::into));
    let training: Vec<MaskedImage> = places.map_err(refuse)?.into_iter().map(image).collect();
    if progress.data_fingerprint != job.fingerprint(&training) {
        return Err(refuse("the run began with other training images".to_owned()));
    }
    Ok(training)
}

fn found_images(job: &VerifyJob, training: &[MaskedImage]) -> Vec<FoundImage> {
    let uses_scores = job.config.crops.unsure_below > 0.0;
    let files = |image: &MaskedImage| {
        let scores = uses_scores.then(|| image.scores.clone());
        [image.image.clone(), image.mask.clone()].into_iter().chain(scores).collect()
    };
    training.iter().map(|image| (image.into(), files(image))).collect()
}

/// A network that has seen nothing of these images.
fn initial_state(job: &VerifyJob) -> Result<(DeepLabInfo, Parameters, Progress)> {
    let config = &job.config;
    let (backbone, likely) = match &job.backbone {
        VerifyBackbone::Weights { config, normalisation, .. } => (*config, *normalisation),
        VerifyBackbone::Scratch => {
            (ResNetVariant::named(&config.model.backbone)?.config(), Normalisation::IMAGENET)
        }
    };
    let network = DeepLabConfig::new(backbone, job.classes.len());
    let mut parameters = network.initial_head(config.seed, &job.device)?;
    parameters.extend(match &job.backbone {
        VerifyBackbone::Weights { parameters, .. } => parameters.to_device(&job.device)?,
        VerifyBackbone::Scratch => network.initial_backbone(config.seed, &job.device)?,
    });
    let info = DeepLabInfo {
        network,
        classes: job.classes.names().to_vec(),
        crop: config.crops.side,
        normalisation: config.model.normalisation.unwrap_or(likely),
        provenance: job.provenance.clone(),
    };
    info.check()?;
    let progress =
        Progress { epoch: 0, images_taken: 0, step: 0, data_fingerprint: job.fingerprint(&job.training) };
    Ok((info, parameters, progress))
}

fn loader_options(job: &VerifyJob) -> LoaderOptions {
    let loader = &job.config.loader;
    LoaderOptions {
        seed: job.config.seed,
        threads: NonZeroUsize::new(loader.threads),
        ahead: loader.ahead,
        cache_bytes: loader.cache_megabytes.saturating_mul(1 << 20),
        limits: job.limits.clone(),
        pseudo_masks: None,
    }
}

/// The newest network, of averaged weights where they are averaged.
fn model_now(info: &DeepLabInfo, step: &VerifyStep, average: Option<&Ema>, num_steps: u64) -> DeepLabModel {
    let mut info = info.clone();
    info.provenance.insert("step".to_owned(), num_steps.to_string());
    let parameters = match average {
        Some(average) => average.apply(step.parameters()),
        None => step.parameters(),
    };
    DeepLabModel { info, parameters }
}

/// At one scale, without the CRF: what takes seconds.
fn score(
    job: &VerifyJob,
    model: &DeepLabModel,
    images: &[MaskedImage],
    stop: &AtomicBool,
) -> Result<Option<VerifyScores>> {
    let options = SegmenterOptions { precision: job.precision, ..SegmenterOptions::default() };
    let segmenter = Segmenter::of_deeplab(model, &job.device, options)?;
    let pictures = job.config.validation.pictures;
    let options = ScoreOptions { crf: None, limits: job.limits.clone(), pictures };
    score_segmenter(&segmenter, images, &options, &mut |_| (), stop)
}

fn metrics_line(row: &VerifyRow, scores: Option<&VerifyScores>) -> String {
    let VerifyRow { epoch, step, images, rate, losses, images_per_second } = row;
    let total = losses.total();
    let of_scale = |index: usize| losses.labels.get(index).map_or_else(String::new, f32::to_string);
    let [full, three_quarters, half, largest] = std::array::from_fn(of_scale);
    let cell = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
    let miou = cell(scores.and_then(|scores| scores.baseline.mean_iou));
    let accuracy = cell(scores.and_then(|scores| scores.baseline.pixel_accuracy));
    format!(
        "{epoch},{step},{images},{rate:e},{total},{full},{three_quarters},{half},{largest},{images_per_second:.2},\
         {miou},{accuracy}\n"
    )
}

fn write_step_events(board: &mut EventFile, row: &VerifyRow) -> Result<()> {
    let scalars = [
        ("train/loss", row.losses.total()),
        ("train/rate", row.rate as f32),
        ("train/images_per_second", row.images_per_second as f32),
    ];
    scalars.into_iter().try_for_each(|(tag, value)| board.scalar(tag, row.step, value))
}

fn write_score_events(board: &mut EventFile, step: u64, scores: &VerifyScores) -> Result<()> {
    let scalars =
        [("val/miou", scores.baseline.mean_iou), ("val/pixel_accuracy", scores.baseline.pixel_accuracy)];
    for (tag, value) in scalars {
        if let Some(value) = value {
            board.scalar(tag, step, value as f32)?;
        }
    }
    scores.strips.iter().try_for_each(|(name, strip)| board.picture(&format!("val/{name}"), step, strip))
}
