//! Training from tags: what a run needs, and what the loop leaves to this kind of training. It is validated at the end of every
//! epoch; the best model is kept, or the newest one where nothing may choose.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender};

use candle_core::{Device, Tensor, Var};
use vitpcm_data::{Loader, LoaderOptions, TaggedImage};
use vitpcm_masks::resampling::Alignment;
use vitpcm_nets::{
    BackboneConfig, Dropout, GridAlignment, Initialisation, Localisation, Model, ModelInfo, Normalisation,
    Parameters, Precision, Storage, VitConfig,
};

use crate::batch::TaggedBatch;
use crate::batch_stream::{BatchMaker, StepImages, steps_of_epoch};
use crate::checkpoint::Progress;
use crate::config::{LocalisationKind, TrainConfig};
use crate::error::{Result, TrainError};
use crate::events::{Ending, Event, RunSummary, TrainOutcome};
use crate::feature_cache::FeatureCache;
use crate::losses::{Losses, OF_TAGS};
use crate::metrics_csv::Columns;
use crate::optimiser::UpdateRule;
use crate::pcm_step::PcmStep;
use crate::ranks::Ranks;
use crate::run_loop::{KeptAt, Plan, Training};
use crate::run_start::{self, Begun, InitialBackbone, RunStart, Start};
use crate::settings::Settings;
use crate::shares::Shares;
use crate::threshold_sweep::ThresholdSweep;
use crate::train_data::TrainData;
use crate::validation::{Validated, Validation, Validator, spread};

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

/// Trains, together with all other `ranks`. `events`, to be listened to or dropped, hears what happens (on other ranks than the first, of inputs left
/// out only); `stop`, once true on any rank, ends the run after the running step with its state saved. An error is this
/// rank's: whoever gets one on several ranks ends the others, which wait for it ([`Ranks::abort`]).
pub fn train(
    job: &TrainJob,
    ranks: &Ranks,
    events: &SyncSender<Event>,
    stop: &AtomicBool,
) -> Result<TrainOutcome> {
    job.config.check()?;
    if job.config.model.localisation == LocalisationKind::Cam && job.data.pseudo_masks.is_some() {
        let reason = "class activation maps are no probabilities, and pseudo-masks cannot teach them";
        return Err(TrainError::Config(reason.to_owned()));
    }
    let shares = Shares::new(&job.config.schedule, ranks)?;
    if job.data.training.is_empty() {
        return Err(TrainError::NoImages("the data set has no training split with images".to_owned()));
    }
    let run = RunStart {
        command: "train",
        out: &job.out,
        start: job.start,
        device: &job.device,
        limits: &job.data.limits,
        settings: job.config.to_toml()?,
        found: job.data.found(),
        fingerprint: &|images| job.data.fingerprint_of(images),
        other_data: match job.data.pseudo_masks {
            Some(_) => "the run began without pseudo-masks",
            None => "the run began with pseudo-masks",
        },
        held_out: &job.data.held_out,
    };
    let mut begun = run_start::begin(&run, ranks, |info| job.fault_of(info), || job.initial())?;
    begun.notes.extend(shares.unevenness());
    let training = TagTraining::new(job, &begun, shares, ranks)?;
    let plan = training.plan();
    run_start::open(&run, begun, plan, training, ranks, events)?.run(stop)
}

impl TrainJob {
    /// Why a run that began with such a network cannot go on.
    fn fault_of(&self, info: &ModelInfo) -> Option<&'static str> {
        if info.classes != self.data.classes.names() {
            return Some("the run began with another data set: the classes differ");
        }
        let backbone = info.network.backbone;
        let expected = self.config.network(backbone, self.data.classes.len());
        let is_same =
            info.network == expected && info.train_size == self.config.model.grid * backbone.patch();
        (!is_same).then_some("the run began with another network: its [model] settings cannot change")
    }

    /// A network that has seen nothing of this data set.
    fn initial(&self) -> Result<(ModelInfo, Parameters)> {
        let config = &self.config;
        let (backbone, likely) = match &self.backbone {
            InitialBackbone::Weights(imported) => (imported.config, imported.normalisation),
            // Positions need no resizing where none were learned.
            InitialBackbone::Scratch => {
                let backbone = match BackboneConfig::named(&config.model.backbone)? {
                    BackboneConfig::Vit(vit) => VitConfig { position_grid: config.model.grid, ..vit }.into(),
                    convolutional => convolutional,
                };
                (backbone, Normalisation::HALF)
            }
        };
        let patch = backbone.patch();
        let network = config.network(backbone, self.data.classes.len());
        let initialisation =
            Initialisation { seed: config.seed, classifier_std: config.model.classifier_std };
        let parameters = match &self.backbone {
            InitialBackbone::Scratch => initialisation.network(&network, &self.device)?,
            InitialBackbone::Weights(imported) => {
                let mut parameters = initialisation.head(&network, &self.device)?;
                parameters.extend(imported.parameters.to_device(&self.device)?);
                parameters
            }
        };
        let info = ModelInfo {
            network,
            classes: self.data.classes.names().to_vec(),
            train_size: config.model.grid * patch,
            inference_size: config.model.inference_grid * patch,
            normalisation: config.model.normalisation.unwrap_or(likely),
            alignment: match config.views.alignment {
                Alignment::HalfPixel => GridAlignment::HalfPixel,
                Alignment::AlignCorners => GridAlignment::AlignCorners,
            },
            preset: config.preset.name().to_owned(),
            provenance: self.provenance.clone(),
        };
        info.check()?;
        Ok((info, parameters))
    }

    /// What is trained in an epoch.
    fn step(
        &self,
        info: &ModelInfo,
        epoch: usize,
        parameters: Parameters,
        features: &Option<Arc<FeatureCache>>,
    ) -> Result<PcmStep> {
        let TrainConfig { losses, schedule, .. } = &self.config;
        let step = PcmStep::new(&info.network, losses, schedule.trained(epoch), self.precision, parameters)?;
        Ok(step.with_features(features.clone()))
    }
}

/// Training from tags under way.
struct TagTraining<'a> {
    job: &'a TrainJob,
    ranks: &'a Ranks,
    info: ModelInfo,
    loader: Loader,
    batch_maker: BatchMaker,
    validator: Validator<'a>,
    features: Option<Arc<FeatureCache>>,
    step: PcmStep,
}

impl<'a> TagTraining<'a> {
    fn new(job: &'a TrainJob, begun: &Begun<ModelInfo>, shares: Shares, ranks: &'a Ranks) -> Result<Self> {
        let TrainJob { config, data, device, .. } = job;
        let Begun { info, parameters, progress, .. } = begun;
        let training = begun.images(&data.training, |known| {
            TaggedImage::gone(known.image.clone(), known.tags.iter().copied().collect())
        });
        let maker = config.view_maker(info.network.backbone.patch());
        let features =
            FeatureCache::of_run(job, &info.network.backbone, &training, parameters)?.map(Arc::new);
        let options = config.loader.options(config.seed, &data.limits);
        let options = LoaderOptions { pseudo_masks: data.pseudo_masks(), ..options };
        let loader = Loader::new(training, maker, options);
        let images = spread(&data.validation, config.validation.max_images);
        let batch_maker = BatchMaker {
            maker,
            normalisation: info.normalisation,
            num_classes: info.network.num_classes,
            device: device.clone(),
            shares,
            view_set: None,
        };
        let tagged = images.iter().map(|image| image.image.clone()).collect();
        let validator = Validator { job, loader: loader.of_other_images(tagged), images };
        let step = job.step(info, progress.epoch, parameters.clone(), &features)?;
        Ok(Self { job, ranks, info: info.clone(), loader, batch_maker, validator, features, step })
    }

    fn plan(&self) -> Plan {
        let TrainConfig { schedule, loader, .. } = &self.job.config;
        let (num_images, images) = (self.loader.images().len(), &self.validator.images);
        let steps_per_epoch = num_images.div_ceil(schedule.effective_batch) as u64;
        Plan {
            rule: UpdateRule::from(schedule),
            ema_decay: schedule.ema_decay,
            save_minutes: loader.save_minutes,
            epoch_places: num_images,
            columns: Columns {
                losses: &OF_TAGS,
                measures: &["miou", "pixel_accuracy", "tag_f1", "et_loss", "score"],
            },
            summary: RunSummary {
                steps_before: 0,
                num_steps: steps_per_epoch * schedule.epochs as u64,
                num_images,
                num_validation_images: images.len(),
                num_validation_masks: images.iter().filter(|image| image.truth.is_some()).count(),
                num_classes: self.info.classes.len(),
                num_epochs: schedule.epochs,
                steps_per_epoch,
                num_parameters: self.info.network.num_parameters(),
                train_size: self.info.train_size,
            },
        }
    }

    fn model(&self, parameters: Parameters) -> Model {
        Model { info: self.info.clone(), parameters }
    }

    /// Writes a model, on the first rank, with how it came about.
    fn write(&self, mut model: Model, progress: &Progress, validation: Option<&Validation>) -> Result<bool> {
        let mut say = |key: &str, value: String| model.info.provenance.insert(key.to_owned(), value);
        say("epoch", (progress.epoch + 1).to_string());
        say("step", progress.step.to_string());
        if let Some(validation) = validation {
            let measures = [("val_miou_tags_given", validation.miou), ("val_tag_f1", validation.tag_f1)];
            for (key, value) in measures {
                value.map(|value| say(key, format!("{value:.2}")));
            }
        }
        if self.ranks.is_first() {
            model.save(self.job.out.join("model.safetensors"), Storage::F32)?;
        }
        Ok(true)
    }
}

impl Training for TagTraining<'_> {
    type Batch = TaggedBatch;

    fn variables(&self) -> &[(String, Var)] {
        self.step.variables()
    }

    fn parameters(&self) -> Parameters {
        self.step.parameters()
    }

    fn steps(&self, progress: &Progress) -> Receiver<Result<StepImages<TaggedBatch>>> {
        let view_set = self.job.config.views.view_set(progress.epoch);
        let maker =
            BatchMaker { view_set: self.features.as_ref().map(|_| view_set), ..self.batch_maker.clone() };
        steps_of_epoch(&self.loader, &maker, view_set, progress.images_taken)
    }

    fn gradients(
        &self,
        images: &StepImages<TaggedBatch>,
        progress: &mut Progress,
    ) -> Result<(Losses, Vec<Tensor>)> {
        let TrainConfig { seed, model, .. } = &self.job.config;
        let (shares, num_places) = (&self.batch_maker.shares, images.num_places);
        let dropout = progress.dropout.get_or_insert_with(|| Dropout::new(*seed, model.dropout));
        let mut own_dropout = dropout.after_batches(shares.own_batches(num_places).start);
        *dropout = dropout.after_batches(shares.num_batches(num_places));
        self.step.gradients(&images.batches, &mut own_dropout)
    }

    fn rate(&self, progress: &Progress) -> f64 {
        let Progress { epoch, epoch_steps, optimiser_steps, .. } = *progress;
        let schedule = &self.job.config.schedule;
        let steps_per_epoch = self.loader.images().len().div_ceil(schedule.effective_batch) as u64;
        let of_epoch = epoch_steps as f64 / steps_per_epoch.max(epoch_steps + 1) as f64;
        schedule.rate_at(epoch as f64 + of_epoch, optimiser_steps)
    }

    fn is_due(&self, progress: &Progress) -> bool {
        progress.images_taken == self.loader.images().len()
    }

    fn validate(
        &self,
        parameters: &Parameters,
        progress: &Progress,
        stop: &AtomicBool,
    ) -> Result<Option<Validated>> {
        let TrainConfig { schedule, validation, .. } = &self.job.config;
        let epoch = progress.epoch + 1;
        match epoch.is_multiple_of(validation.every_epochs) || epoch == schedule.epochs {
            true => self.validator.validate(&self.model(parameters.clone()), self.ranks, stop),
            false => Ok(None),
        }
    }

    fn keep(&self, parameters: Parameters, at: KeptAt<'_>, progress: &mut Progress) -> Result<bool> {
        let keeps_newest = self.job.data.keeps_newest();
        let mut model = self.model(parameters);
        let KeptAt::Validation(validated) = at else {
            let has_kept_one = if keeps_newest { progress.epoch > 0 } else { progress.best.is_some() };
            return if has_kept_one { Ok(false) } else { self.write(model, progress, None) };
        };
        let validation = validated.map(|validated| &validated.validation);
        let score = validation.and_then(|validation| validation.score);
        let is_best = score > progress.best.map(|(_, best)| best);
        if !keeps_newest && !is_best {
            progress.epochs_since_best += usize::from(score.is_some());
            return Ok(false);
        }
        progress.best = score.filter(|_| !keeps_newest).map(|score| (progress.epoch + 1, score));
        progress.epochs_since_best = 0;
        if let Some(sweep) = validated.and_then(|validated| validated.sweep.as_ref()) {
            take_threshold(&mut model.info, sweep);
            if self.ranks.is_first() {
                sweep.write(&self.job.out.join("thresholds.csv"))?;
            }
        }
        self.write(model, progress, validation)
    }

    fn begin_epoch(&mut self, epoch: usize) -> Result<bool> {
        let schedule = &self.job.config.schedule;
        let is_new_phase = schedule.trained(epoch) != schedule.trained(epoch - 1);
        if is_new_phase {
            self.step = self.job.step(&self.info, epoch, self.step.parameters(), &self.features)?;
        }
        Ok(is_new_phase)
    }

    fn ending(&self, progress: &Progress) -> Option<Ending> {
        let schedule = &self.job.config.schedule;
        if progress.epoch >= schedule.epochs {
            return Some(Ending::Finished);
        }
        (progress.epochs_since_best >= schedule.patience).then_some(Ending::OutOfPatience)
    }
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
