//! The report of `vitpcm segment`. A review of each image is stored when its mask is written; the page is built from
//! all of them at the end, also after Ctrl-C, including those of earlier runs when resuming.

use crate::class_names;
use crate::counting::images;
use crate::image_inputs::Input;
use crate::invocation::Invocation;
use crate::mask_place;
use crate::output::{self, Messages};
use crate::report::{self, MaskLinks, Page, Place, ReviewFile, Reviewed, Summary, Trust, escaped};
use crate::results_folder::Start;
use crate::table::grouped;
use anyhow::{Context, bail};
use image::RgbImage;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use vitpcm::{LeastConfident, Review, ReviewPictures, ReviewedMask};
use vitpcm_data::{Dataset, ImageLimits, MaskSource, OpenOptions};
use vitpcm_masks::{Classes, LabelMap, MAX_MASK_PIXELS, mask_files};
use vitpcm_train::Ranks;

/// Where reviews are stored, below the masks' folder.
const FOLDER: &str = ".report";
/// Pictures in the report, of the least confident images.
const NUM_PICTURES: usize = 48;
/// Table rows, as many as a browser handles well.
const MAX_ROWS: usize = 2000;

/// The report's options, as typed.
#[derive(clap::Args)]
pub(crate) struct ReportOptions {
    /// Do not write report.html
    #[arg(long, help_heading = "Report")]
    no_report: bool,
    /// True masks, named after the images, to score against in the report [default: those of the data set, if PATH is
    /// one]
    #[arg(long, value_name = "DIR", help_heading = "Report")]
    truth: Option<PathBuf>,
    /// Other masks of the same images, e.g. from an earlier round: the report shows how far they agree
    #[arg(long, value_name = "DIR", conflicts_with = "no_report", help_heading = "Report")]
    compare: Option<PathBuf>,
}

impl ReportOptions {
    /// What the masks are compared with, from the options or from data sets among `paths`; `None` without a report.
    /// `is_result` recognises masks that this command made, which are no true masks.
    pub(crate) fn comparisons(
        &self,
        (paths, inputs): (&[PathBuf], &[Input]),
        classes: &Classes,
        is_result: impl Fn(&Path) -> bool,
        messages: &Messages,
    ) -> anyhow::Result<Comparisons> {
        let truths = match &self.truth {
            _ if self.no_report => Truths::DataSets(HashMap::new()),
            Some(folder) => Truths::in_folder(folder)?,
            None => Truths::of_data_sets(paths, classes).without(is_result),
        };
        let others = self.compare.as_deref();
        let others = others.map(|folder| others_in(folder, inputs, classes, messages)).transpose()?;
        Ok(Comparisons { truths, others })
    }
}

/// A report under construction.
pub(crate) struct SegmentReport {
    out: PathBuf,
    classes: Classes,
    least_confident: LeastConfident,
    comparisons: Comparisons,
    file: ReviewFile,
}

impl SegmentReport {
    /// Starts a report in the masks' folder; `None` if it is switched off.
    pub(crate) fn open(
        options: &ReportOptions,
        start: Start,
        (out, comparisons): (&Path, Comparisons),
        classes: &Classes,
        ranks: &Ranks,
    ) -> anyhow::Result<Option<SegmentReport>> {
        if options.no_report {
            return Ok(None);
        }
        let folder = out.join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        if start == Start::Fresh && ranks.is_first() {
            for path in review_files(out)? {
                std::fs::remove_file(&path).with_context(|| format!("{}", path.display()))?;
            }
        }
        ranks.barrier(); // no rank begins before that is done
        let path = review_file(out, ranks.rank());
        let mut least_confident = LeastConfident::new(NUM_PICTURES);
        report::newest_places(std::slice::from_ref(&path), |_| true)?.values().for_each(|place| {
            least_confident.takes(place.confidence);
        });
        Ok(Some(SegmentReport {
            out: out.to_path_buf(),
            classes: classes.clone(),
            least_confident,
            comparisons,
            file: ReviewFile::append_to(&path)?,
        }))
    }

    /// Adds an image whose results are written. Returns what is wrong with its true or other mask, if anything; the
    /// image is then reviewed without it.
    pub(crate) fn add(
        &mut self,
        input: &Input,
        reviewed: &ReviewedMask<'_>,
    ) -> anyhow::Result<Option<String>> {
        let mut problem = None;
        let mut usable = |mask: Result<Option<LabelMap>, String>| {
            let fits = |mask: LabelMap| match mask.size() == reviewed.mask.size() {
                true => Ok(mask),
                false => Err(format!("a mask of {:?} pixels to compare with", mask.size())),
            };
            let mask = mask.and_then(|mask| mask.map(fits).transpose());
            mask.map_err(|reason| problem = Some(reason)).ok().flatten()
        };
        let truth = usable(self.comparisons.truths.read(input, &self.classes, reviewed.image));
        let other = usable(self.comparisons.other(input, &self.classes, reviewed.image));
        let reviewed = ReviewedMask { truth: truth.as_ref(), other: other.as_ref(), ..*reviewed };
        let mut review = Review::new(&input.name, &reviewed)?;
        if self.least_confident.takes(review.confidence) {
            review.pictures = Some(ReviewPictures::new(&reviewed)?);
        }
        self.file.append(&review)?;
        Ok(problem.map(|reason| format!("{}: not scored: {reason}", input.path.display())))
    }

    /// Writes the page from all ranks' images that are among `inputs`. Called on the first rank after all ranks have
    /// added theirs.
    pub(crate) fn write(self, ending: &Ending<'_>) -> anyhow::Result<PathBuf> {
        let names: HashSet<&str> = ending.inputs.iter().map(|input| input.name.as_str()).collect();
        let paths = review_files(&self.out)?;
        let by_name = report::newest_places(&paths, |name| names.contains(name))?;
        let summary = summed(&paths, &by_name, Summary::new(&self.classes, ending.tag_threshold))?;

        let mut least_confident: Vec<(&String, &Place)> = by_name.iter().collect();
        least_confident.sort_by(|a, b| a.1.confidence.total_cmp(&b.1.confidence).then_with(|| a.0.cmp(b.0)));
        least_confident.truncate(MAX_ROWS.max(NUM_PICTURES));
        let mut rows = Vec::with_capacity(least_confident.len());
        let mut num_shown = 0;
        report::read_at(&paths, least_confident.iter().map(|(_, place)| *place), |mut review| {
            if num_shown == NUM_PICTURES {
                review.pictures = None;
            }
            num_shown += usize::from(review.pictures.is_some());
            if summary.fits(&review) {
                rows.push(review);
            }
        })?;

        let reviewed = Reviewed { summary: &summary, rows: &rows, links: ending.links, what: "images" };
        let path = self.out.join("report.html");
        output::write_file(&path, page(&reviewed, ending).html().as_bytes())?;
        Ok(path)
    }
}

/// What the reviews of a masks folder say.
pub(crate) fn judged(out: &Path, classes: &Classes) -> anyhow::Result<Judged> {
    let paths = review_files(out)?;
    let by_name = report::newest_places(&paths, |_| true)?;
    let summary = summed(&paths, &by_name, Summary::new(classes, 0.5))?;
    Ok(Judged { trust: Trust::new(&summary), faults: summary.fault_sentences() })
}

/// Judgement of masks without true masks.
pub(crate) struct Judged {
    /// `None` without other masks to compare with.
    pub(crate) trust: Option<Trust>,
    /// Obvious faults in the masks of classes, one sentence each.
    pub(crate) faults: Vec<String>,
}

/// Sums all stored reviews.
fn summed(
    paths: &[PathBuf],
    by_name: &HashMap<String, Place>,
    mut summary: Summary,
) -> anyhow::Result<Summary> {
    let mut places: Vec<&Place> = by_name.values().collect();
    places.sort_by_key(|place| place.reading_order());
    report::read_at(paths, places, |review| _ = summary.add(&review))?;
    Ok(summary)
}

/// How a run ended.
pub(crate) struct Ending<'a> {
    pub(crate) inputs: &'a [Input],
    pub(crate) num_failed: usize,
    pub(crate) is_interrupted: bool,
    pub(crate) model: &'a str,
    /// The source of the tags, to follow "… images segmented by …, ".
    pub(crate) tags: &'a str,
    pub(crate) tag_threshold: f32,
    pub(crate) links: MaskLinks,
    pub(crate) invocation: &'a Invocation,
}

fn page(reviewed: &Reviewed<'_>, ending: &Ending<'_>) -> Page {
    let num_images = reviewed.summary.num_images;
    let mut lead = format!(
        "<strong>{}</strong> of {} segmented by {}, {}.",
        grouped(num_images as u64),
        images(ending.inputs.len()),
        escaped(ending.model),
        escaped(ending.tags)
    );
    let num_unknown = ending.inputs.len().saturating_sub(num_images + ending.num_failed);
    if ending.is_interrupted {
        lead += " The run was interrupted; the same command with <code>--resume</code> continues.";
    } else if num_unknown > 0 {
        lead += &format!(
            " {num_unknown} more have results but no review, because they were made without a report."
        );
    }
    for sentence in reviewed.summary.fault_sentences() {
        lead += &format!(" <strong>{}</strong>", escaped(&sentence));
    }
    let mut page = Page::new("segment", "Segmentation report", lead);
    page.figure("images", &grouped(num_images as u64), "segmented");
    if ending.num_failed > 0 {
        page.figure("failed", &grouped(ending.num_failed as u64), "named on stderr");
    }
    reviewed.put_figures(&mut page);
    reviewed.put_sections(&mut page);
    page.origin_section(ending.invocation, "");
    page
}

/// The review file of a rank.
pub(crate) fn review_file(out: &Path, rank: usize) -> PathBuf {
    out.join(FOLDER).join(format!("images-{rank}.jsonl"))
}

/// The review files of all ranks, including those of earlier runs with more ranks.
fn review_files(out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = out.join(FOLDER);
    let list = || {
        let mut paths = std::fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<Vec<PathBuf>>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        paths.sort();
        Ok::<_, std::io::Error>(paths)
    };
    list().with_context(|| format!("{}", folder.display()))
}

/// The masks to compare with in a report.
pub(crate) struct Comparisons {
    truths: Truths,
    /// Folder of the other masks, named after the images.
    others: Option<PathBuf>,
}

impl Comparisons {
    /// All existing files among them.
    pub(crate) fn files(&self, inputs: &[Input]) -> Vec<PathBuf> {
        let others =
            self.others.iter().flat_map(|folder| inputs.iter().map(|input| mask_path(folder, input)));
        self.truths.files(inputs).into_iter().chain(others).collect()
    }

    fn other(&self, input: &Input, classes: &Classes, image: &RgbImage) -> Result<Option<LabelMap>, String> {
        let path = self.others.as_ref().map(|folder| mask_path(folder, input)).filter(|path| path.is_file());
        path.map(|path| MaskSource::Png(path).read(classes, &limits_for(image)))
            .transpose()
            .map_err(|error| error.to_string())
    }
}

/// Where in a folder the masks of images are.
fn others_in(
    folder: &Path,
    inputs: &[Input],
    classes: &Classes,
    messages: &Messages,
) -> anyhow::Result<PathBuf> {
    let files = mask_files(folder).context("--compare")?;
    let names: Vec<PathBuf> = inputs.iter().map(|input| PathBuf::from(&input.name)).collect();
    let place = mask_place::place_of(folder, &files, &names, messages).context("--compare")?;
    let place = place.with_context(|| {
        format!("--compare {}: none of the images has a mask there, named after the image", folder.display())
    })?;
    for beside in [folder, &place] {
        class_names::check_beside(beside, classes).context("--compare")?;
    }
    Ok(place)
}

/// Where true masks come from.
enum Truths {
    /// A folder, by name.
    Folder(PathBuf),
    /// The data sets of the images.
    DataSets(HashMap<PathBuf, MaskSource>),
}

impl Truths {
    /// The true masks of images, as far as they exist.
    fn files(&self, inputs: &[Input]) -> Vec<PathBuf> {
        match self {
            Truths::Folder(folder) => inputs.iter().map(|input| mask_path(folder, input)).collect(),
            Truths::DataSets(truths) => truths.values().map(|truth| truth.path().to_path_buf()).collect(),
        }
    }

    /// Without masks of data sets that are results of an earlier run.
    fn without(self, is_result: impl Fn(&Path) -> bool) -> Truths {
        match self {
            Truths::DataSets(mut truths) => {
                truths.retain(|_, truth| !is_result(truth.path()));
                Truths::DataSets(truths)
            }
            folder => folder,
        }
    }

    fn in_folder(folder: &Path) -> anyhow::Result<Truths> {
        if !folder.is_dir() {
            bail!("--truth {}: there is no such folder", folder.display());
        }
        Ok(Truths::Folder(folder.to_path_buf()))
    }

    /// The true masks of the data sets among the paths, if they have the model's classes; otherwise indices would mean
    /// different things.
    fn of_data_sets(paths: &[PathBuf], classes: &Classes) -> Truths {
        let mut truths = HashMap::new();
        let has_masks =
            |path: &&PathBuf| ["SegmentationClass", "masks"].iter().any(|name| path.join(name).is_dir());
        for path in paths.iter().filter(has_masks) {
            let Ok(dataset) = Dataset::open(path, &OpenOptions::default()) else { continue };
            if dataset.classes() != classes {
                continue;
            }
            for (index, image) in dataset.images().iter().enumerate() {
                truths.extend(dataset.truth(index).map(|truth| (image.path.clone(), truth.clone())));
            }
        }
        Truths::DataSets(truths)
    }

    fn read(&self, input: &Input, classes: &Classes, image: &RgbImage) -> Result<Option<LabelMap>, String> {
        let limits = limits_for(image);
        let source = match self {
            Truths::Folder(folder) => {
                let path = mask_path(folder, input);
                path.is_file().then_some(MaskSource::Png(path))
            }
            Truths::DataSets(truths) => truths.get(&input.path).cloned(),
        };
        source.map(|source| source.read(classes, &limits)).transpose().map_err(|error| error.to_string())
    }
}

/// A mask has as many pixels as its image, which was already read.
fn limits_for(image: &RgbImage) -> ImageLimits {
    let num_pixels = u64::from(image.width()) * u64::from(image.height());
    ImageLimits { max_pixels: num_pixels.max(MAX_MASK_PIXELS) }
}

fn mask_path(folder: &Path, input: &Input) -> PathBuf {
    folder.join(format!("{}.png", input.name))
}
