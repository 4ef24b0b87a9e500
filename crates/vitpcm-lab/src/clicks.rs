//! `vitpcm-lab clicks`: scores masks after every click of a simulated annotator, who corrects them without training.

use crate::annotator::next_click;
use anyhow::Context;
use rayon::prelude::*;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vitpcm::{
    Hint, HintReach, ImageFeatures, LabelMap, Segmentation, Segmenter, SegmenterOptions, TagMode, draw_hints,
};
use vitpcm_cli::head_contest::{spread, with_masks};
use vitpcm_cli::model_path;
use vitpcm_cli::number_bounds;
use vitpcm_cli::outcome::{Outcome, usage};
use vitpcm_cli::output;
use vitpcm_cli::session::Session;
use vitpcm_data::{Dataset, OpenOptions, Random, TaggedImage, read_image};
use vitpcm_masks::{Classes, ConfusionMatrix, read_label_png_within};

#[derive(clap::Args)]
#[command(
    after_help = "Example, to paste (the first two lines draw images and make a model without knowledge):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm-lab random --backbone vit-nano16 --classes scenes/classes.txt --out nano.safetensors\n  \
    vitpcm-lab clicks --data scenes --truth scenes/masks --model nano.safetensors --out clicks.csv\n\n\
    With your own data set and what `vitpcm masks` made of it:\n  \
    vitpcm-lab clicks --data my-images --truth true-masks --model masks --out clicks.csv"
)]
pub(crate) struct Args {
    /// The data set: a folder with tagged images
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// True masks, with the data set's classes
    #[arg(long, value_name = "DIR")]
    truth: PathBuf,
    /// The model, or its run folder [default: the embedded model]
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    model: Option<PathBuf>,
    /// The table: mIoU after each number of clicks
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Clicks per image
    #[arg(long, value_name = "N", value_parser = number_bounds::clicks, default_value_t = 5)]
    clicks: usize,
    /// Number of images, evenly spaced
    #[arg(long, value_name = "N", value_parser = number_bounds::sample_size, default_value_t = 100)]
    max_images: usize,
    /// Side in pixels to which images are resized for the network [default: the model's own]
    #[arg(long, value_name = "N", value_parser = number_bounds::network_side)]
    size: Option<usize>,
    /// Largest error of a click, in pixels along each axis
    #[arg(long, value_name = "PIXELS", default_value_t = 0.0)]
    error: f32,
    /// Decay of the similarity of two patches with the cosine of their features
    #[arg(long, value_name = "X", value_parser = number_bounds::fraction_above_zero, default_value_t = HintReach::default().decay)]
    decay: f32,
    /// Distance over which the similarity falls, as a fraction of the image's longer side
    #[arg(long, value_name = "X", value_parser = number_bounds::fraction_above_zero, default_value_t = HintReach::default().distance)]
    distance: f32,
    /// Fraction of the similarity that does not fall with the distance
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, default_value_t = HintReach::default().everywhere)]
    everywhere: f32,
}

pub(crate) fn clicks(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let limits = session.image_limits();
    let options = OpenOptions { limits: limits.clone(), ..OpenOptions::default() };
    let dataset = Dataset::open(&args.data, &options)?;
    let classes = dataset.classes();
    let (truth, images) =
        with_masks(&args.truth, dataset.images().iter().collect(), messages).map_err(usage)?;
    let images = spread(&images, args.max_images);
    let inputs = dataset.files().map(Path::to_path_buf).chain(args.model.clone());
    session.check_outputs(inputs, [args.out.clone()])?;
    let (device, precision) = session.open_device()?;
    let options = SegmenterOptions { precision, size: args.size, ..SegmenterOptions::default() };
    let segmenter = match &args.model {
        Some(path) => Segmenter::open(path, &device, options)?,
        None => Segmenter::embedded(&device, options)?,
    };
    let annotated = Annotated { args, segmenter: &segmenter, classes };

    let bar = messages.progress_bar(images.len(), "images");
    let mut sums = vec![ConfusionMatrix::new(classes.len()); args.clicks + 1];
    let mut milliseconds: Vec<f64> = Vec::new();
    let numbered: Vec<(u64, &TaggedImage)> = (0..).zip(images).collect();
    for some in numbered.chunks(16) {
        // The network takes all cores for one image, the annotator one core an image.
        let prepared = some.iter().map(|&(index, image)| annotated.prepared(index, image, &truth, session));
        let prepared = prepared.collect::<anyhow::Result<Vec<_>>>()?;
        let corrected = prepared.par_iter().map(|image| annotated.corrected(image, session.seed));
        for of_image in corrected.collect::<anyhow::Result<Vec<_>>>()? {
            for (sum, (confusion, time)) in sums.iter_mut().zip(of_image) {
                sum.merge(&confusion);
                milliseconds.push(time);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut table = "clicks,miou\n".to_owned();
    for (click, sum) in sums.iter().enumerate() {
        writeln!(table, "{click},{:.2}", sum.scores(classes).mean_iou.unwrap_or(f64::NAN))?;
    }
    output::write_file(&args.out, table.as_bytes())?;
    milliseconds.sort_by(f64::total_cmp);
    let median = milliseconds[milliseconds.len() / 2];
    let slowest = milliseconds[milliseconds.len() - 1];
    table.lines().for_each(|line| messages.note(line));
    messages.note(format!("a correction takes {median:.1} ms, at most {slowest:.1} ms"));
    Ok(Outcome::Done)
}

struct Annotated<'a> {
    args: &'a Args,
    segmenter: &'a Segmenter,
    classes: &'a Classes,
}

/// What the network says of an image, and what is true.
struct Prepared {
    index: u64,
    first: Segmentation,
    features: ImageFeatures,
    truth: LabelMap,
}

impl Annotated<'_> {
    fn prepared(
        &self,
        index: u64,
        image: &TaggedImage,
        truth: &Path,
        session: &Session,
    ) -> anyhow::Result<Prepared> {
        let limits = session.image_limits();
        let pixels = read_image(&image.path, &limits)?;
        let truth = read_label_png_within(&truth.join(image.mask_name()), limits.max_pixels)?;
        let tags = image.tags.iter().map(|tag| self.class_of_model(usize::from(tag)));
        let tags = tags.collect::<anyhow::Result<Vec<_>>>()?;
        let (scores, features) = self.segmenter.score_with_features(&pixels)?;
        let first = scores.with_tags(TagMode::Given(&tags))?;
        Ok(Prepared { index, first, features, truth })
    }

    /// The model's number of a class of the data set: true masks are compared as they are, so it must be the same.
    fn class_of_model(&self, class: usize) -> anyhow::Result<usize> {
        let name = self.classes.name(class).context("a tag names a class")?;
        let found = self.segmenter.classes().index_of(name);
        found.filter(|&of_model| of_model == class).with_context(|| {
            format!("{name} is class {class} of the data set; the model has other classes or another order")
        })
    }

    /// Scores after each number of clicks, and the time of the correction in milliseconds.
    fn corrected(&self, image: &Prepared, seed: u64) -> anyhow::Result<Vec<(ConfusionMatrix, f64)>> {
        let Args { decay, distance, everywhere, error, .. } = *self.args;
        let reach = HintReach { decay, distance, everywhere };
        let mut random = Random::new(&[seed, image.index]);
        let mut hints: Vec<Hint> = Vec::new();
        let mut scored = Vec::with_capacity(self.args.clicks + 1);
        for _ in 0..=self.args.clicks {
            let started = Instant::now();
            let corrected = image.first.with_hints(&hints, &image.features, &reach)?;
            let milliseconds = 1000.0 * started.elapsed().as_secs_f64();
            let mask = draw_hints(corrected.label_map(), &hints);
            let mut confusion = ConfusionMatrix::new(self.classes.len());
            confusion.add(&mask, &image.truth)?;
            scored.push((confusion, milliseconds));
            let mut offset = || random.range(-error, error);
            hints.extend(next_click(&mask, &image.truth, (offset(), offset())));
        }
        Ok(scored)
    }
}
