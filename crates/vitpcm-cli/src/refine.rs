//! `vitpcm refine`: the dense CRF over stored score maps, several images at a time. With several ranks, images are
//! dealt out in turn.

use crate::confidence_options::ConfidenceOptions;
use crate::counting::{counted, images};
use crate::crf_options::CrfOptions;
use crate::folder_record::{self, FolderRecord, Settings};
use crate::image_inputs::{self, Input};
use crate::mask_exports::{ExportArgs, Finished, MaskExports};
use crate::mask_formats::{FormatOptions, Results};
use crate::mask_place;
use crate::outcome::{Outcome, described, usage};
use crate::output::{self, Messages};
use crate::planned_results::{Planned, PlannedResults};
use crate::results_folder::{ResultsFolder, Start};
use crate::segment::finished;
use crate::session::Session;
use anyhow::{Context, bail};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use vitpcm::Refinement;
use vitpcm_data::{ImageLimits, read_image};
use vitpcm_masks::{Classes, StoredScores, score_files};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm segment scenes/images/scene-0001.png --out masks --format npz\n  \
    vitpcm refine --images scenes/images --scores masks/npz --out refined")]
pub(crate) struct Args {
    /// Folder of the images
    #[arg(long, value_name = "DIR")]
    images: PathBuf,
    /// Folder of their score maps (.npz), as `segment --format npz` writes them
    #[arg(long, value_name = "DIR")]
    scores: PathBuf,
    /// Folder for the masks, each named after its image
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    formats: FormatOptions,
    #[command(flatten)]
    confidence: ConfidenceOptions,
    #[command(flatten)]
    crf_options: CrfOptions,
}

pub(crate) fn refine(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let (messages, ranks) = (&session.messages, session.ranks);
    let inputs =
        image_inputs::collect(std::slice::from_ref(&args.images), |_| false, session.common_messages())?;
    let names: Vec<PathBuf> = inputs.images.iter().map(|input| PathBuf::from(&input.name)).collect();
    let files = score_files(&args.scores).map_err(usage)?;
    let place =
        mask_place::place_of(&args.scores, &files, &names, session.common_messages()).map_err(usage)?;
    let place = place.unwrap_or_else(|| args.scores.clone());
    let scores_of = |input: &Input| place.join(format!("{}.npz", input.name));
    let with_scores: Vec<&Input> = inputs.images.iter().filter(|input| scores_of(input).is_file()).collect();
    if with_scores.is_empty() {
        let (images, scores) = (args.images.display(), args.scores.display());
        bail!(
            "no image of {images} has scores in {scores}; expected NAME.npz, as `segment --format npz` writes it"
        );
    }
    let num_without = inputs.images.len() - with_scores.len();
    if num_without > 0 {
        messages.note(format!("left out because they have no scores: {}", images(num_without)));
    }
    check_outputs(args, &place, &with_scores, session)?;
    let record = FolderRecord::read(&args.out)?;
    ranks.barrier(); // all have read the record
    let _lock = ranks.is_first().then(|| output::lock_folder(&args.out, "refine")).transpose()?;
    let run = ("refine", Settings::new());
    let results = ResultsFolder::open(&args.out, record, Start::Fresh, run, ranks)?;

    let refinement =
        Refinement { crf: Some(args.crf_options.params()), unsure: args.confidence.unsure_background() };
    let limits = session.image_limits();
    let num_failed = AtomicUsize::new(0);
    let own: Vec<&Input> = with_scores.iter().copied().skip(ranks.rank()).step_by(ranks.size()).collect();
    let bar = messages.progress_bar(own.len(), "refining");
    own.par_iter().for_each(|input| {
        if let Err(error) = refine_one(args, input, &scores_of(input), (&refinement, &limits), &results) {
            num_failed.fetch_add(1, Ordering::Relaxed);
            bar.suspend(|| messages.failure(described(&error)));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let [num_failed] = ranks.sum_counts([num_failed.into_inner()]);
    let num_done = with_scores.len() - num_failed;
    let [num_not_exported] = ranks.sum_counts([match ranks.is_first() {
        true => write_exports(args, (&place, &limits), &with_scores, &results, messages)?,
        false => 0,
    }]);
    results.say_what_was_edited(messages);
    let num_failed = inputs.num_failed + num_failed + num_not_exported;
    let refined = counted(num_done, "mask", "masks");
    let masks = mask_place::results_place(&args.out, with_scores.iter().map(|input| input.name.as_str()));
    messages.note(format!("{refined} refined, {num_failed} failed; masks are in {}", masks.display()));
    if num_done == 0 {
        bail!("none of the masks could be refined");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// Refuses results that would replace an image, scores or each other.
fn check_outputs(args: &Args, place: &Path, inputs: &[&Input], session: &Session) -> anyhow::Result<()> {
    let exports = args.formats.exports();
    let formats = args.formats.written_per_image();
    let files: Vec<Finished<'_>> = inputs.iter().map(|input| finished(&args.out, input)).collect();
    let scores = |input: &&Input| place.join(format!("{}.npz", input.name));
    // Heat maps are named after classes, which the first score file lists.
    let classes = inputs.iter().find_map(|input| StoredScores::read(&scores(input)).ok());
    let planned = PlannedResults {
        out: &args.out,
        formats: &formats,
        exports: &exports,
        classes: &classes.map_or_else(Classes::voc, |stored| stored.classes),
        others: vec![folder_record::record_file(&args.out, session.ranks.rank())],
        images: files.iter().map(|image| Planned::of(image, &ExportArgs::default())).collect(),
    };
    let images = inputs.iter().map(|input| input.path.clone());
    planned.check(images.chain(inputs.iter().map(scores)), session)
}

/// Exports all images that have a mask; returns the number of failures.
fn write_exports(
    args: &Args,
    (place, limits): (&Path, &ImageLimits),
    inputs: &[&Input],
    results: &ResultsFolder,
    messages: &Messages,
) -> anyhow::Result<usize> {
    let formats = args.formats.exports();
    if formats.is_empty() {
        return Ok(0);
    }
    let scores_of = |input: &Input| place.join(format!("{}.npz", input.name));
    let first = inputs.first().context("no image")?;
    let classes = StoredScores::read_within(&scores_of(first), limits.max_pixels)?.classes;
    let exports = MaskExports {
        formats: &formats,
        args: &ExportArgs::default(),
        classes: &classes,
        out: results,
        limits: limits.clone(),
    };
    let finished =
        inputs.iter().map(|&input| Finished { scores: Some(scores_of(input)), ..finished(&args.out, input) });
    exports.write_what_is_there(finished, messages)
}

fn refine_one(
    args: &Args,
    input: &Input,
    scores: &Path,
    (refinement, limits): (&Refinement, &ImageLimits),
    folder: &ResultsFolder,
) -> anyhow::Result<()> {
    let stored = StoredScores::read_within(scores, limits.max_pixels)?;
    let image = read_image(&input.path, limits)?;
    let image_size = (image.width() as usize, image.height() as usize);
    if image_size != stored.image_size {
        let (path, scores) = (input.path.display(), scores.display());
        bail!("{path} is {image_size:?} pixels, but {scores} was made for {:?}", stored.image_size);
    }
    let mask = refinement
        .label_map(&stored.scores, &image, stored.alignment, image_size)
        .with_context(|| format!("{}", input.path.display()))?;
    let peaks = stored.scores.peaks();
    let tags: Vec<usize> = (1..peaks.len()).filter(|&class| peaks[class] > 0.0).collect();
    let results = Results {
        image: &image,
        mask: &mask,
        scores_on_grid: &stored.scores,
        alignment: stored.alignment,
        classes: &stored.classes,
        tags: &tags,
    };
    let formats = args.formats.written_per_image();
    formats
        .iter()
        .try_for_each(|format| folder.publish(&format.write(&folder.staging(), &input.name, &results)?))
}
