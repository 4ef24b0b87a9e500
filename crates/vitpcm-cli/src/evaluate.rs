//! `vitpcm evaluate`: scores a folder of masks against true masks.

use crate::class_names;
use crate::compared_masks::{
    NAMED_MISSING, failure_text, names_of, nothing_to_compare, read_names, say_missing,
};
use crate::counting::{counted, images};
use crate::file_guard;
use crate::mask_place;
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::printable;
use crate::session::Session;
use crate::table::{Table, grouped, percent};
use anyhow::{anyhow, bail};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use vitpcm_masks::{Classes, ConfusionMatrix, MaskPairs, Scores, confusion_svg, evaluate_pairs, mask_files};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws masks to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm evaluate --pred scenes/masks --truth scenes/masks\n\n\
    With your own files:\n  \
    vitpcm evaluate --pred masks --truth VOC2012/SegmentationClass --classes voc")]
pub(crate) struct Args {
    /// Folder of predicted masks (PNG with one class index per pixel; 255: unlabelled, counts as wrong)
    #[arg(long, value_name = "DIR")]
    pred: PathBuf,
    /// Folder of true masks with the same names and sizes (255: ignored)
    #[arg(long, value_name = "DIR")]
    truth: PathBuf,
    /// `voc`, `coco`, or a file with one class name per line [default: classes.txt in either folder, else numbers]
    #[arg(long, value_name = "voc|coco|FILE")]
    classes: Option<String>,
    /// Only the names listed in this file (a split); each needs a prediction and a true mask
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Write all scores and the confusion matrix as JSON; `-` prints them instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the confusion matrix as an SVG picture
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

/// The content of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    num_images: usize,
    /// Masks left out: unreadable or without a counterpart.
    num_failed: usize,
    /// True masks, or listed names, without a prediction.
    without_prediction: &'a [String],
    /// Predictions without a true mask.
    without_truth: &'a [String],
    #[serde(flatten)]
    scores: &'a Scores,
    classes: &'a [String],
    /// Rows: truth. Columns: prediction; the last column counts unlabelled pixels.
    confusion: Vec<Vec<u64>>,
}

pub(crate) fn evaluate(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let names = args.list.as_deref().map(read_names).transpose().map_err(usage)?;
    let max_pixels = session.image_limits().max_pixels;
    check_outputs(args, session)?;
    let truth = mask_place::truth_place(&args.truth, messages);
    let found = MaskPairs::find(&args.pred, &truth, names.as_deref())?;
    let places = [found.way.first_place(&args.pred), found.way.second_place(&truth)];
    let classes = class_list(args, &places).map_err(usage)?;
    if found.pairs.is_empty() {
        return Err(nothing_to_compare(&args.pred, &truth));
    }
    mask_place::say(&found.way, &args.pred, &truth, messages);

    // Without a class list every label but 255 is a class, up to the highest that occurs.
    let num_classes = classes.as_ref().map_or(255, Classes::len);
    let evaluation = evaluate_pairs(&found.pairs, num_classes, max_pixels);
    let without_prediction = names_of(&found.without_prediction);
    let without_truth = names_of(&found.without_truth);
    let num_failed = evaluation.failures.len() + without_prediction.len() + without_truth.len();
    for failure in evaluation.failures.iter().take(NAMED_MISSING) {
        messages.failure(failure_text(&failure.prediction, &failure.error));
    }
    if evaluation.failures.len() > NAMED_MISSING {
        let more = evaluation.failures.len() - NAMED_MISSING;
        messages.failure(format!("{more} more cannot be scored"));
    }
    say_missing(&without_truth, "true mask", &truth, messages);
    say_missing(&without_prediction, "predicted mask", &args.pred, messages);
    if evaluation.num_images == 0 {
        bail!("none of the {} masks could be scored", found.pairs.len());
    }

    let (matrix, classes) = match classes {
        Some(classes) => (evaluation.matrix, classes),
        None => {
            let matrix = evaluation.matrix.trimmed();
            let classes = Classes::numbered(matrix.num_classes() - 1)?;
            (matrix, classes)
        }
    };
    let scores = matrix.scores(&classes);
    let report = Report {
        num_images: evaluation.num_images,
        num_failed,
        without_prediction: &without_prediction,
        without_truth: &without_truth,
        scores: &scores,
        classes: classes.names(),
        confusion: confusion_rows(&matrix),
    };
    messages.json_or_text(args.json.as_deref(), &report, &text(&report))?;
    if let Some(path) = &args.picture {
        output::write_file(path, confusion_svg(&matrix, &classes).as_bytes())?;
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// Refuses to overwrite masks or lists, and to write both results to one file.
fn check_outputs(args: &Args, session: &Session) -> anyhow::Result<()> {
    let folders = [&args.pred, &args.truth];
    let masks = folders.into_iter().flat_map(|folder| mask_files(folder).unwrap_or_default().into_values());
    let class_lists = folders.map(|folder| folder.join(class_names::CLASS_LIST));
    let lists = args.list.iter().cloned().chain(args.classes.iter().map(PathBuf::from));
    let outputs = args.json.iter().chain(&args.picture).cloned();
    session.check_outputs(masks.chain(class_lists).chain(lists), outputs)?;
    match (&args.json, &args.picture) {
        (Some(json), Some(picture)) if file_guard::is_same_place(json, picture) => {
            Err(usage(anyhow!("{}: --json and --picture name one file", json.display())))
        }
        _ => Ok(()),
    }
}

/// The named classes, or the list found in a given folder or next to its masks.
fn class_list(args: &Args, places: &[PathBuf]) -> anyhow::Result<Option<Classes>> {
    Ok(match args.classes.as_deref() {
        Some(text) => Some(class_names::named(text)?),
        None => {
            let folders = || [&args.pred, &args.truth].into_iter().chain(places);
            let mut beside = folders().map(|folder| folder.join(class_names::CLASS_LIST));
            let classes =
                beside.find(|path| path.is_file()).map(|path| Classes::from_file(&path)).transpose()?;
            if let Some(classes) = &classes {
                folders().try_for_each(|folder| class_names::check_beside(folder, classes)).map_err(usage)?;
            }
            classes
        }
    })
}

fn confusion_rows(matrix: &ConfusionMatrix) -> Vec<Vec<u64>> {
    let classes = 0..matrix.num_classes();
    let row = |truth: usize| {
        let predictions = classes.clone().map(|prediction| matrix.count(truth, prediction));
        predictions.chain([matrix.unlabelled(truth)]).collect()
    };
    classes.clone().map(row).collect()
}

fn text(report: &Report<'_>) -> String {
    let scores = report.scores;
    let mut table = Table::new(["class", "IoU %", "accuracy %", "precision %", "true pixels", "predicted"]);
    for class in scores.per_class.iter().filter(|class| class.truth_pixels + class.predicted_pixels > 0) {
        table.row([
            class.name.clone(),
            percent(class.iou),
            percent(class.accuracy),
            percent(class.precision),
            grouped(class.truth_pixels),
            grouped(class.predicted_pixels),
        ]);
    }
    let in_truth = scores.per_class.iter().filter(|class| class.truth_pixels > 0).count();
    let with_union = scores.per_class.iter().filter(|class| class.iou.is_some()).count();
    let mut summary = Table::new(["", ""]);
    let mut line = |name: String, value: Option<f64>| summary.row([name, percent(value)]);
    // If a class is predicted that never occurs in the truth, the mean that counts it comes first.
    if with_union != in_truth {
        line(format!("mIoU, {with_union} classes in truth or prediction"), scores.mean_iou_with_union);
    }
    line(format!("mIoU, {} in the truth", counted(in_truth, "class", "classes")), scores.mean_iou);
    line("pixel accuracy".into(), scores.pixel_accuracy);
    line("mean accuracy".into(), scores.mean_accuracy);
    line("frequency-weighted IoU".into(), scores.frequency_weighted_iou);
    line("foreground IoU".into(), scores.foreground_iou);
    line("background IoU".into(), scores.background_iou);
    line("foreground/background mIoU".into(), scores.foreground_background_mean_iou);
    let mut text = format!("{table}{summary}");
    // Writing to a String cannot fail.
    let _ = write!(text, "\n{}, {} pixels", images(report.num_images), grouped(scores.num_pixels));
    let _ = writeln!(
        text,
        " ({} ignored, {} unlabelled)",
        grouped(scores.num_ignored),
        grouped(scores.num_unlabelled)
    );
    if !scores.classes_only_predicted.is_empty() {
        let names = printable::cell(&scores.classes_only_predicted.join(", "));
        let _ = writeln!(text, "predicted, but nowhere in the truth (IoU 0): {names}");
    }
    if report.num_failed > 0 {
        let (failed, missing) = (report.num_failed, report.without_prediction.len());
        let why = match missing {
            0 => String::new(),
            missing if missing == failed => " (no prediction)".to_owned(),
            missing => format!(" ({missing} have no prediction)"),
        };
        let _ = writeln!(text, "left out: {}{why}", counted(failed, "mask", "masks"));
    }
    text
}
