//! `vitpcm demo`: the whole pipeline on a synthetic data set: draw scenes, train from tags alone, segment held-out
//! images, score them against the known masks, write a report.

use crate::demo_report::{DemoReport, Example, ScoreRow};
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::report::Curves;
use crate::session::Session;
use crate::train;
use anyhow::Context;
use std::path::{Path, PathBuf};
use vitpcm::{CrfParams, RawScores, Segmenter, SegmenterOptions, TagMode, refined_label_map};
use vitpcm_data::{DataError, Dataset, DrawnScenes, ImageLimits, OpenOptions, read_image};
use vitpcm_masks::{ConfusionMatrix, LabelMap, Scores, write_label_png};
use vitpcm_train::{Ending, InitialBackbone, Start, TrainConfig, TrainData, TrainJob, has_run};

/// Image side in pixels: a data set that trains in minutes on two cores.
const SIDE: usize = 96;
const NUM_TRAIN: usize = 400;
const NUM_HELD_OUT: usize = 100;

/// Held-out images in the report.
const NUM_EXAMPLES: usize = 12;

/// Drawn textures have stronger contrast within an object than photographs, so the CRF tolerates more.
const CRF: fn() -> CrfParams =
    || CrfParams { bilateral_sigma_rgb: 20.0, bilateral_sigma_xy: 20.0, ..CrfParams::default() };

#[derive(clap::Args)]
#[command(after_help = "Examples, to paste:\n  vitpcm demo --data-only scenes\n  vitpcm demo --out my-demo")]
pub(crate) struct Args {
    /// Folder for the data set, the model, the masks and the report
    #[arg(long, value_name = "DIR", default_value = "vitpcm-demo")]
    out: PathBuf,
    /// Only draw the data set into this folder
    #[arg(long, value_name = "DIR")]
    data_only: Option<PathBuf>,
}

pub(crate) fn demo(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let scenes = DrawnScenes { seed: session.seed, side: SIDE };
    let out = args.data_only.as_ref().unwrap_or(&args.out);
    session.check_outputs([""; 0], [out.join("tags.csv")])?;
    if let Some(folder) = &args.data_only {
        draw(&scenes, folder)?;
        let folder = folder.display();
        messages.result(&format!(
            "{} tagged images are in {folder}; try\n  vitpcm data inspect {folder}\n  vitpcm train --data {folder} --out run --preset demo\n",
            NUM_TRAIN + NUM_HELD_OUT
        ))?;
        return Ok(Outcome::Done);
    }
    let (data, run, masks) = (args.out.join("data"), args.out.join("run"), args.out.join("masks"));
    let _lock = output::lock_folder(&args.out, "demo")?;
    messages.note(format!("1/4 drawing {NUM_TRAIN} images with tags, and {NUM_HELD_OUT} to be held out"));
    draw(&scenes, &data)?;
    let dataset = Dataset::open(&data, &OpenOptions::default())?;

    messages.note("2/4 training a small network from the tags alone");
    let config = TrainConfig { seed: session.seed, ..TrainConfig::demo() };
    let (device, precision) = session.open_device_to_train()?;
    let job = TrainJob {
        config,
        data: TrainData::of(&dataset, ImageLimits::default()),
        backbone: InitialBackbone::Scratch,
        out: run.clone(),
        start: if has_run(&run) { Start::Resume } else { Start::Fresh },
        device: device.clone(),
        precision,
        features: None,
        provenance: [("made by".to_string(), "vitpcm demo, on drawn scenes".to_string())].into(),
    };
    let (training, _) = train::run(&job, session)?;
    if training.ending == Ending::Interrupted {
        messages.note("interrupted; run the same command again to continue");
        return Ok(Outcome::Interrupted);
    }

    messages.note("3/4 segmenting the held-out images");
    let options = SegmenterOptions { precision, ..SegmenterOptions::default() };
    let segmenter = Segmenter::open(&run.join("model.safetensors"), &device, options)?;
    let report = segment_and_score(&dataset, &segmenter, &masks, &run)?;

    messages.note("4/4 writing the report");
    let path = args.out.join("report.html");
    output::write_file(&path, report.html(&session.invocation).as_bytes())?;
    messages.result(&format!("{}\nthe report is {}\n", report.table(), path.display()))?;
    Ok(Outcome::Done)
}

fn draw(scenes: &DrawnScenes, folder: &Path) -> anyhow::Result<()> {
    scenes.write(folder, NUM_TRAIN, NUM_HELD_OUT).map_err(|error| match error {
        DataError::InTheWay { .. } => usage(error),
        _ => error.into(),
    })
}

/// Ways to make a mask, each scored on all held-out images.
const PROTOCOLS: [&str; 4] = ["tags given", "tags given, + CRF", "tags predicted", "tags predicted, + CRF"];

fn segment_and_score(
    dataset: &Dataset,
    segmenter: &Segmenter,
    masks: &Path,
    run: &Path,
) -> anyhow::Result<DemoReport> {
    std::fs::create_dir_all(masks).with_context(|| format!("{}", masks.display()))?;
    let classes = segmenter.classes();
    let mut matrices = PROTOCOLS.map(|_| ConfusionMatrix::new(classes.len()));
    let mut examples = Vec::new();
    let held_out = dataset.validation().context("the drawn data set has no held-out images")?;
    for &index in &held_out.indices {
        let tagged = &dataset.images()[index];
        let image = read_image(&tagged.path, &ImageLimits::default())?;
        let truth = dataset
            .truth(index)
            .context("a drawn scene without its mask")?
            .read(classes, &ImageLimits::default())?;
        let raw = segmenter.score(&image)?;
        let tags: Vec<usize> = tagged.tags.iter().map(usize::from).collect();
        let given = masks_of(&raw, TagMode::Given(&tags), &image)?;
        let predicted = masks_of(&raw, TagMode::Predicted { threshold: 0.5 }, &image)?;
        let all = [&given[0], &given[1], &predicted[0], &predicted[1]];
        for (matrix, mask) in matrices.iter_mut().zip(all) {
            matrix.add(mask, &truth)?;
        }
        write_label_png(&masks.join(tagged.mask_name()), &given[0])?;
        if examples.len() < NUM_EXAMPLES && !tags.is_empty() {
            let scores = raw.with_tags(TagMode::Given(&tags))?.scores_on_grid;
            let predicted_tags = raw.predicted_tags(0.5);
            let [mask, refined] = given;
            examples.push(Example {
                name: tagged.name.clone(),
                image,
                scores,
                tags,
                predicted_tags,
                mask,
                refined,
                truth,
            });
        }
    }
    let scores = matrices.each_ref().map(|matrix| matrix.scores(classes));
    let row = |(protocol, scores): (&'static str, Scores)| ScoreRow { protocol, scores };
    Ok(DemoReport {
        classes: classes.clone(),
        rows: PROTOCOLS.into_iter().zip(scores).map(row).collect(),
        examples,
        curves: Curves::read(&run.join("metrics.csv"))?,
        num_train: dataset.training().indices.len(),
        num_held_out: held_out.indices.len(),
    })
}

/// The mask before and after the CRF.
fn masks_of(raw: &RawScores, mode: TagMode<'_>, image: &image::RgbImage) -> anyhow::Result<[LabelMap; 2]> {
    let segmentation = raw.with_tags(mode)?;
    let refined = refined_label_map(&segmentation.scores_on_grid, image, segmentation.alignment, &CRF())?;
    Ok([segmentation.label_map(), refined])
}
