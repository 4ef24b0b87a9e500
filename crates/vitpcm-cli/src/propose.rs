//! `vitpcm propose`: chooses masks for a further training round without true masks. It fits linear heads on frozen
//! features to the tags by several rules and ranks their masks and the given ones by how well a classifier recognises
//! them on held-out images. Given masks are compared only if they look wrong, and are kept unless a head is clearly
//! better.

use crate::class_names::{self, CLASS_LIST, class_list};
use crate::counting;
use crate::data_inspect::Reading;
use crate::head_contest::{Contest, GIVEN, given_mask, given_on_grid, spread, tags_of, with_masks};
use crate::live_run::duration;
use crate::model_path::MODEL_FILE;
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::session::Session;
use crate::table::Table;
use anyhow::{Context, anyhow};
use rayon::prelude::*;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vitpcm::{Model, Storage};
use vitpcm_data::{Dataset, TaggedImage, read_image_header};
use vitpcm_heads::{Candidate, GRID_SIDE, Origin, Source, SourceFeatures, TaggedImages, head_model};
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{Classes, LabelMap, ScoreMap, write_label_png};

/// A head replaces the given masks if its score is this many times theirs. Trained networks draw better outlines than
/// heads on a grid, so a head must be clearly better: docs/lab/tried.md has the measurements.
const MARGIN: f32 = 1.4;
/// A head with a lower score is never chosen: if nothing is recognised well, the ranking means little. Heads on
/// everyday photographs reach 0.25, the right ones on leaf disease 0.42 to 0.46.
const MIN_SCORE: f32 = 0.32;
/// Masks that cover more than this fraction of their tagged images look wrong: a failing network marks the whole image
/// or the whole object that carries the class.
const SUSPECT_AREA: f32 = 0.4;
/// Masks that are empty in more than this fraction of their tagged images look wrong, too.
const SUSPECT_EMPTY: f32 = 0.5;
/// Marks a folder as results of this command.
const MARKER: &str = ".propose";
/// Rows of the printed table.
const ROWS: usize = 6;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws tagged images, with masks to compare):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm propose --data scenes --masks scenes/masks --out proposed \\\n    \
    --max-images 12\n\n\
    With your own files:\n  \
    vitpcm propose --data my-images --masks first-masks --out chosen\n  \
    vitpcm train --data my-images --pseudo-masks chosen --out second-run")]
pub(crate) struct Args {
    /// The data set: a folder with tagged images
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Masks of its images from a first round, as `segment --out` writes them
    #[arg(long, value_name = "DIR")]
    masks: PathBuf,
    /// Empty folder for the chosen masks, for `train --pseudo-masks`, and for the model of a chosen head, for
    /// `segment --model`
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of images to fit and judge heads on and to make masks for; about 1 MB of memory each
    #[arg(long, value_name = "N", value_parser = number_bounds::sample_size, default_value_t = 600)]
    max_images: usize,
    /// A head replaces the given masks if its score is this many times theirs
    #[arg(long, value_name = "X", value_parser = number_bounds::margin, default_value_t = MARGIN)]
    margin: f32,
    /// Keep the given masks without a comparison if they cover at most this fraction of their tagged images, unless
    /// most are empty; 0 always compares
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, default_value_t = SUSPECT_AREA)]
    suspect_area: f32,
    /// Write the ranking as JSON; `-` prints it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// The content of `--json`.
#[derive(Serialize)]
struct Ranking {
    /// What was written to --out.
    chosen: String,
    images: usize,
    /// Mean fraction of a tagged image that the given masks cover, and fraction of them that are empty.
    given_area: f32,
    given_empty: f32,
    /// Empty if the given masks were kept without a comparison.
    candidates: Vec<Ranked>,
}

#[derive(Serialize)]
struct Ranked {
    masks: String,
    score: f32,
    classes: Vec<RankedClass>,
}

#[derive(Serialize)]
struct RankedClass {
    class: String,
    /// How well the class's masks are recognised on held-out images: area under the ROC curve.
    auc: f32,
    /// Mean fraction of a tagged image that they cover.
    area: f32,
    /// Fraction of the tagged images in which they are empty.
    empty: f32,
}

pub(crate) fn propose(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let dataset =
        Dataset::open(&args.data, &args.reading.open_options(session.seed, session.image_limits()))?;
    let limits = session.image_limits();
    let training = dataset.training();
    let images: Vec<&TaggedImage> = training.indices.iter().map(|&index| &dataset.images()[index]).collect();
    let (place, images) = with_masks(&args.masks, images, messages).map_err(usage)?;
    for beside in [&args.masks, &place] {
        class_names::check_beside(beside, dataset.classes()).map_err(usage)?;
    }
    let all = images;
    let images = spread(&all, args.max_images);
    let outputs = all.iter().map(|image| args.out.join(image.mask_name()));
    let lists = [CLASS_LIST, MODEL_FILE].map(|name| args.out.join(name)).into_iter().chain(args.json.clone());
    let masks = all.iter().map(|image| place.join(image.mask_name()));
    let inputs = dataset.files().map(Path::to_path_buf).chain(masks);
    session.check_outputs(inputs, outputs.chain(lists))?;
    output::check_own_folder(&args.out, MARKER)?;
    let _lock = output::lock_folder(&args.out, "propose")?;
    output::write_file(&args.out.join(MARKER), b"")?;

    let started = Instant::now();
    let names = &dataset.classes().names()[1..];
    let tagged = tags_of(&images, names.len(), session.seed)?;
    let given = given_on_grid(&place, &images, names.len(), &limits)?;
    let coverage = Coverage::new(&given, &tagged);
    let contest = match coverage.is_suspect(args.suspect_area) {
        true => Some(Contest::hold(given, &images, &tagged, &limits, session)?),
        false => None,
    };
    let best = contest.as_ref().and_then(|contest| Some((contest, contest.winner(args.margin)?)));
    // Given masks are kept for all images; a head makes masks for the images it was fitted to.
    let written_for = if best.is_some() { &images } else { &all };
    let written = written_for.par_iter().enumerate().try_for_each(|(index, image)| {
        let to = args.out.join(image.mask_name());
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        match best {
            None => {
                let mask = given_mask(&place.join(image.mask_name()), image, names.len(), &limits)?;
                anyhow::Ok(write_label_png(&to, &mask)?)
            }
            Some((contest, head)) => {
                let header = read_image_header(&image.path, &limits)?;
                let scores = head_scores(head, &contest.features, index, &tagged)?;
                let (width, height) = (header.width as usize, header.height as usize);
                let mask = scores.label_map_at(width, height, Alignment::HalfPixel)?;
                Ok(write_label_png(&to, &mask)?)
            }
        }
    });
    written?;
    output::write_file(&args.out.join(CLASS_LIST), class_list(dataset.classes()).as_bytes())?;
    let model = args.out.join(MODEL_FILE);
    match best {
        Some((contest, head)) => contest.model(head, dataset.classes())?.save(model, Storage::F32)?,
        // One of an earlier run is not the model of these masks.
        None if model.is_file() => {
            std::fs::remove_file(&model).with_context(|| format!("{}: removing it", model.display()))?;
        }
        None => {}
    }

    let chosen = best.map_or_else(|| GIVEN.to_owned(), |(_, head)| head.origin.to_string());
    messages.note(coverage.to_string());
    let table = contest.as_ref().map_or_else(String::new, Contest::table);
    table.lines().for_each(|line| messages.note(line));
    let seconds = duration(started.elapsed().as_secs_f64());
    messages.note(format!("chosen: {chosen}; {}, {seconds}", counting::images(written_for.len())));
    if let Some(path) = &args.json {
        let candidates = contest.as_ref().map_or_else(Vec::new, |contest| contest.ranking(names));
        let Coverage { area: given_area, empty: given_empty } = coverage;
        let ranking = Ranking { chosen, images: images.len(), given_area, given_empty, candidates };
        messages.json_or_text(Some(path), &ranking, "")?;
    }
    Ok(Outcome::Done)
}

/// How much of their tagged images the masks cover: means over the classes.
struct Coverage {
    /// Mean fraction of a tagged image.
    area: f32,
    /// Fraction of the tagged images in which the class has no pixel.
    empty: f32,
}

impl Coverage {
    fn new(masks: &[LabelMap], tagged: &TaggedImages) -> Coverage {
        let num_classes = masks.first().map_or(0, |_| tagged.tags(0).len());
        let of_class = |class: usize| {
            let tagged = masks.iter().enumerate().filter(|(image, _)| tagged.tags(*image)[class]);
            let areas: Vec<f32> = tagged
                .map(|(_, mask)| {
                    let cells = mask.labels().iter().filter(|&&label| usize::from(label) == class + 1);
                    cells.count() as f32 / mask.labels().len() as f32
                })
                .collect();
            let count = areas.len() as f32;
            let empty = areas.iter().filter(|&&area| area == 0.0).count() as f32;
            (count > 0.0).then(|| [areas.iter().sum::<f32>() / count, empty / count])
        };
        let classes: Vec<[f32; 2]> = (0..num_classes).filter_map(of_class).collect();
        let mean = |part: usize| classes.iter().map(|of| of[part]).sum::<f32>() / classes.len().max(1) as f32;
        Coverage { area: mean(0), empty: mean(1) }
    }

    fn is_suspect(&self, area: f32) -> bool {
        self.area > area || self.empty > SUSPECT_EMPTY
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [area, empty] = [self.area, self.empty].map(|share| 100.0 * share);
        write!(
            f,
            "the given masks cover {area:.0} % of an image with the tag on average; {empty:.0} % are empty"
        )
    }
}

impl Contest {
    /// The best head, if it is recognised well and beats the given masks by the margin.
    fn winner(&self, margin: f32) -> Option<&Candidate> {
        self.heads.first().filter(|head| head.score >= MIN_SCORE && head.score > margin * self.given.score)
    }

    /// A head as a model, for all images.
    fn model(&self, head: &Candidate, classes: &Classes) -> anyhow::Result<Model> {
        let Origin::Head { source, fitted_to, head } = &head.origin else {
            return Err(anyhow!("only a head is a model"));
        };
        let from = of_source(&self.features, *source)?;
        let head = head.for_new_images();
        let mut model = head_model(&self.backbone, *source, &from.projection, &head, classes.names())?;
        model.info.provenance.insert("head".to_owned(), format!("{fitted_to}, {source}"));
        Ok(model)
    }

    /// For people.
    fn table(&self) -> String {
        let mut table = Table::new(["masks", "score"]);
        for candidate in [&self.given].into_iter().chain(self.heads.iter().take(ROWS)) {
            table.row([candidate.origin.to_string(), format!("{:.3}", candidate.score)]);
        }
        table.to_string()
    }

    fn ranking(&self, names: &[String]) -> Vec<Ranked> {
        let all = self.heads.iter().chain([&self.given]);
        let mut candidates: Vec<Ranked> = all.map(|candidate| ranked(candidate, names)).collect();
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        candidates
    }
}

/// The features that a head was fitted to.
fn of_source(features: &[SourceFeatures], source: Source) -> anyhow::Result<&SourceFeatures> {
    features.iter().find(|from| from.source == source).context("a head has features")
}

/// Probabilities of background and the image's tags, from a head's log-odds.
fn head_scores(
    head: &Candidate,
    features: &[SourceFeatures],
    image: usize,
    tagged: &TaggedImages,
) -> anyhow::Result<ScoreMap> {
    let Origin::Head { source, head, .. } = &head.origin else {
        return Err(anyhow!("only a head gives scores"));
    };
    let patches = of_source(features, *source)?.patches.image(image);
    let log_odds = head.of_image(image, tagged).log_odds(patches);
    let num_cells = GRID_SIDE * GRID_SIDE;
    let tags = tagged.tags(image);
    let mut scores = vec![0.0f32; (tags.len() + 1) * num_cells];
    for cell in 0..num_cells {
        let exponent = |class: usize| log_odds[class * num_cells + cell].clamp(-30.0, 30.0).exp();
        let total = 1.0 + (0..tags.len()).filter(|&class| tags[class]).map(exponent).sum::<f32>();
        scores[cell] = 1.0 / total;
        for class in (0..tags.len()).filter(|&class| tags[class]) {
            scores[(class + 1) * num_cells + cell] = exponent(class) / total;
        }
    }
    Ok(ScoreMap::new(tags.len() + 1, GRID_SIDE, GRID_SIDE, scores)?)
}

fn ranked(candidate: &Candidate, names: &[String]) -> Ranked {
    let classes = names.iter().zip(&candidate.classes).map(|(name, class)| RankedClass {
        class: name.clone(),
        auc: class.auc,
        area: class.area,
        empty: class.empty,
    });
    Ranked { masks: candidate.origin.to_string(), score: candidate.score, classes: classes.collect() }
}
