//! `vitpcm-lab foreground`: scores any class against background, for one folder of masks or the best of several.

use crate::foreground_scores::{ForegroundScores, MaskCandidates, evaluate_foreground};
use anyhow::{Context, bail};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use vitpcm_cli::compared_masks::{failure_text, names_of, nothing_to_compare, read_names, say_missing};
use vitpcm_cli::counting;
use vitpcm_cli::mask_place;
use vitpcm_cli::outcome::{Outcome, usage};
use vitpcm_cli::output::Messages;
use vitpcm_cli::session::Session;
use vitpcm_cli::table::{Table, grouped, percent};
use vitpcm_masks::{MaskPairs, mask_files};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws masks to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm-lab foreground --pred scenes/masks --truth scenes/masks\n\n\
    With your own files:\n  \
    vitpcm-lab foreground --pred attention/head-* --truth VOC2012/SegmentationClass")]
pub(crate) struct Args {
    /// Folder of predicted masks (PNG with one class index per pixel); of several folders, the best mask of each image
    /// counts
    #[arg(long, value_name = "DIR", required = true, num_args = 1..)]
    pred: Vec<PathBuf>,
    /// Folder of true masks with the same names and sizes (255: ignored)
    #[arg(long, value_name = "DIR")]
    truth: PathBuf,
    /// Only the names listed in this file (a split); each needs a prediction and a true mask
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Write all scores as JSON; `-` prints them instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The content of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    num_images: usize,
    num_failed: usize,
    /// True masks, or listed names, without a prediction in some folder.
    without_prediction: &'a [String],
    num_masks_of_an_image: usize,
    #[serde(flatten)]
    scores: &'a ForegroundScores,
}

pub(crate) fn foreground(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let names = args.list.as_deref().map(read_names).transpose().map_err(usage)?;
    let folders = args.pred.iter().chain([&args.truth]);
    let masks = folders.flat_map(|folder| mask_files(folder).unwrap_or_default().into_values());
    session.check_outputs(masks.chain(args.list.clone()), args.json.clone())?;
    let max_pixels = session.image_limits().max_pixels;
    let Candidates { images, without_prediction, mut num_failed } =
        candidates(args, names.as_deref(), messages)?;
    let evaluation = evaluate_foreground(&images, max_pixels);
    num_failed += evaluation.failures.len();
    for (prediction, error) in &evaluation.failures {
        messages.failure(failure_text(prediction, error));
    }
    if evaluation.num_images == 0 {
        bail!("none of the {} images could be scored", images.len());
    }
    let report = Report {
        num_images: evaluation.num_images,
        num_failed,
        without_prediction: &without_prediction,
        num_masks_of_an_image: args.pred.len(),
        scores: &evaluation.scores,
    };
    messages.json_or_text(args.json.as_deref(), &report, &text(&report))?;
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// The images to score, and those that cannot be scored.
struct Candidates {
    /// The images that have a mask in every folder.
    images: Vec<MaskCandidates>,
    without_prediction: Vec<String>,
    num_failed: usize,
}

fn candidates(args: &Args, names: Option<&[String]>, messages: &Messages) -> anyhow::Result<Candidates> {
    let mut by_truth: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    let mut without_prediction = BTreeSet::new();
    let mut num_failed = 0;
    for folder in &args.pred {
        let found = MaskPairs::find(folder, &args.truth, names)?;
        mask_place::say(&found.way, folder, &args.truth, messages);
        for pair in found.pairs {
            by_truth.entry(pair.truth).or_default().push(pair.prediction);
        }
        let without_truth = names_of(&found.without_truth);
        let missing = names_of(&found.without_prediction);
        say_missing(&without_truth, "true mask", &args.truth, messages);
        say_missing(&missing, "predicted mask", folder, messages);
        num_failed += without_truth.len();
        without_prediction.extend(missing);
    }
    if by_truth.is_empty() {
        let first = args.pred.first().context("no folder of predictions")?;
        return Err(nothing_to_compare(first, &args.truth));
    }
    num_failed += without_prediction.len();
    by_truth.retain(|_, predictions| predictions.len() == args.pred.len());
    let images = by_truth.into_iter().map(|(truth, predictions)| MaskCandidates { predictions, truth });
    let without_prediction = without_prediction.into_iter().collect();
    Ok(Candidates { images: images.collect(), without_prediction, num_failed })
}

fn text(report: &Report<'_>) -> String {
    let scores = report.scores;
    let mut table = Table::new(["any class against background", "%"]);
    let mut line = |name: &str, value: Option<f64>| table.row([name.to_string(), percent(value)]);
    line("foreground IoU, all pixels", scores.foreground_iou);
    line("background IoU, all pixels", scores.background_iou);
    line("mean of both (ViT-PCM's measure)", scores.foreground_background_mean_iou);
    line("Jaccard index, mean of images", scores.jaccard);
    line("Jaccard index with each class, mean of images (DINO's)", scores.jaccard_by_class);
    let best = match report.num_masks_of_an_image {
        1 => String::new(),
        several => format!(", the best of {several} masks each"),
    };
    let pixels = grouped(scores.num_pixels);
    format!(
        "{table}\n{}{best}, {pixels} pixels ({} ignored)\n",
        counting::images(report.num_images),
        grouped(scores.num_ignored)
    )
}
