//! `vitpcm masks`: the whole job on a folder of tagged images. It plans, trains from the tags, refines, and writes a mask
//! for every image. Each stage is another command, run with the words that a person would type; what is done is kept in
//! the output folder, so that an interrupted job goes on where it stopped.

mod plan;
mod stages;

use self::plan::{Plan, Situation, Speed};
use self::stages::{Begun, Folders, Stage};
use crate::counting::{counted, images};
use crate::data_inspect::problems_line;
use crate::embedded_model;
use crate::image_inputs;
use crate::live_run::duration;
use crate::mask_formats::{self, Format};
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::report::Trust;
use crate::segment_report::judged;
use crate::session::Session;
use anyhow::{Context, anyhow};
use image::RgbImage;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::Instant;
use vitpcm::{Device, Precision, Segmenter, SegmenterOptions, has_fast_bf16};
use vitpcm_data::{
    Dataset, ImageLimits, InputGrid, OpenOptions, TagWarning, TaggedImage, describe_images,
    read_image_header, tag_warnings,
};
use vitpcm_masks::{atomic_file, text_file};

/// Minutes that a job may take unless told otherwise.
const MINUTES_ON_GPU: f64 = 4.0;
const MINUTES_ON_CPU: f64 = 60.0;
/// Tells a folder of this command's results from any other.
const MARKER: &str = ".masks";
/// Headers read to learn how large the images are.
const HEADERS: usize = 100;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws tagged images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm masks scenes --out masks --dry-run\n\n\
    With your own files:\n  \
    vitpcm masks my-images --out masks\n  \
    vitpcm masks my-images --out masks --minutes 20 --format png,overlay,coco\n  \
    vitpcm masks my-images --out masks --resume")]
pub(crate) struct Args {
    /// Folder of tagged images, in any layout that `vitpcm data inspect` knows
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Folder for the masks, the report, the model, and what is needed to resume
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Time that the whole job may take, in minutes [default: 4 on a GPU, 60 on a CPU]
    #[arg(long, value_name = "N", value_parser = number_bounds::minutes)]
    minutes: Option<f64>,
    /// What to write of each image
    #[arg(long, value_parser = mask_formats::format_parser(), value_delimiter = ',', default_value = "png", value_name = "FORMAT,…")]
    format: Vec<Format>,
    /// Say what would be done and how long it takes, and stop
    #[arg(long)]
    dry_run: bool,
    /// Continue the job in --out where it stopped, with its own plan
    #[arg(long)]
    resume: bool,
    /// Write plan, stages, times and agreement as JSON; `-` prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is kept of a job while it goes on.
#[derive(Serialize, Deserialize)]
struct Progress {
    job: Job,
    plan: Plan,
    /// Seconds that each stage took that is done.
    done: Vec<f64>,
    /// Whether the stage after those was begun.
    is_begun: bool,
    /// Whether some inputs of the stages that are done failed.
    some_failed: bool,
}

/// What a job is about; another one is not continued.
#[derive(Serialize, Deserialize, PartialEq)]
struct Job {
    folder: PathBuf,
    classes: Vec<String>,
    formats: Vec<String>,
    seed: u64,
    /// SHA-256 of the names and tags of all images.
    images: String,
}

impl Job {
    fn new(args: &Args, dataset: &Dataset, session: &Session) -> Job {
        let mut digest = Sha256::new();
        for image in dataset.images() {
            digest.update(format!("{}\0{:?}\n", image.name, image.tags.iter().collect::<Vec<_>>()));
        }
        Job {
            folder: args.folder.canonicalize().unwrap_or_else(|_| args.folder.clone()),
            classes: dataset.classes().names()[1..].to_vec(),
            formats: args.format.iter().map(|format| format.name().to_owned()).collect(),
            seed: session.seed,
            images: digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// What differs from another job, in words.
    fn differences(&self, other: &Job) -> Vec<&'static str> {
        let parts = [
            (self.folder != other.folder, "FOLDER"),
            (self.classes != other.classes, "the classes"),
            (self.images != other.images, "the images or their tags"),
            (self.formats != other.formats, "--format"),
            (self.seed != other.seed, "--seed"),
        ];
        parts.into_iter().filter(|(differs, _)| *differs).map(|(_, what)| what).collect()
    }
}

/// What `--json` says.
#[derive(Serialize)]
struct Report<'a> {
    folder: &'a Path,
    images: usize,
    classes: &'a [String],
    plan: &'a Plan,
    commands: Vec<String>,
    /// What the tags cannot teach.
    warnings: &'a [TagWarning],
    /// Of the stages done so far.
    seconds: &'a [f64],
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<&'a Trust>,
}

pub(crate) fn masks(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    embedded_model::check("`vitpcm train --weights FILE` instead: `masks` starts from it")?;
    if !args.folder.is_dir() {
        let found = if args.folder.exists() { "it is a file" } else { "there is no such folder" };
        let text = format!("{}: {found}; expected a folder of tagged images", args.folder.display());
        return Err(usage(anyhow!(text)));
    }
    let dataset = Dataset::open(&args.folder, &OpenOptions::default())?;
    dataset.check_tagged()?;
    let classes = &dataset.classes().names()[1..];
    let outputs = args.json.clone().into_iter().chain([args.out.join("model.safetensors")]);
    session.check_outputs(dataset.files().map(Path::to_path_buf), outputs)?;
    refuse_inside(&args.folder, &args.out)?;
    let root = image_root(&dataset);
    // Two images whose masks would have one name: better said now than after the training.
    image_inputs::collect(std::slice::from_ref(&root), |_| false, messages)?;
    let folders = Folders::new(&args.folder, &root, &args.out);
    let kept = folders.progress();
    let job = Job::new(args, &dataset, session);
    let mut progress = match (args.resume, kept.is_file()) {
        (true, true) => resumed(&kept, &job).map_err(usage)?,
        (true, false) => {
            let text = "there is no job to resume; the command without --resume starts one";
            return Err(usage(anyhow!("{}: {text}", args.out.display())));
        }
        (false, true) if !args.dry_run => {
            let text = "it holds a job already; --resume continues it, another --out starts anew";
            return Err(usage(anyhow!("{}: {text}", args.out.display())));
        }
        (false, _) => {
            session.check_stop()?;
            let plan = new_plan(args, &dataset, session)?;
            Progress { job, plan, done: Vec::new(), is_begun: false, some_failed: false }
        }
    };
    if args.resume && args.minutes.is_some() {
        messages.note(
            "the job keeps the plan that it began with: --minutes is not used; another --out starts anew",
        );
    }
    let stages_of = |plan: &Plan, masks_by| stages::of_plan(plan, masks_by, &folders, &args.format);
    let mut masks_by = folders.masks_by();
    let mut stages = stages_of(&progress.plan, masks_by);
    let warnings = tag_warnings(
        dataset.classes(),
        &describe_images(dataset.images(), &ImageLimits::default()),
        InputGrid::default(),
    );
    let summary = |progress: &Progress, stages: &[Stage], agreement: Option<&Trust>| {
        let report = Report {
            folder: &args.folder,
            images: dataset.images().len(),
            classes,
            plan: &progress.plan,
            commands: stages.iter().map(Stage::shown).collect(),
            warnings: &warnings,
            seconds: &progress.done,
            agreement,
        };
        args.json.as_deref().map_or(Ok(()), |path| messages.json_or_text(Some(path), &report, ""))
    };
    say_plan(&dataset, &progress.plan, &stages, session);
    dataset.notes().iter().for_each(|note| messages.note(note));
    problems_line(&dataset, &args.folder).iter().for_each(|line| messages.note(line));
    warnings.iter().for_each(|warning| messages.note(format!("warning: {warning}")));
    if args.dry_run {
        summary(&progress, &stages, None)?;
        return Ok(Outcome::Done);
    }

    output::check_own_folder(&args.out, MARKER)?;
    let _lock = output::lock_folder(&folders.work, "masks")?;
    // Masks may have been removed since, or failed: the last stage that made some looks again, and does what is missing.
    if progress.done.len() >= stages.len() {
        progress.done.truncate(stages.iter().rposition(Stage::makes_masks).unwrap_or_default());
        (progress.is_begun, progress.some_failed) = (true, false);
    }
    while let Some(stage) = stages.get(progress.done.len()) {
        session.check_stop()?;
        messages.stage(progress.done.len() + 1, stages.len(), stage.what);
        let begun = if progress.is_begun { Begun::Before } else { Begun::Now };
        progress.is_begun = true;
        write_progress(&kept, &progress)?;
        let started = Instant::now();
        match stage.run(begun, session)? {
            Outcome::Interrupted => {
                messages.note("interrupted; the same command with --resume goes on");
                return Ok(Outcome::Interrupted);
            }
            Outcome::SomeFailed => progress.some_failed = true,
            Outcome::Done => {}
        }
        progress.done.push(started.elapsed().as_secs_f64());
        progress.is_begun = false;
        write_progress(&kept, &progress)?;
        if masks_by != folders.masks_by() {
            masks_by = folders.masks_by();
            stages = stages_of(&progress.plan, masks_by);
            say_new_plan(&progress.plan, &stages[progress.done.len()..], session);
        }
    }
    // Large, and of no use once all rounds are done.
    let _ = std::fs::remove_dir_all(folders.features());
    let model = args.out.join("model.safetensors");
    copy_whole(&folders.final_model(&progress.plan, masks_by), &model)?;
    let judged = judged(&args.out, dataset.classes())?;
    summary(&progress, &stages, judged.trust.as_ref())?;
    let nothing_to_compare = "there are no masks of another round to compare with: look at the masks before you use them, the least \
                     certain first; with more --minutes there are\n";
    let mut text = judged.trust.map_or(nothing_to_compare.to_owned(), |trust| trust.table());
    judged.faults.iter().for_each(|sentence| text += &format!("{sentence}\n"));
    let taken = duration(progress.done.iter().sum());
    let mask = |image: &TaggedImage| {
        let name = image.path.strip_prefix(&root).unwrap_or(&image.path);
        args.out.join(name).with_extension("png")
    };
    let num_masks = dataset.images().iter().filter(|image| mask(image).is_file()).count();
    text += &format!(
        "{num_masks} of {} in {taken}: {}\nreport: {}\nmodel: {}\n",
        counted(dataset.images().len(), "mask", "masks"),
        args.out.display(),
        args.out.join("report.html").display(),
        model.display()
    );
    if args.json.as_deref() != Some(Path::new("-")) {
        messages.result(&text)?;
    }
    Ok(if progress.some_failed { Outcome::SomeFailed } else { Outcome::Done })
}

/// The deepest folder that holds all images: what else lies in the data set's folder, true masks for one, is not segmented.
fn image_root(dataset: &Dataset) -> PathBuf {
    let first = dataset.images().first().and_then(|image| image.path.parent());
    let Some(first) = first else { return dataset.root().to_path_buf() };
    let holds_all = |root: &&Path| dataset.images().iter().all(|image| image.path.starts_with(root));
    first.ancestors().find(holds_all).unwrap_or(dataset.root()).to_path_buf()
}

/// Masks among the images would be taken for images by the next command that looks at them.
fn refuse_inside(folder: &Path, out: &Path) -> anyhow::Result<()> {
    let existing = out.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let place = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let (Ok(folder), Ok(place)) = (folder.canonicalize(), place.canonicalize()) else { return Ok(()) };
    if place.starts_with(&folder) {
        let text = "it lies in the folder of the images; choose one outside of it";
        return Err(usage(anyhow!("{}: {text}", out.display())));
    }
    Ok(())
}

fn say_plan(dataset: &Dataset, plan: &Plan, stages: &[Stage], session: &Session) {
    let num_untagged = dataset.images().iter().filter(|image| image.tags.iter().next().is_none()).count();
    let negatives = match num_untagged {
        0 => "each with a tag".to_owned(),
        count => format!("{count} without a tag, used as negative examples"),
    };
    let classes = dataset.classes().names()[1..].join(", ");
    let mut lines = vec![
        format!("{}, {negatives}", images(dataset.images().len())),
        format!("{}: {classes}", counted(dataset.classes().len() - 1, "class", "classes")),
        format!(
            "plan: {}; the last {} trained",
            in_rounds(&plan.rounds),
            counted(plan.way.blocks, "block is", "blocks are")
        ),
        format!(
            "masks at {} px, refined by a dense CRF; about {} in all",
            plan.final_size,
            duration(plan.seconds)
        ),
    ];
    lines.push("the same by single commands:".to_owned());
    lines.extend(stages.iter().map(|stage| format!("  {}", stage.shown())));
    lines.iter().for_each(|line| session.messages.note(line));
}

/// What changes once linear heads have replaced the masks of the first round.
fn say_new_plan(plan: &Plan, rest: &[Stage], session: &Session) {
    let Some(later) = &plan.after_heads else { return };
    let way = match &later[..] {
        [] => "a linear head makes all masks; with more --minutes, two rounds learn from it".to_owned(),
        [epochs, ..] => {
            let epochs = counted(*epochs, "epoch", "epochs");
            format!("{} times {epochs} from the masks of a linear head", later.len())
        }
    };
    let mut lines = vec![format!("new plan, because the network missed the objects: {way}")];
    lines.push("the rest by single commands:".to_owned());
    lines.extend(rest.iter().map(|stage| format!("  {}", stage.shown())));
    lines.iter().for_each(|line| session.messages.note(line));
}

/// What each round does, in words.
fn in_rounds(rounds: &[usize]) -> String {
    let epochs = |count: usize| counted(count, "epoch", "epochs");
    let first = format!("{} from the tags", epochs(rounds[0]));
    match &rounds[1..] {
        [] => first,
        [second] => format!("{first}, then {} from the refined masks", epochs(*second)),
        [second, later @ ..] => {
            format!("{first}, then {} times {} from the refined masks", later.len() + 1, epochs(*second))
        }
    }
}

fn new_plan(args: &Args, dataset: &Dataset, session: &Session) -> anyhow::Result<Plan> {
    let (device, precision) = session.open_device()?;
    let minutes = args.minutes.unwrap_or(if device.is_cpu() { MINUTES_ON_CPU } else { MINUTES_ON_GPU });
    let situation = Situation {
        num_images: dataset.images().len(),
        num_classes: dataset.classes().len() - 1,
        megapixels: mean_megapixels(dataset),
        minutes,
        speed: measured_speed(&device, precision)?,
    };
    let plan = Plan::new(&situation);
    if plan.seconds > 1.1 * 60.0 * minutes {
        session.messages.note(format!(
            "--minutes {minutes} is too short for {} on this machine; the quickest way takes about {}",
            images(situation.num_images),
            duration(plan.seconds)
        ));
    }
    Ok(plan)
}

/// Images that cannot be read are left to the stages, which name them.
fn mean_megapixels(dataset: &Dataset) -> f64 {
    let step = dataset.images().len().div_ceil(HEADERS).max(1);
    let headers = dataset.images().iter().step_by(step);
    let pixels: Vec<f64> = headers
        .filter_map(|image| read_image_header(&image.path, &ImageLimits::default()).ok())
        .map(|header| f64::from(header.width) * f64::from(header.height))
        .collect();
    pixels.iter().sum::<f64>() / pixels.len().max(1) as f64 / 1e6
}

/// Times the network on this machine. The rest follows by factors read off runs on two CPU cores and on an H200 with 16
/// cores: good enough to plan with.
fn measured_speed(device: &Device, precision: Precision) -> anyhow::Result<Speed> {
    let model = vitpcm::embedded_model(device)?;
    let pass = |precision: Precision| -> anyhow::Result<f64> {
        let options = SegmenterOptions { precision, ..SegmenterOptions::default() };
        let segmenter = Segmenter::new(&model, device, options)?;
        let image = RgbImage::new(448, 448);
        // The first pass loads and compiles what later ones find ready; the fastest is the least disturbed by other work.
        segmenter.score(&image)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            let started = Instant::now();
            segmenter.score(&image)?;
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
        Ok(fastest)
    };
    let threads = rayon::current_num_threads() as f64;
    let pass_in_use = pass(precision)?;
    Ok(Speed {
        pass: pass_in_use,
        // A GPU trains whole batches, which one image at a time says nothing of.
        training_pass: match (device.is_cpu(), precision) {
            (true, Precision::F32 | Precision::Bf16) => pass_in_use,
            (true, Precision::Int8) if has_fast_bf16() => pass(Precision::Bf16)?,
            (true, Precision::Int8) => pass(Precision::F32)?,
            (false, _) => 0.0019,
        },
        files: 0.004 + 0.03 / threads,
        crf_megapixel: 0.75 / threads.clamp(1.0, 16.0),
        heads_class: 12.0 / threads,
        heads_image: 0.06 / threads,
        round: 5.0,
    })
}

/// The progress of the same job.
fn resumed(path: &Path, job: &Job) -> anyhow::Result<Progress> {
    let text = text_file::read(path).with_context(|| format!("{}", path.display()))?;
    let progress: Progress = serde_json::from_str(&text)
        .with_context(|| format!("{}: expected the progress of a job", path.display()))?;
    match &progress.job.differences(job)[..] {
        [] => Ok(progress),
        parts => Err(anyhow!(
            "{}: the job in there differs in {}; resume it as it was begun, or choose another --out",
            path.display(),
            parts.join(" and ")
        )),
    }
}

fn write_progress(path: &Path, progress: &Progress) -> anyhow::Result<()> {
    output::write_file(path, &serde_json::to_vec_pretty(progress)?)
}

fn copy_whole(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copy = || {
        let mut source = std::fs::File::open(from)?;
        atomic_file::write(to, |file| std::io::copy(&mut source, file).map(drop))
    };
    copy().with_context(|| format!("{}: copying it to {}", from.display(), to.display()))
}
