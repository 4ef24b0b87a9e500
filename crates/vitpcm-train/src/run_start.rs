//! How a training run begins: from the state of its folder, or with a network that has seen nothing yet.

use vitpcm_data::TaggedImage;
use vitpcm_masks::resampling::Alignment;
use vitpcm_nets::{
    BackboneConfig, Dropout, GridAlignment, Initialisation, ModelInfo, Normalisation, Parameters, VitConfig,
};

use crate::begun_with::{self, KnownImage};
use crate::checkpoint::{self, Progress, Saved};
use crate::error::{Result, TrainError};
use crate::file_record::{self, FoundImage};
use crate::pcm_loop::{InitialBackbone, Start, TrainJob};
use crate::ranks::Ranks;
use crate::run_files::{check_empty, check_run};

/// The folder's state, where there is one to go on from.
pub(crate) fn open_run_folder(job: &TrainJob) -> Result<Option<Saved>> {
    let out = &job.out;
    if job.start == Start::Fresh {
        check_empty(out)?;
        return Ok(None);
    }
    check_run(out)?;
    let Some(saved) = checkpoint::load(out, &job.device)? else { return Ok(None) };
    let refuse = |reason: String| Err(TrainError::RunFolder { path: out.clone(), reason });
    if saved.info.classes != job.data.classes.names() {
        return refuse("the run began with another data set: the classes differ".to_owned());
    }
    let expected = job.config.network(saved.info.network.backbone, job.data.classes.len());
    let train_size = job.config.model.grid * saved.info.network.backbone.patch();
    if saved.info.network != expected || saved.info.train_size != train_size {
        return refuse("the run began with another network: its [model] settings cannot change".to_owned());
    }
    Ok(Some(saved))
}

/// The list of the images that a saved run began with, where the data set is not what it was then: the folder's, on other
/// ranks the first one's, which sends it behind the state.
pub(crate) fn list_if_changed(job: &TrainJob, saved: &Saved, ranks: &Ranks) -> Result<Option<Vec<u8>>> {
    if saved.progress.data_fingerprint == job.data.fingerprint() {
        return Ok(None);
    }
    Ok(Some(match ranks.is_first() {
        true => begun_with::read(&job.out)?,
        false => ranks.broadcast(Vec::new()),
    }))
}

/// The images of a list, those that are gone as such. Refused where more than that has changed.
pub(crate) fn images_of_run(job: &TrainJob, saved: &Saved, list: &[u8]) -> Result<Vec<TaggedImage>> {
    let refuse = |reason: String| TrainError::RunFolder { path: job.out.clone(), reason };
    let found = &job.data.training;
    let image = |(known, place): (KnownImage, Option<usize>)| match place {
        Some(index) => found[index].clone(),
        None => TaggedImage::gone(known.image, known.tags.into_iter().collect()),
    };
    let places = begun_with::places(list, found.iter().map(Into::into)).map_err(refuse)?;
    let training: Vec<TaggedImage> = places.into_iter().map(image).collect();
    if job.data.fingerprint_of(&training) != saved.progress.data_fingerprint {
        let began = if job.data.pseudo_masks.is_some() { "without" } else { "with" };
        return Err(refuse(format!("the run began {began} pseudo-masks")));
    }
    Ok(training)
}

/// Compares the files of a saved run's images with what they were when it began. Returns what to say about changes that the user
/// accepts; any others are refused.
pub(crate) fn check_files(job: &TrainJob, training: &[TaggedImage]) -> Result<Option<String>> {
    file_record::check(&job.out, job.start, &found_images(job, training), &job.data.limits)
}

/// Writes down which images a run begins with.
pub(crate) fn remember_images(job: &TrainJob, training: &[TaggedImage]) -> Result<()> {
    file_record::remember(&job.out, found_images(job, training))
}

fn found_images(job: &TrainJob, training: &[TaggedImage]) -> Vec<FoundImage> {
    let masks = job.data.pseudo_masks();
    let files = |image: &TaggedImage| {
        let mask = masks.iter().map(|masks| masks.path(&image.mask_name()));
        std::iter::once(image.path.clone()).chain(mask).collect()
    };
    training.iter().map(|image| (image.into(), files(image))).collect()
}

/// A network that has seen nothing of this data set.
pub(crate) fn initial_state(job: &TrainJob) -> Result<(ModelInfo, Parameters, Progress)> {
    let config = &job.config;
    let (backbone, likely) = match &job.backbone {
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
    let network = config.network(backbone, job.data.classes.len());
    let initialisation = Initialisation { seed: config.seed, classifier_std: config.model.classifier_std };
    let parameters = match &job.backbone {
        InitialBackbone::Scratch => initialisation.network(&network, &job.device)?,
        InitialBackbone::Weights(imported) => {
            let mut parameters = initialisation.head(&network, &job.device)?;
            parameters.extend(imported.parameters.to_device(&job.device)?);
            parameters
        }
    };
    let info = ModelInfo {
        network,
        classes: job.data.classes.names().to_vec(),
        train_size: config.model.grid * patch,
        inference_size: config.model.inference_grid * patch,
        normalisation: config.model.normalisation.unwrap_or(likely),
        alignment: match config.views.alignment {
            Alignment::HalfPixel => GridAlignment::HalfPixel,
            Alignment::AlignCorners => GridAlignment::AlignCorners,
        },
        preset: config.preset.name().to_owned(),
        provenance: job.provenance.clone(),
    };
    info.check()?;
    let progress = Progress {
        epoch: 0,
        images_taken: 0,
        step: 0,
        epoch_steps: 0,
        epoch_loss_sum: 0.0,
        waiting_row: None,
        best: None,
        epochs_since_best: 0,
        dropout: Dropout::new(config.seed, config.model.dropout),
        adam_steps: 0,
        average_updates: 0,
        data_fingerprint: job.data.fingerprint(),
    };
    Ok((info, parameters, progress))
}
