//! `vitpcm evaluate --foreground`: any class against background, of one folder of masks or the best of several.

use crate::counting;
use crate::evaluate::{failure_text, names_of, nothing_to_compare, say_missing};
use crate::mask_place;
use crate::outcome::Outcome;
use crate::output::{self, Messages};
use crate::table::{Table, grouped, percent};
use anyhow::{Context, bail};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use vitpcm_masks::{ForegroundScores, MaskCandidates, MaskPairs, evaluate_foreground};

/// What is compared with what.
pub(crate) struct Folders<'a> {
    pub(crate) predictions: &'a [PathBuf],
    pub(crate) truth: &'a Path,
    /// Only these; each must be there.
    pub(crate) names: Option<&'a [String]>,
}

/// What `--json` holds.
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

pub(crate) fn evaluate(
    folders: &Folders<'_>,
    max_pixels: u64,
    json: Option<&Path>,
    messages: &Messages,
) -> anyhow::Result<Outcome> {
    let Candidates { images, without_prediction, mut num_failed } = candidates(folders, messages)?;
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
        num_masks_of_an_image: folders.predictions.len(),
        scores: &evaluation.scores,
    };
    output::json_or_text(json, &report, &text(&report))?;
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// What can be scored, and what cannot.
struct Candidates {
    /// The images that have a mask in every folder.
    images: Vec<MaskCandidates>,
    without_prediction: Vec<String>,
    num_failed: usize,
}

fn candidates(folders: &Folders<'_>, messages: &Messages) -> anyhow::Result<Candidates> {
    let mut by_truth: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    let mut without_prediction = BTreeSet::new();
    let mut num_failed = 0;
    for folder in folders.predictions {
        let found = MaskPairs::find(folder, folders.truth, folders.names)?;
        mask_place::say(&found.way, folder, folders.truth, messages);
        for pair in found.pairs {
            by_truth.entry(pair.truth).or_default().push(pair.prediction);
        }
        let without_truth = names_of(&found.without_truth);
        let missing = names_of(&found.without_prediction);
        say_missing(&without_truth, "true mask", folders.truth, messages);
        say_missing(&missing, "predicted mask", folder, messages);
        num_failed += without_truth.len();
        without_prediction.extend(missing);
    }
    if by_truth.is_empty() {
        let first = folders.predictions.first().context("no folder of predictions")?;
        return Err(nothing_to_compare(first, folders.truth));
    }
    num_failed += without_prediction.len();
    by_truth.retain(|_, predictions| predictions.len() == folders.predictions.len());
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
