//! `vitpcm train`: a model from tagged images. Resolves the typed options to a configuration; the loop is in
//! `vitpcm-train`, its display in `display`.

mod display;

use self::display::Display;
use crate::class_names;
use crate::counting::images;
use crate::data_inspect::{Reading, problems_line};
use crate::file_guard;
use crate::initial_weights::InitialWeights;
use crate::live_run::{self, Resuming};
use crate::mask_place;
use crate::model_path::{self, MODEL_FILE};
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::session::{Role, Session};
use crate::train_report::{State, TrainReport};
use crate::verdict::VerdictFigures;
use anyhow::{anyhow, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;
use vitpcm_data::{
    Dataset, ImageLimits, InputGrid, LEAST_IMAGES, choose_held_out, describe_images, tag_warnings,
};
use vitpcm_masks::mask_files;
use vitpcm_nets::BackboneConfig;
use vitpcm_train::{
    Ending, EtTarget, Event, InitialBackbone, LocalisationKind, Preset, Settings, Start, TrainConfig,
    TrainData, TrainJob, TrainOutcome, has_saved_state, read_held_out,
};

/// The options as typed.
#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws tagged images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n\n\
    With your own files:\n  \
    vitpcm train --data my-images --out run\n  \
    vitpcm train --data my-images --out run --resume\n  \
    vitpcm train --data my-images --pseudo-masks masks --out second-run\n  \
    vitpcm train --data my-images --weights run --out again\n\n\
    All keys of --set: docs/reference/settings.md, and the config.toml that every run writes.")]
pub struct Args {
    /// The data set: a folder with tagged images in any layout that `vitpcm data inspect` knows
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The run folder: config.toml, model.safetensors, last/, metrics.csv, report.html, TensorBoard events
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
    #[command(flatten)]
    resuming: Resuming,
    /// Number of epochs
    #[arg(long, value_name = "N", value_parser = number_bounds::epochs)]
    epochs: Option<usize>,
    /// Initial weights of the backbone: the embedded ones, random (`none`), or a file, detected automatically: a vitpcm
    /// model or its run folder (its backbone is used); a ViT of timm, Hugging Face, DINO, DINOv2 or Google (.npz); a
    /// ResNet of torchvision or Keras [default: embedded]
    #[arg(long, value_name = "FILE|embedded|none", value_parser = model_path::parser_with_words())]
    weights: Option<PathBuf>,
    /// A second round: learn also from the masks that `segment` made of the training images with an earlier model
    #[arg(long, value_name = "DIR")]
    pseudo_masks: Option<PathBuf>,
    /// Folder for the cached features of frozen blocks, with `--set views.pool=N`; rounds over the same images may
    /// share it [default: features in the run folder]
    #[arg(long, value_name = "DIR")]
    features: Option<PathBuf>,
    /// Images per batch
    #[arg(long, value_name = "N", value_parser = number_bounds::batch)]
    batch: Option<usize>,
    #[command(flatten)]
    reading: Reading,
    /// Settings to start from
    #[arg(long, value_enum, default_value_t = PresetName::Default)]
    preset: PresetName,
    /// The network's backbone (vit-s16, dinov2-s14-reg, resnet50, …) [default: that of --weights]
    #[arg(long, value_name = "NAME")]
    backbone: Option<String>,
    /// Change one setting by its dotted key, e.g. `schedule.rate=3e-4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write steps, best epoch, classes and verdict as JSON; `-` prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `--json` says.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a Path,
    classes: &'a [String],
    /// Training images.
    images: usize,
    steps: u64,
    /// Where validation chose one.
    best_epoch: Option<usize>,
    best_score: Option<f64>,
    verdict: VerdictFigures,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PresetName {
    /// The settings with the best results
    Default,
    /// The paper's released code
    Official,
    /// The paper's text
    Paper,
    /// A small network for drawn scenes, as `vitpcm demo` trains it
    Demo,
}

impl Args {
    fn initial_weights(&self) -> InitialWeights {
        match &self.weights {
            Some(typed) => InitialWeights::new(typed),
            None if self.preset == PresetName::Demo => InitialWeights::Random,
            None => InitialWeights::Embedded,
        }
    }
}

impl PresetName {
    fn config(self) -> TrainConfig {
        TrainConfig::preset(match self {
            PresetName::Default => Preset::Default,
            PresetName::Official => Preset::Official,
            PresetName::Paper => Preset::Paper,
            PresetName::Demo => Preset::Demo,
        })
    }
}

pub(crate) fn train(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    train_as(args, LocalisationKind::Pcm, session)
}

/// Trains a model with this kind of localisation; a resumed run keeps its own.
pub fn train_as(args: &Args, localisation: LocalisationKind, session: &Session) -> anyhow::Result<Outcome> {
    if !args.data.exists() {
        return Err(usage(anyhow!("{}: there is no such folder or file", args.data.display())));
    }
    let start = args.resuming.start(&args.out)?;
    let (config, backbone) = resolve(args, localisation, session)?;
    let dataset = Dataset::open(&args.data, &args.reading.open_options(config.seed, session.image_limits()))?;
    dataset.check_tagged()?;
    let pseudo_masks = args.pseudo_masks.iter().flat_map(|folder| file_guard::files_below(folder));
    let weights = args.weights.iter().cloned();
    let inputs = dataset.files().map(Path::to_path_buf).chain(pseudo_masks).chain(weights);
    session.check_outputs(inputs, live_run::files(&args.out).into_iter().chain(args.json.clone()))?;
    let mut data = training_data(args, &dataset, &config, session.image_limits())?;
    if let Some(folder) = &args.pseudo_masks {
        data = with_pseudo_masks(data, folder, session)?;
    }
    if config.model.localisation != localisation && localisation == LocalisationKind::Cam {
        return Err(usage(anyhow!("model.localisation of the run or of --set is not `cam`")));
    }
    // Only frozen blocks run in 8 bits.
    let (device, precision) = session.open_device()?;
    let job = TrainJob {
        data,
        config,
        backbone,
        out: args.out.clone(),
        start,
        device,
        precision,
        features: args.features.clone(),
        provenance: provenance(args),
    };
    if job.start == Start::Fresh {
        if session.role == Role::Command {
            dataset.notes().iter().for_each(|note| session.messages.note(note));
            problems_line(&dataset, &args.data).iter().for_each(|line| session.messages.note(line));
        }
        warn_of_tags(&job, session)?;
    }
    let (outcome, num_warnings) = run(&job, session)?;
    let model = args.out.join(MODEL_FILE);
    let best = match outcome.best {
        Some((epoch, score)) => format!(" (best: epoch {epoch}, score {score:.2})"),
        None => String::new(),
    };
    match outcome.ending {
        Ending::Interrupted => return Ok(live_run::stopped(outcome.steps, &model, &session.messages)),
        Ending::OutOfPatience => {
            session.messages.note("early stopping: validation did not improve for schedule.patience epochs");
        }
        Ending::Finished => {}
    }
    if session.ranks.is_first() && session.role == Role::Command {
        let verdict = TrainReport::new(&job, &session.invocation).verdict()?;
        let text = format!("{}{best}\n{}", model.display(), verdict.text());
        let report = Report {
            model: &model,
            classes: &job.data.classes.names()[1..],
            images: job.data.training.len(),
            steps: outcome.steps,
            best_epoch: outcome.best.map(|(epoch, _)| epoch),
            best_score: outcome.best.map(|(_, score)| score),
            verdict: verdict.figures(),
        };
        session.messages.json_or_text(args.json.as_deref(), &report, &text)?;
    }
    Ok(if num_warnings > 0 { Outcome::SomeFailed } else { Outcome::Done })
}

/// The images to train and validate on. If neither the data set nor the user chooses validation images, some are held
/// out; a resumed run keeps those it started with.
fn training_data(
    args: &Args,
    dataset: &Dataset,
    config: &TrainConfig,
    limits: ImageLimits,
) -> anyhow::Result<TrainData> {
    let data = TrainData::of(dataset, limits.clone());
    if !data.validation.is_empty() || args.reading.names_splits() {
        return Ok(data);
    }
    let names = match args.resuming.resume && has_saved_state(&args.out) {
        true => read_held_out(&args.out).map_err(usage)?,
        false => {
            // Holding out more than validation looks at would only cost training images.
            let most = config.validation.max_images as f64 / data.training.len().max(1) as f64;
            choose_held_out(&data.training, config.validation.held_out.min(most), config.seed)
        }
    };
    Ok(match names.is_empty() {
        true => data,
        false => TrainData::holding_out(dataset, limits, names),
    })
}

/// Why a run has no validation images, as a sentence.
pub(crate) fn why_not_measured(job: &TrainJob) -> String {
    match job.data.training.len() {
        count if count < LEAST_IMAGES && job.config.validation.held_out > 0.0 => format!(
            "{} are too few to hold some out ({LEAST_IMAGES} are enough; --val-share 0.2 holds out some of fewer).",
            images(count)
        ),
        _ => "no images were held out.".to_owned(),
    }
}

/// Warns about what the training images' tags cannot teach.
fn warn_of_tags(job: &TrainJob, session: &Session) -> anyhow::Result<()> {
    if !session.messages.says_notes() || session.role == Role::Stage {
        return Ok(());
    }
    let patch = BackboneConfig::named(&job.config.model.backbone).map_err(usage)?.patch();
    let input = InputGrid { patches: job.config.model.grid, patch };
    let images = describe_images(&job.data.training, &job.data.limits);
    for warning in tag_warnings(&job.data.classes, &images, input) {
        session.messages.note(format!("warning: {warning}"));
    }
    Ok(())
}

/// Pseudo-masks are where `segment --out` put them: named like the data set's images or, if its whole folder was
/// segmented, one folder down.
fn with_pseudo_masks(mut data: TrainData, folder: &Path, session: &Session) -> anyhow::Result<TrainData> {
    let all = data.training.len();
    let files = mask_files(folder).map_err(usage)?;
    let names: Vec<PathBuf> =
        data.training.iter().map(|image| image.mask_name().with_extension("")).collect();
    if let Some(place) = mask_place::place_of(folder, &files, &names, &session.messages).map_err(usage)? {
        for beside in [folder, &place] {
            class_names::check_beside(beside, &data.classes).map_err(usage)?;
        }
        data.pseudo_masks = Some(place.clone());
        let found = data.num_pseudo_masks();
        session.messages.note(format!("{}: masks of {found} of {all} training images", place.display()));
        return Ok(data);
    }
    let expected = data.training.first().map(|image| image.mask_name().display().to_string());
    Err(usage(anyhow!(
        "{}: none of the {all} training images has a mask there; expected {} and so on, as `segment --out` writes them",
        folder.display(),
        expected.unwrap_or_default()
    )))
}

/// The settings and initial backbone, from the options and, when resuming, from the run.
fn resolve(
    args: &Args,
    localisation: LocalisationKind,
    session: &Session,
) -> anyhow::Result<(TrainConfig, InitialBackbone)> {
    let (mut config, backbone) = match args.resuming.stored_settings(&args.out)? {
        Some(config) => (config, InitialBackbone::Scratch),
        None => initial(args, localisation, session)?,
    };
    if let Some(epochs) = args.epochs {
        config.schedule.epochs = epochs;
    }
    if let Some(batch) = args.batch {
        config.schedule.batch = batch;
        config.schedule.effective_batch = config.schedule.effective_batch.max(batch);
    }
    let weights = config.model.weights.clone();
    config = live_run::with_changes(config, &args.set)?;
    check_start(&config, weights.as_deref(), &backbone).map_err(usage)?;
    config.check().map_err(usage)?;
    Ok((config, backbone))
}

fn initial(
    args: &Args,
    localisation: LocalisationKind,
    session: &Session,
) -> anyhow::Result<(TrainConfig, InitialBackbone)> {
    let named = args.backbone.as_deref().map(BackboneConfig::named).transpose().map_err(usage)?;
    let mut config = args.preset.config();
    config.seed = session.seed;
    if args.pseudo_masks.is_some() && args.preset == PresetName::Default {
        // Measured (docs/lab/tried.md): pseudo-masks shared by both views already make the views agree, and better.
        config.losses.et_target = EtTarget::None;
    }
    if localisation == LocalisationKind::Cam {
        config = config.for_cam();
    }
    let weights = args.initial_weights();
    let backbone = match weights.load(args.backbone.as_deref()).map_err(usage)? {
        Some(imported) => {
            config.model.backbone = imported.config.name().to_owned();
            config = config.for_backbone(&imported.config);
            if let Some(train_size) = imported.train_size {
                config = config.for_train_size(train_size, imported.config.patch());
            }
            InitialBackbone::Weights(Box::new(imported))
        }
        None => {
            let backbone = named.map_or_else(|| BackboneConfig::named(&config.model.backbone), Ok)?;
            config.model.backbone = backbone.name().to_owned();
            // The demo's settings are for its own small network, trained from scratch.
            if args.preset != PresetName::Demo {
                config = config.for_backbone(&backbone).from_scratch();
            }
            InitialBackbone::Scratch
        }
    };
    config.model.weights = Some(weights.to_string());
    session.messages.note(weights.described(&config.model.backbone));
    Ok((config, backbone))
}

/// Refuses settings that contradict the initial weights; these come from options, not from `--set`.
fn check_start(
    config: &TrainConfig,
    weights: Option<&str>,
    backbone: &InitialBackbone,
) -> anyhow::Result<()> {
    if config.model.weights.as_deref() != weights {
        bail!("model.weights is a record of --weights, which says what the backbone starts from");
    }
    match backbone {
        InitialBackbone::Weights(imported) if imported.config.name() != config.model.backbone => bail!(
            "model.backbone={}: the initial weights are those of {}; expected --backbone NAME with its --weights",
            config.model.backbone,
            imported.config.name()
        ),
        _ => Ok(()),
    }
}

fn provenance(args: &Args) -> std::collections::BTreeMap<String, String> {
    let shown = |path: &Path| path.display().to_string();
    let mut known =
        vec![("made_by", format!("vitpcm {} train", env!("CARGO_PKG_VERSION"))), ("data", shown(&args.data))];
    known.extend(args.pseudo_masks.as_deref().map(|masks| ("pseudo_masks", shown(masks))));
    known.push(("weights", args.initial_weights().provenance()));
    known.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Trains, and shows how it goes. Also how many inputs were left out.
pub(crate) fn run(job: &TrainJob, session: &Session) -> anyhow::Result<(TrainOutcome, usize)> {
    let stop = AtomicBool::new(false);
    let report = session.ranks.is_first().then(|| TrainReport::new(job, &session.invocation));
    let mut display = Display::new(&session.messages, &job.data, report);
    let train = |events: &SyncSender<Event>| vitpcm_train::train(job, session.ranks, events, &stop);
    let outcome = live_run::run(&session.interrupt(), &stop, |event| display.show(event), train);
    if let Ok(outcome) = &outcome {
        display.write_report(State::Ended(outcome.ending));
    }
    display.live.bar.finish_and_clear();
    Ok((outcome?, display.live.num_warnings))
}
