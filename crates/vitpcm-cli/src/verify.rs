//! `vitpcm verify`: trains DeepLabV2 on pseudo-masks and scores it on true masks. Resolves the typed options to a
//! configuration and displays the run; the loop is in `vitpcm-train`.

use crate::class_names::{self, CLASS_LIST};
use crate::compared_masks::read_names;
use crate::counting::{counted, images};
use crate::crf_options::CrfOptions;
use crate::interrupt::Interrupt;
use crate::live_run::{self, LiveRun, Resuming};
use crate::mask_place;
use crate::model_path::{self, MODEL_FILE};
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::output::{self, Messages};
use crate::session::Session;
use anyhow::{anyhow, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use vitpcm::{Device, Segmenter, SegmenterOptions};
use vitpcm_data::{MaskPairing, MaskedImage};
use vitpcm_masks::{Classes, Scores};
use vitpcm_nets::{BackboneConfig, PretrainedBackbone, ResNetVariant};
use vitpcm_train::{
    Ending, Event, InitialBackbone, ScoreOptions, Settings, TrainOutcome, VerifyConfig, VerifyJob,
    score_segmenter, verify as train_on_masks,
};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws images with masks to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm verify --images scenes/images --masks scenes/masks \\\n    \
    --val-images scenes/images --val-truth scenes/masks \\\n    \
    --classes scenes/classes.txt --backbone resnet-nano --steps 20 \\\n    \
    --set crops.side=65 --scales 1 --out verification\n\n\
    With your own files (--masks and --val-truth hold PNG masks named after the images):\n  \
    vitpcm verify --images JPEGImages --masks pseudo-masks --val-images JPEGImages \\\n    \
    --val-truth SegmentationClass --val-list ImageSets/Segmentation/val.txt \\\n    \
    --weights resnet101.pth --crf --out verification\n  \
    vitpcm segment photos --model verification --out masks\n\n\
    All keys of --set: docs/reference/settings.md, and the config.toml that every run writes.")]
pub(crate) struct Args {
    /// Images to train on
    #[arg(long, value_name = "DIR")]
    images: PathBuf,
    /// Their pseudo-masks: PNG with one class index per pixel, named after the images; 255 is ignored
    #[arg(long, value_name = "DIR")]
    masks: PathBuf,
    /// Images to score on
    #[arg(long, value_name = "DIR")]
    val_images: PathBuf,
    /// Their true masks
    #[arg(long, value_name = "DIR")]
    val_truth: PathBuf,
    /// The run folder: config.toml, model.safetensors, last/, metrics.csv, TensorBoard events, scores.json
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
    #[command(flatten)]
    resuming: Resuming,
    /// Train only on the names listed in this file (a split)
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Score only on the names listed in this file
    #[arg(long, value_name = "FILE")]
    val_list: Option<PathBuf>,
    /// `voc`, `coco`, or a file with one class name per line [default: classes.txt next to the masks]
    #[arg(long, value_name = "voc|coco|FILE")]
    classes: Option<String>,
    /// The network's backbone: resnet50, resnet101, or resnet-nano for quick trials [default: that of --weights]
    #[arg(long, value_name = "NAME")]
    backbone: Option<String>,
    /// Pretrained ResNet: ImageNet weights of torchvision or Keras (.h5 converted, TensorFlow.js model.json), or a vitpcm
    /// model with a ResNet or its run folder
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    weights: Option<PathBuf>,
    /// Number of steps [default: 20000]
    #[arg(long, value_name = "N", value_parser = number_bounds::steps, conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Number of epochs, instead of steps
    #[arg(long, value_name = "N", value_parser = number_bounds::steps)]
    epochs: Option<u64>,
    /// Images per step [default: 10]
    #[arg(long, value_name = "N", value_parser = number_bounds::batch)]
    batch: Option<usize>,
    /// Ignore pixels whose class scores lower than this, if NAME.npz is next to a mask
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction)]
    min_confidence: Option<f32>,
    /// Change one setting by its dotted key, e.g. `schedule.rate=1e-3`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Scales to average the final scores over
    #[arg(long, value_name = "X,Y,…", value_parser = number_bounds::scale, value_delimiter = ',', default_value = "0.5,0.75,1,1.25,1.5")]
    scales: Vec<f64>,
    /// Score the masks after a dense CRF as well
    #[arg(long)]
    crf: bool,
    /// Also write the final scores as JSON here; `-` prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    crf_options: CrfOptions,
}

/// The content of `scores.json`: the final network on all images with true masks, without tags.
#[derive(Serialize)]
struct Report {
    num_images: usize,
    steps: u64,
    scales: Vec<f64>,
    flip: bool,
    scores: Scores,
    #[serde(skip_serializing_if = "Option::is_none")]
    scores_with_crf: Option<Scores>,
}

pub(crate) fn verify(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    for folder in [&args.images, &args.masks, &args.val_images, &args.val_truth] {
        if !folder.is_dir() {
            return Err(usage(anyhow!("{}: there is no such folder", folder.display())));
        }
    }
    let start = args.resuming.start(&args.out)?;
    let (training, masks) = paired(&args.images, &args.masks, args.list.as_deref(), &session.messages)?;
    let classes = class_list(args, &masks).map_err(usage)?;
    let (validation, _) =
        paired(&args.val_images, &args.val_truth, args.val_list.as_deref(), &session.messages)?;
    if training.is_empty() {
        bail!("no image of {} has a mask of its name in {}", args.images.display(), args.masks.display());
    }
    let (config, backbone) = resolve(args, training.len(), session)?;
    check_outputs(args, [&training, &validation], session)?;
    if config.crops.unsure_below > 0.0 {
        check_scores(&args.masks, &training, &session.messages).map_err(usage)?;
    }
    let (device, precision) = session.open_device_to_train()?;
    let job = VerifyJob {
        config,
        classes,
        training,
        validation,
        backbone,
        out: args.out.clone(),
        start,
        device,
        precision,
        limits: session.image_limits(),
        provenance: provenance(args),
    };
    let interrupt = session.interrupt();
    let stop = AtomicBool::new(false);
    let (outcome, num_warnings) = train(&job, &session.messages, &interrupt, &stop)?;
    let model = args.out.join(MODEL_FILE);
    if outcome.ending == Ending::Interrupted {
        return Ok(live_run::stopped(outcome.steps, &model, &session.messages));
    }
    if job.validation.is_empty() {
        session.messages.note("no image to score on has a true mask");
        session.messages.result(&format!("{}\n", model.display()))?;
        return Ok(Outcome::SomeFailed);
    }
    let Some(num_failed) = score(args, &job, outcome.steps, &session.messages, &interrupt)? else {
        session.messages.note("stopped while scoring; the same command with --resume scores again");
        return Ok(Outcome::Interrupted);
    };
    Ok(if num_warnings + num_failed > 0 { Outcome::SomeFailed } else { Outcome::Done })
}

/// Refuses to overwrite training or validation files.
fn check_outputs(args: &Args, images: [&Vec<MaskedImage>; 2], session: &Session) -> anyhow::Result<()> {
    let images = images.into_iter().flatten();
    let images = images
        .flat_map(|MaskedImage { image, mask, scores, .. }| [image, mask, scores].map(PathBuf::as_path));
    let class_list = args.masks.join(CLASS_LIST);
    let files = [&args.list, &args.val_list, &args.weights].into_iter().flatten().map(PathBuf::as_path);
    let named = args.classes.iter().map(Path::new);
    let outputs = live_run::files(&args.out).into_iter().chain(args.json.clone());
    session.check_outputs(images.chain(files).chain(named).chain([class_list.as_path()]), outputs)
}

/// The named classes, or the list in the masks' folder or its parent.
fn class_list(args: &Args, place: &Path) -> anyhow::Result<Classes> {
    if let Some(text) = &args.classes {
        return class_names::named(text);
    }
    let lists = [args.masks.join(CLASS_LIST), place.join(CLASS_LIST)];
    match lists.iter().find(|list| list.is_file()) {
        Some(list) => Ok(Classes::from_file(list)?),
        None => bail!(
            "{}: there is no such file; say --classes voc, coco, or a file with one name per line",
            lists[0].display()
        ),
    }
}

/// Images with their masks, and the folder of the masks.
fn paired(
    images: &Path,
    masks: &Path,
    list: Option<&Path>,
    messages: &Messages,
) -> anyhow::Result<(Vec<MaskedImage>, PathBuf)> {
    let names = list.map(read_names).transpose().map_err(usage)?;
    let found = MaskPairing::find(images, masks, names.as_deref());
    found.problems.iter().for_each(|problem| messages.failure(problem));
    mask_place::say(&found.way, images, masks, messages);
    for (count, one, several) in [
        (
            found.without_mask.len(),
            "image has no mask and does not count",
            "images have no mask and do not count",
        ),
        (found.without_image.len(), "listed name has no image", "listed names have no image"),
    ] {
        if count > 0 {
            let text = counted(count, one, several);
            messages.note(format!("{} and {}: {text}", images.display(), masks.display()));
        }
    }
    Ok((found.pairs, found.way.second_place(masks)))
}

/// Checks that there are scores, without which low-confidence pixels are unknown.
fn check_scores(masks: &Path, training: &[MaskedImage], messages: &Messages) -> anyhow::Result<()> {
    let without = training.iter().filter(|image| !image.scores.is_file()).count();
    if without == training.len() {
        bail!(
            "{}: --min-confidence needs scores next to the masks; `vitpcm segment --format png,npz` writes both",
            masks.display()
        );
    }
    if without > 0 {
        let without = counted(without, "mask without scores counts", "masks without scores count");
        messages.note(format!("{}: {without} in full", masks.display()));
    }
    Ok(())
}

/// The settings and initial backbone, from the options and, when resuming, from the run.
fn resolve(
    args: &Args,
    num_images: usize,
    session: &Session,
) -> anyhow::Result<(VerifyConfig, InitialBackbone)> {
    let (mut config, backbone) = match args.resuming.stored_settings(&args.out)? {
        Some(config) => (config, InitialBackbone::Scratch),
        None => initial(args, session)?,
    };
    if let Some(batch) = args.batch {
        config.schedule.batch = batch;
    }
    if let Some(score) = args.min_confidence {
        config.crops.unsure_below = score;
    }
    if let Some(steps) = args.steps {
        config.schedule.steps = steps;
    }
    config = live_run::with_changes(config, &args.set)?;
    if let Some(epochs) = args.epochs {
        config.schedule.steps =
            epochs.saturating_mul((num_images / config.schedule.batch.max(1)).max(1) as u64);
    }
    config.check().map_err(usage)?;
    Ok((config, backbone))
}

fn initial(args: &Args, session: &Session) -> anyhow::Result<(VerifyConfig, InitialBackbone)> {
    let variant = args.backbone.as_deref().map(ResNetVariant::named).transpose().map_err(usage)?;
    let mut config = VerifyConfig { seed: session.seed, ..VerifyConfig::default() };
    let Some(weights) = &args.weights else {
        if let Some(variant) = variant {
            config.model.backbone = variant.name.to_owned();
        }
        session.messages.note(format!(
            "no --weights: {} starts from random weights; ImageNet weights are usual",
            config.model.backbone
        ));
        return Ok((config.from_scratch(), InitialBackbone::Scratch));
    };
    let expected = variant.map(|variant| variant.name);
    let imported = PretrainedBackbone::import(weights, expected, &Device::Cpu).map_err(usage)?;
    let (path, name) = (weights.display(), imported.config.name());
    if !matches!(imported.config, BackboneConfig::ResNet(_)) {
        return Err(usage(anyhow!("{path}: weights of {name}; expected those of a ResNet")));
    }
    config.model.backbone = name.to_owned();
    session.messages.note(format!("{path}: {name} ({})", imported.naming));
    Ok((config, InitialBackbone::Weights(Box::new(imported))))
}

fn provenance(args: &Args) -> BTreeMap<String, String> {
    let shown = |path: &Path| path.display().to_string();
    let mut known = vec![
        ("made_by", format!("vitpcm {} verify", env!("CARGO_PKG_VERSION"))),
        ("images", shown(&args.images)),
        ("masks", shown(&args.masks)),
    ];
    known.extend(args.weights.as_deref().map(|weights| ("weights", shown(weights))));
    known.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Trains, and shows how it goes. Also how many inputs were left out.
fn train(
    job: &VerifyJob,
    messages: &Messages,
    interrupt: &Interrupt,
    stop: &AtomicBool,
) -> anyhow::Result<(TrainOutcome, usize)> {
    let mut live = LiveRun::new(messages);
    let num_steps = job.config.schedule.steps;
    let show = |event: Event| match event {
        Event::Note(text) => live.say(text),
        Event::Warning(text) => live.warn(text),
        Event::Started(run) => {
            let (num_images, num_validation) = (images(run.num_images), images(run.num_validation_images));
            let beginning =
                format!("learning from {num_images} with masks; {num_validation} to score on meanwhile");
            let millions = run.num_parameters as f64 / 1e6;
            live.start(&run, &beginning, &format!("{millions:.2} million parameters"));
        }
        Event::Step { row, seconds_left } => {
            let where_we_are = format!("epoch {}, step {} of {num_steps}", row.epoch, row.step);
            live.show_step(&row, seconds_left, &where_we_are, "");
        }
        Event::Validated { step, validation: Some(validation), .. } => {
            let miou = validation.miou.map_or("–".to_owned(), |miou| format!("{miou:.2} %"));
            let on = images(validation.num_images);
            live.say(format!("step {step}: masks {miou} right (mIoU) on {on}, one scale, no tags"));
        }
        Event::Validated { .. } => {}
    };
    let outcome = live_run::run(interrupt, stop, show, |events| train_on_masks(job, events, stop));
    live.bar.finish_and_clear();
    Ok((outcome?, live.num_warnings))
}

/// Scores the final network on all images with true masks, at several scales with flips, and after the CRF if
/// requested. Returns the number of failures; `None` if interrupted.
fn score(
    args: &Args,
    job: &VerifyJob,
    steps: u64,
    messages: &Messages,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<usize>> {
    let model = args.out.join(MODEL_FILE);
    let options = SegmenterOptions {
        scales: args.scales.clone(),
        flip: true,
        precision: job.precision,
        ..SegmenterOptions::default()
    };
    let segmenter = Segmenter::open(&model, &job.device, options)?;
    let crf = args.crf.then(|| args.crf_options.params());
    let options = ScoreOptions { crf, limits: job.limits.clone(), pictures: 0 };
    let bar = messages.progress_bar(job.validation.len(), "scoring");
    let mut progress = |done: usize| bar.set_position(done as u64);
    let scores = score_segmenter(&segmenter, &job.validation, &options, &mut progress, interrupt.flag())?;
    bar.finish_and_clear();
    let Some(scores) = scores else {
        if interrupt.is_asked() {
            return Ok(None);
        }
        bail!("none of the images to score on could be used");
    };
    scores.failures.iter().for_each(|failure| messages.failure(failure));
    let percent = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2} %"));
    let line = |name: &str, scores: &Scores| {
        let (miou, accuracy) = (percent(scores.mean_iou), percent(scores.pixel_accuracy));
        let with_union = match scores.classes_only_predicted.len() {
            0 => String::new(),
            count => format!(
                " ({} with {count} classes that are predicted but not in the truth)",
                percent(scores.mean_iou_with_union)
            ),
        };
        format!("{name:<12} mIoU {miou}{with_union}, pixel accuracy {accuracy}\n")
    };
    let mut text = format!("{}\n", model.display());
    text += &format!("{}, no tags, scales {:?}, flip\n", images(scores.num_images), args.scales);
    text += &line("network", &scores.baseline);
    if let Some(refined) = &scores.refined {
        text += &line("with CRF", refined);
    }
    let num_failed = scores.failures.len();
    let report = Report {
        num_images: scores.num_images,
        steps,
        scales: args.scales.clone(),
        flip: true,
        scores: scores.baseline,
        scores_with_crf: scores.refined,
    };
    let json = serde_json::to_string_pretty(&report)? + "\n";
    output::write_file(&args.out.join("scores.json"), json.as_bytes())?;
    messages.json_or_text(args.json.as_deref(), &report, &text)?;
    Ok(Some(num_failed))
}
