//! The verification network's training on masks: what a run needs, and what the loop leaves to this kind of training. It is
//! validated after every so many steps; `model.safetensors` is the newest network, not one chosen by the truth.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender};

use candle_core::{Device, Tensor, Var};
use vitpcm::{Segmenter, SegmenterOptions};
use vitpcm_data::{CropLoader, ImageLimits, MaskedImage};
use vitpcm_masks::Classes;
use vitpcm_nets::{
    BackboneConfig, DeepLabConfig, DeepLabInfo, DeepLabModel, Normalisation, Parameters, Precision,
    ResNetVariant, Storage,
};

use crate::batch_stream::StepImages;
use crate::checkpoint::Progress;
use crate::crop_batch::{CropBatch, CropBatchMaker};
use crate::error::{Result, TrainError};
use crate::events::{Ending, Event, RunSummary, TrainOutcome};
use crate::fingerprint;
use crate::losses::{Losses, OF_MASKS};
use crate::metrics_csv::Columns;
use crate::optimiser::UpdateRule;
use crate::ranks::Ranks;
use crate::run_loop::{KeptAt, Plan, Training};
use crate::run_start::{self, InitialBackbone, RunStart, Start};
use crate::settings::Settings;
use crate::validation::{Validated, Validation, spread};
use crate::verify_config::VerifyConfig;
use crate::verify_score::{ScoreOptions, VerifyScores, score_segmenter};
use crate::verify_step::VerifyStep;

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
    /// What the backbone, a ResNet, starts from; not looked at where a state is resumed.
    pub backbone: InitialBackbone,
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

/// Trains. `events`, to be listened to or dropped, hears what happens; `stop`, once true, ends the run after the running step with its state saved.
pub fn verify(job: &VerifyJob, events: &SyncSender<Event>, stop: &AtomicBool) -> Result<TrainOutcome> {
    let VerifyJob { config, classes, device, precision, limits, .. } = job;
    config.check()?;
    if job.training.is_empty() {
        return Err(TrainError::NoImages("no image has a mask".to_owned()));
    }
    let run = RunStart {
        command: "verify",
        out: &job.out,
        start: job.start,
        device,
        limits,
        settings: config.to_toml()?,
        found: job.training.iter().map(|image| (image.into(), job.files(image))).collect(),
        fingerprint: &|images| {
            let classes = classes.names().iter().map(String::as_bytes);
            fingerprint::of_parts(classes.chain(images.iter().map(|(image, _)| image.image.as_bytes())))
        },
        other_data: "the run began with other training images",
        held_out: &[],
    };
    let begun = run_start::begin(&run, &Ranks::Single, |info| job.fault_of(info), || job.initial())?;
    let info: DeepLabInfo = begun.info.clone();
    let training = begun.images(&job.training, |known| MaskedImage::gone(known.image.clone()));
    let crop_maker = config.crop_maker(&info.normalisation, classes.len());
    let options = config.loader.options(config.seed, limits);
    let training = MaskTraining {
        job,
        maker: CropBatchMaker {
            loader: CropLoader::new(training, crop_maker, options),
            batch: config.schedule.batch,
            side: config.crops.side,
            normalisation: info.normalisation,
            compare_at: config.crops.compare_at,
            device: device.clone(),
        },
        validation: spread(&job.validation, config.validation.max_images),
        step: VerifyStep::new(&info.network, *precision, config.crops.seen_at, begun.parameters.clone())?,
        info,
    };
    let plan = training.plan();
    run_start::open(&run, begun, plan, training, &Ranks::Single, events)?.run(stop)
}

impl VerifyJob {
    fn files(&self, image: &MaskedImage) -> Vec<PathBuf> {
        let scores = (self.config.crops.unsure_below > 0.0).then(|| image.scores.clone());
        [image.image.clone(), image.mask.clone()].into_iter().chain(scores).collect()
    }

    /// Why a run that began with such a network cannot go on.
    fn fault_of(&self, info: &DeepLabInfo) -> Option<&'static str> {
        let VerifyConfig { model, crops, .. } = &self.config;
        if info.classes != self.classes.names() {
            return Some("the run began with other classes");
        }
        let is_same = info.network.backbone.name() == model.backbone && info.crop == crops.side;
        let fault = "the run began with another network or crop: model.backbone and crops.side cannot change";
        (!is_same).then_some(fault)
    }

    /// A network that has seen nothing of these images.
    fn initial(&self) -> Result<(DeepLabInfo, Parameters)> {
        let VerifyConfig { seed, model, crops, .. } = &self.config;
        let (backbone, likely) = match &self.backbone {
            InitialBackbone::Scratch => {
                (ResNetVariant::named(&model.backbone)?.config(), Normalisation::IMAGENET)
            }
            InitialBackbone::Weights(imported) => match imported.config {
                BackboneConfig::ResNet(resnet) => (resnet, imported.normalisation),
                other => {
                    let reason =
                        format!("the initial weights are those of {}; expected a ResNet's", other.name());
                    return Err(TrainError::Config(reason));
                }
            },
        };
        let network = DeepLabConfig::new(backbone, self.classes.len());
        let mut parameters = network.initial_head(*seed, &self.device)?;
        parameters.extend(match &self.backbone {
            InitialBackbone::Weights(imported) => imported.parameters.to_device(&self.device)?,
            InitialBackbone::Scratch => network.initial_backbone(*seed, &self.device)?,
        });
        let info = DeepLabInfo {
            network,
            classes: self.classes.names().to_vec(),
            crop: crops.side,
            normalisation: model.normalisation.unwrap_or(likely),
            provenance: self.provenance.clone(),
        };
        info.check()?;
        Ok((info, parameters))
    }
}

/// Training on masks under way.
struct MaskTraining<'a> {
    job: &'a VerifyJob,
    info: DeepLabInfo,
    maker: CropBatchMaker,
    validation: Vec<MaskedImage>,
    step: VerifyStep,
}

impl MaskTraining<'_> {
    fn plan(&self) -> Plan {
        let VerifyConfig { schedule, loader, crops, .. } = &self.job.config;
        let (epoch_places, num_steps) = (self.maker.epoch_places(), schedule.steps);
        let steps_per_epoch = (epoch_places / schedule.batch).max(1) as u64;
        Plan {
            rule: UpdateRule::from(schedule),
            ema_decay: schedule.ema_decay,
            save_minutes: loader.save_minutes,
            epoch_places,
            columns: Columns { losses: &OF_MASKS, measures: &["miou", "pixel_accuracy"] },
            summary: RunSummary {
                steps_before: 0,
                num_steps,
                num_images: self.maker.loader.images().len(),
                num_validation_images: self.validation.len(),
                num_validation_masks: self.validation.len(),
                num_classes: self.info.classes.len(),
                num_epochs: num_steps.div_ceil(steps_per_epoch) as usize,
                steps_per_epoch,
                num_parameters: self.info.network.num_parameters(),
                train_size: crops.side,
            },
        }
    }

    fn model(&self, parameters: Parameters, progress: &Progress) -> DeepLabModel {
        let mut info = self.info.clone();
        info.provenance.insert("step".to_owned(), progress.step.to_string());
        DeepLabModel { info, parameters }
    }
}

impl Training for MaskTraining<'_> {
    type Batch = CropBatch;

    fn variables(&self) -> &[(String, Var)] {
        self.step.variables()
    }

    fn parameters(&self) -> Parameters {
        self.step.parameters()
    }

    fn steps(&self, progress: &Progress) -> Receiver<Result<StepImages<CropBatch>>> {
        self.maker.epoch(progress.epoch as u64, progress.images_taken)
    }

    fn gradients(&self, images: &StepImages<CropBatch>, _: &mut Progress) -> Result<(Losses, Vec<Tensor>)> {
        match images.batches.first() {
            Some(batch) => self.step.gradients(batch),
            None => Ok((Losses::zero(&[]), Vec::new())),
        }
    }

    fn rate(&self, progress: &Progress) -> f64 {
        self.job.config.rate_at(progress.step)
    }

    fn is_due(&self, progress: &Progress) -> bool {
        let VerifyConfig { schedule, validation, .. } = &self.job.config;
        let (step, every) = (progress.step, validation.every_steps);
        let is_point = step == schedule.steps || (every > 0 && step.is_multiple_of(every));
        // Without a row to wait for it, this step's was made.
        is_point && progress.waiting_row.is_some()
    }

    /// At one scale, without the CRF: what takes seconds.
    fn validate(
        &self,
        parameters: &Parameters,
        progress: &Progress,
        stop: &AtomicBool,
    ) -> Result<Option<Validated>> {
        let VerifyJob { config, device, precision, limits, .. } = self.job;
        let options = SegmenterOptions { precision: *precision, ..SegmenterOptions::default() };
        let segmenter = Segmenter::of_deeplab(&self.model(parameters.clone(), progress), device, options)?;
        let pictures = config.validation.pictures;
        let options = ScoreOptions { crf: None, limits: limits.clone(), pictures };
        let scores = score_segmenter(&segmenter, &self.validation, &options, &mut |_| (), stop)?;
        Ok(scores.map(|VerifyScores { num_images, baseline, failures, strips, .. }| {
            let (miou, pixel_accuracy) = (baseline.mean_iou, baseline.pixel_accuracy);
            let validation = Validation { num_images, miou, pixel_accuracy, ..Validation::default() };
            Validated { validation, strips, warnings: failures, ..Validated::default() }
        }))
    }

    /// Always: the newest.
    fn keep(&self, parameters: Parameters, _: KeptAt<'_>, progress: &mut Progress) -> Result<bool> {
        let path = self.job.out.join("model.safetensors");
        self.model(parameters, progress).save(path, Storage::F32)?;
        Ok(true)
    }

    fn begin_epoch(&mut self, _: usize) -> Result<bool> {
        Ok(false)
    }

    fn ending(&self, progress: &Progress) -> Option<Ending> {
        (progress.step >= self.job.config.schedule.steps).then_some(Ending::Finished)
    }
}
