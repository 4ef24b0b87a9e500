//! `vitpcm train`: a model from tagged images. What is typed becomes a resolved configuration here; the loop itself is
//! `vitpcm-train`'s, and this file shows what it tells.

use crate::class_names;
use crate::data_inspect::Reading;
use crate::file_guard;
use crate::initial_weights::InitialWeights;
use crate::interrupt::Interrupt;
use crate::live_run::{self, Heard, LINE_EVERY, Resuming, duration};
use crate::mask_place;
use crate::number_bounds;
use crate::outcome::{Outcome, described, usage};
use crate::output::{self, Messages};
use crate::session::{Role, Session};
use crate::train_report::{State, TrainReport};
use anyhow::{Context, anyhow, bail};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;
use vitpcm::Review;
use vitpcm_data::{Dataset, InputGrid, describe_images, tag_warnings};
use vitpcm_masks::{mask_files, text_file};
use vitpcm_nets::BackboneConfig;
use vitpcm_train::{
    Backbone, Ending, EtTarget, Event, LocalisationKind, Preset, RunSummary, Start, TrainConfig, TrainData,
    TrainError, TrainJob, TrainOutcome, has_saved_state,
};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws tagged images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n\n\
    With your own files:\n  \
    vitpcm train --data my-images --out run\n  \
    vitpcm train --data my-images --out run --resume\n  \
    vitpcm train --data my-images --pseudo-masks masks --out second-run\n  \
    vitpcm train --data my-images --weights run/model.safetensors --out again\n\n\
    All keys of --set: docs/training.md, and the config.toml that every run writes.")]
pub(crate) struct Args {
    /// The data set: a folder with tagged images in any layout that `vitpcm data inspect` knows
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The run folder: config.toml, model.safetensors (best), last/, metrics.csv, report.html, TensorBoard events
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
    /// Where paper and released code differ: ours, the code, or the text
    #[arg(long, value_enum, default_value_t = PresetName::Default)]
    preset: PresetName,
    /// The network's backbone (vit-s16, dinov2-s14-reg, resnet50, …) [default: that of --weights]
    #[arg(long, value_name = "NAME")]
    backbone: Option<String>,
    /// What the backbone starts from: the weights in this program, random numbers (`none`), or a file, detected
    /// automatically: a vitpcm model, of which the backbone is taken; a ViT of timm, Hugging Face, DINO, DINOv2 or Google
    /// (.npz); a ResNet of torchvision or Keras; Keras' Xception [default: embedded]
    #[arg(long, value_name = "FILE|embedded|none")]
    weights: Option<PathBuf>,
    /// Classify patches (the method), or, to compare with, whole images: class activation maps [default: pcm]
    #[arg(long, value_enum)]
    localisation: Option<LocalisationName>,
    /// Number of epochs
    #[arg(long, value_name = "N", value_parser = number_bounds::epochs)]
    epochs: Option<usize>,
    /// Images that go through the network at a time
    #[arg(long, value_name = "N", value_parser = number_bounds::batch)]
    batch: Option<usize>,
    /// A second round: learn also from the masks that `segment` made of the training images with an earlier model
    #[arg(long, value_name = "DIR")]
    pseudo_masks: Option<PathBuf>,
    #[command(flatten)]
    resuming: Resuming,
    /// Change one setting by its dotted key, as in `schedule.rate=3e-4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PresetName {
    Default,
    Official,
    Paper,
    /// What `vitpcm demo` trains with.
    #[value(hide = true)]
    Demo,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LocalisationName {
    Pcm,
    /// Global average pooling, one linear layer, no equivariance loss; the background by a threshold.
    Cam,
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
    if !args.data.exists() {
        return Err(usage(anyhow!("{}: there is no such folder or file", args.data.display())));
    }
    let (config, backbone) = resolve(args, session)?;
    let dataset = Dataset::open(&args.data, &args.reading.open_options(config.seed))?;
    let pseudo_masks = args.pseudo_masks.iter().flat_map(|folder| file_guard::files_below(folder));
    let weights = args.weights.iter().cloned();
    let inputs = dataset.files().map(Path::to_path_buf).chain(pseudo_masks).chain(weights);
    session.check_outputs(inputs, live_run::files(&args.out))?;
    let mut data = TrainData::of(&dataset, args.reading.image_limits());
    if let Some(folder) = &args.pseudo_masks {
        data = with_pseudo_masks(data, folder, session)?;
    }
    check_localisation(args, &config)?;
    let (device, precision) = session.open_device()?;
    let job = TrainJob {
        data,
        config,
        backbone,
        out: args.out.clone(),
        start: args.resuming.start(),
        device,
        precision,
        provenance: provenance(args),
    };
    if job.data.validation.is_empty() {
        session.messages.note(
            "no validation split: the newest model is kept, not the best (--val-share 0.1 sets some images aside)",
        );
    }
    if job.start == Start::Fresh {
        warn_of_tags(&job, session)?;
    }
    let (outcome, num_warnings) = run(&job, session)?;
    let model = args.out.join("model.safetensors");
    let best = match outcome.best {
        Some((epoch, score)) => format!(" (best: epoch {epoch}, score {score:.2})"),
        None => String::new(),
    };
    match outcome.ending {
        Ending::Interrupted => {
            session.messages.note(format!(
                "stopped after step {}, state saved; the same command with --resume continues",
                outcome.steps
            ));
            return Ok(Outcome::Interrupted);
        }
        Ending::OutOfPatience => {
            session.messages.note("no better validation for schedule.patience epochs: training ends");
        }
        Ending::Finished => {}
    }
    if session.ranks.is_first() && session.role == Role::Command {
        output::result(&format!("{}{best}\n", model.display()))?;
    }
    Ok(if num_warnings > 0 { Outcome::SomeFailed } else { Outcome::Done })
}

/// Says what the training images' tags cannot teach.
fn warn_of_tags(job: &TrainJob, session: &Session) -> anyhow::Result<()> {
    if session.messages != Messages::All || session.role == Role::Stage {
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

/// A run that is resumed keeps what it began with.
fn check_localisation(args: &Args, config: &TrainConfig) -> anyhow::Result<()> {
    let asked = args.localisation.map(|name| match name {
        LocalisationName::Pcm => LocalisationKind::Pcm,
        LocalisationName::Cam => LocalisationKind::Cam,
    });
    match asked {
        Some(asked) if asked != config.model.localisation => {
            Err(usage(anyhow!("--localisation differs from model.localisation of the run or of --set")))
        }
        _ => Ok(()),
    }
}

/// Pseudo-masks lie where `segment --out` put them: named as the data set names its images, or, where the data set's whole
/// folder was segmented, one folder down.
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

/// The settings and the initial backbone, from what was typed and, when resuming, from what the run began with.
fn resolve(args: &Args, session: &Session) -> anyhow::Result<(TrainConfig, Backbone)> {
    let stored = args.out.join("config.toml");
    let (mut config, backbone) = if args.resuming.resume && has_saved_state(&args.out) {
        let text = text_file::read(&stored).with_context(|| format!("{}", stored.display()))?;
        let config = TrainConfig::from_toml(&text).with_context(|| format!("{}", stored.display()));
        (config.map_err(usage)?, Backbone::Scratch)
    } else {
        initial(args, session)?
    };
    if let Some(epochs) = args.epochs {
        config.schedule.epochs = epochs;
    }
    if let Some(batch) = args.batch {
        config.schedule.batch = batch;
        config.schedule.effective_batch = config.schedule.effective_batch.max(batch);
    }
    let weights = config.model.weights.clone();
    for assignment in &args.set {
        config = config.with(assignment).map_err(usage)?;
    }
    check_start(&config, weights.as_deref(), &backbone).map_err(usage)?;
    config.check().map_err(usage)?;
    Ok((config, backbone))
}

fn initial(args: &Args, session: &Session) -> anyhow::Result<(TrainConfig, Backbone)> {
    let named = args.backbone.as_deref().map(BackboneConfig::named).transpose().map_err(usage)?;
    let mut config = args.preset.config();
    config.seed = session.seed;
    if args.pseudo_masks.is_some() && args.preset == PresetName::Default {
        // Measured (docs/results.md): masks that hold for both views make the views agree, and better.
        config.losses.et_target = EtTarget::None;
    }
    if args.localisation == Some(LocalisationName::Cam) {
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
            Backbone::Weights(Box::new(imported))
        }
        None => {
            let backbone = named.map_or_else(|| BackboneConfig::named(&config.model.backbone), Ok)?;
            config.model.backbone = backbone.name().to_owned();
            // The demo's settings are made for its own small network from nothing.
            if args.preset != PresetName::Demo {
                config = config.for_backbone(&backbone).from_scratch();
            }
            Backbone::Scratch
        }
    };
    config.model.weights = Some(weights.to_string());
    session.messages.note(weights.described(&config.model.backbone));
    Ok((config, backbone))
}

/// Refuses settings that contradict what the backbone starts from, which options say and `--set` does not change.
fn check_start(config: &TrainConfig, weights: Option<&str>, backbone: &Backbone) -> anyhow::Result<()> {
    if config.model.weights.as_deref() != weights {
        bail!("model.weights is a record of --weights, which says what the backbone starts from");
    }
    match backbone {
        Backbone::Weights(imported) if imported.config.name() != config.model.backbone => bail!(
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

/// Trains on a thread of its own, so that this one can listen to it and to Ctrl-C.
pub(crate) fn run(job: &TrainJob, session: &Session) -> anyhow::Result<(TrainOutcome, usize)> {
    let interrupt = Interrupt::listen();
    let stop = AtomicBool::new(false);
    let (sender, receiver) = sync_channel(live_run::UNHEARD);
    let report = session.ranks.is_first().then(|| TrainReport::new(job, &session.invocation));
    let mut display = Display::new(&session.messages, report);
    let result = std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            let sender = sender; // dropped with the thread: that ends the listening
            vitpcm_train::train(job, session.ranks, &sender, &stop)
        });
        display.listen(&receiver, &interrupt, &stop);
        trainer.join().map_err(|_| anyhow!("the training stopped by a bug; please report it"))
    })?;
    if let Ok(outcome) = &result {
        display.write_report(State::Ended(outcome.ending));
    }
    display.bar.finish_and_clear();
    match result {
        Ok(outcome) => Ok((outcome, display.num_warnings)),
        Err(
            error @ (TrainError::Config(_)
            | TrainError::RunFolder { .. }
            | TrainError::Ranks(_)
            | TrainError::Locked(_)),
        ) => Err(usage(error)),
        Err(error) => Err(error.into()),
    }
}

/// What people see: a few live lines on a terminal, plain lines elsewhere.
struct Display<'a> {
    messages: &'a Messages,
    bar: ProgressBar,
    /// On the first rank.
    report: Option<TrainReport<'a>>,
    run: Option<RunSummary>,
    num_epochs: usize,
    best: Option<f64>,
    num_warnings: usize,
    last_line: Instant,
}

impl<'a> Display<'a> {
    fn new(messages: &'a Messages, report: Option<TrainReport<'a>>) -> Self {
        let bar = live_run::steps_bar(messages);
        let (run, best, last_line) = (None, None, Instant::now());
        Display { messages, bar, report, run, num_epochs: 0, best, num_warnings: 0, last_line }
    }

    fn listen(&mut self, receiver: &Receiver<Event>, interrupt: &Interrupt, stop: &AtomicBool) {
        live_run::listen(receiver, interrupt, stop, |heard| match heard {
            Heard::Event(event) => self.show(event),
            Heard::Stopping(text) => self.say(text),
        });
    }

    fn say(&self, text: impl std::fmt::Display) {
        self.bar.suspend(|| self.messages.note(text));
    }

    fn keep_and_report(&mut self, reviews: &[Review]) {
        match self.report.as_ref().map_or(Ok(()), |report| report.keep(reviews)) {
            Ok(()) => self.write_report(State::Running),
            Err(error) => self.warn_of_report(&error),
        }
    }

    /// A report that cannot be written does not end a training.
    fn write_report(&mut self, state: State) {
        if let (Some(report), Some(run)) = (&self.report, &self.run)
            && let Err(error) = report.write(run, state)
        {
            self.warn_of_report(&error);
        }
    }

    fn warn_of_report(&mut self, error: &anyhow::Error) {
        self.num_warnings += 1;
        let text = format!("the report could not be written: {}", described(error));
        self.bar.suspend(|| self.messages.failure(text));
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Note(text) => self.say(text),
            Event::Warning(text) => {
                self.num_warnings += 1;
                self.bar.suspend(|| self.messages.failure(text));
            }
            Event::Started(run) => {
                self.num_epochs = run.num_epochs;
                self.bar.set_length(run.steps_per_epoch * run.num_epochs as u64);
                self.bar.set_position(run.steps_before);
                self.say(format!(
                    "{} images of {} × {} pixels, {} classes with the background, {:.2} million parameters; {} \
                     images to validate on, {} with masks",
                    run.num_images,
                    run.train_size,
                    run.train_size,
                    run.num_classes,
                    run.num_parameters as f64 / 1e6,
                    run.num_validation_images,
                    run.num_validation_masks,
                ));
                if run.steps_before > 0 {
                    self.say(format!("continuing after step {}", run.steps_before));
                }
                self.run = Some(run);
            }
            Event::Step { row, num_steps, seconds_left } => {
                let where_we_are =
                    format!("epoch {}/{}  step {}/{num_steps}", row.epoch, self.num_epochs, row.step);
                let masks = match row.loss_masks {
                    0.0 => String::new(),
                    loss => format!(", masks {loss:.4}"),
                };
                let losses = format!(
                    "loss {:.4}  (tags {:.4}, equivariance {:.4}{masks}, penalty {:.4})  rate {:.2e}",
                    row.loss, row.loss_mce, row.loss_et, row.loss_l2, row.rate
                );
                let speed = format!("{:.1} images/s  {} left", row.images_per_second, duration(seconds_left));
                if self.bar.is_hidden() {
                    if self.last_line.elapsed() >= LINE_EVERY {
                        self.say(format!("{where_we_are}  {losses}  {speed}"));
                        self.last_line = Instant::now();
                    }
                    return;
                }
                let best = self.best.map_or(String::new(), |best| format!("  best score {best:.2}"));
                self.bar.set_position(row.step);
                self.bar.set_prefix(format!("{where_we_are}  {speed}{best}"));
                self.bar.set_message(losses);
            }
            Event::Epoch { epoch, mean_loss, validation, reviews, is_best } => {
                let mut line = format!("epoch {epoch}/{}: loss {mean_loss:.4}", self.num_epochs);
                if let Some(validation) = validation {
                    if let Some(miou) = validation.miou {
                        line += &format!(", mIoU {miou:.2} % (tags given)");
                    }
                    if let Some(loss) = validation.et_loss {
                        line += &format!(", equivariance {loss:.4}");
                    }
                    line += &format!(", tag F1 {:.2} %", validation.tag_f1);
                    if is_best {
                        self.best = Some(validation.score);
                        line += " — best so far";
                    }
                }
                self.say(line);
                self.last_line = Instant::now();
                if !reviews.is_empty() {
                    self.keep_and_report(&reviews);
                }
            }
            Event::Saved { .. } => {}
        }
    }
}
