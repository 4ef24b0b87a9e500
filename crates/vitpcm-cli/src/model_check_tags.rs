//! `vitpcm model check-tags`: accuracy of a model's predicted tags on tagged images, and its false tags on photographs
//! without any of its classes.

use crate::embedded_model;
use crate::model_path;
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::session::Session;
use crate::tagged_photographs::{Origin, Photograph, PhotographArgs, Photographs};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vitpcm::{Segmenter, SegmenterOptions};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (all but the last line make files to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    mkdir -p few/disc other\n  \
    cp scenes/images/scene-000[0-2].png few/disc\n  \
    cp scenes/images/scene-000[3-5].png other\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n  \
    vitpcm model check-tags --model run/model.safetensors --data few \\\n    \
    --others other\n\n\
    With your own files:\n  \
    vitpcm model check-tags --data VOC2012 --split val --skip-difficult --others photographs")]
pub(crate) struct Args {
    /// The model, as `train` writes it: file or run folder [default: the embedded one]
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    model: Option<PathBuf>,
    #[command(flatten)]
    photographs: PhotographArgs,
    /// Probability from which a predicted tag counts
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, default_value_t = 0.5)]
    tag_threshold: f32,
    /// Write the figures as JSON; `-` prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The content of `--json`.
#[derive(Default, Serialize)]
struct Figures {
    tagged_images: usize,
    /// Percent, over all pairs of image and class; `None` if undefined.
    tag_f1: Option<f64>,
    precision: Option<f64>,
    recall: Option<f64>,
    other_images: usize,
    other_images_with_a_tag: usize,
    /// Percent.
    other_images_with_a_tag_share: Option<f64>,
    /// Expected calibration error in percent, over all images and classes with a probability of at least 0.05.
    calibration_error: Option<f64>,
}

/// Lower probabilities do not count in the calibration error: they are the vast majority, and nearly all are right.
const CALIBRATED_FROM: f32 = 0.05;

#[derive(Default)]
struct Counts {
    right: usize,
    predicted: usize,
    given: usize,
    /// Bins of probability, a tenth each: number of pairs, sum of probabilities, number of true pairs.
    tenths: [(usize, f64, usize); 10],
}

impl Counts {
    fn add(&mut self, photograph: &Photograph, probabilities: &[f32], threshold: f32) -> bool {
        let mut any = false;
        for (class, &probability) in probabilities.iter().enumerate().skip(1) {
            let (is_given, is_found) = (photograph.tags.contains(&class), probability >= threshold);
            any |= is_found;
            if photograph.origin == Origin::Data {
                self.given += usize::from(is_given);
                self.predicted += usize::from(is_found);
                self.right += usize::from(is_given && is_found);
            }
            if probability >= CALIBRATED_FROM {
                let (count, sum, num_true) = &mut self.tenths[((probability * 10.0) as usize).min(9)];
                *count += 1;
                *sum += f64::from(probability);
                *num_true += usize::from(is_given);
            }
        }
        any
    }

    fn calibration_error(&self) -> Option<f64> {
        let total: usize = self.tenths.iter().map(|tenth| tenth.0).sum();
        let error: f64 = self.tenths.iter().map(|tenth| (tenth.1 - tenth.2 as f64).abs()).sum();
        percent(error, total)
    }
}

fn percent(part: f64, whole: usize) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part / whole as f64)
}

pub(crate) fn check_tags(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let (device, precision) = session.open_device()?;
    let options = SegmenterOptions { precision, ..SegmenterOptions::default() };
    let segmenter = match &args.model {
        Some(model) => Segmenter::open(model, &device, options),
        None => Segmenter::new(&embedded_model::load(&device, "--model FILE")?, &device, options),
    }
    .map_err(usage)?;
    let photographs = Photographs::find(&args.photographs, segmenter.classes(), session)?;
    let json = args.json.iter().filter(|path| *path != Path::new("-")).cloned();
    session.check_outputs(photographs.files.iter().chain(&args.model), json)?;

    let (mut figures, mut counts) = (Figures::default(), Counts::default());
    let visited = photographs.visit(session, |photograph, image| {
        let probabilities = segmenter.score(image)?.tag_probabilities;
        let any = counts.add(photograph, &probabilities, args.tag_threshold);
        match photograph.origin {
            Origin::Data => figures.tagged_images += 1,
            Origin::Others => {
                figures.other_images += 1;
                figures.other_images_with_a_tag += usize::from(any);
            }
        }
        Ok(())
    })?;
    let Some(num_failed) = visited else { return Ok(Outcome::Interrupted) };
    figures.tag_f1 = percent(2.0 * counts.right as f64, counts.predicted + counts.given);
    figures.precision = percent(counts.right as f64, counts.predicted);
    figures.recall = percent(counts.right as f64, counts.given);
    figures.other_images_with_a_tag_share =
        percent(figures.other_images_with_a_tag as f64, figures.other_images);
    figures.calibration_error = counts.calibration_error();
    session.messages.json_or_text(args.json.as_deref(), &figures, &figures.text()?)?;
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

impl Figures {
    fn text(&self) -> Result<String, std::fmt::Error> {
        let shown = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2} %"));
        let mut text = String::new();
        writeln!(text, "tagged images            {}", self.tagged_images)?;
        writeln!(text, "  tag F1                 {}", shown(self.tag_f1))?;
        writeln!(text, "  precision              {}", shown(self.precision))?;
        writeln!(text, "  recall                 {}", shown(self.recall))?;
        if self.other_images > 0 {
            writeln!(text, "images of other things   {}", self.other_images)?;
            let (count, share) = (self.other_images_with_a_tag, shown(self.other_images_with_a_tag_share));
            writeln!(text, "  with a false tag       {count}, {share}")?;
        }
        writeln!(text, "calibration error        {}", shown(self.calibration_error))?;
        Ok(text)
    }
}
