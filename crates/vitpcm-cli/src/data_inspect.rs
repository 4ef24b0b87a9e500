//! `vitpcm data inspect`: how a data set was understood, and its problems.

use crate::counting::counted;
use crate::invocation::shell_line;
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::printable;
use crate::session::Session;
use crate::table::{Table, grouped};
use anyhow::Context;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vitpcm_data::{
    Dataset, Difficult, ImageLimits, InputGrid, InspectDepth, InspectOptions, Inspection, OpenOptions,
    ProblemKind, SameName, SplitBy, TagSource, inspect as inspect_dataset,
};

/// Problems of one kind listed in the table; the JSON file has all of them.
const LISTED_PROBLEMS: usize = 10;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws a data set to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm data inspect scenes --json inspection.json")]
pub(crate) struct Args {
    /// Folder of a data set: a table of tags (CSV, Excel), tags.json(l), class folders, VOC devkit, COCO, Label Studio or CVAT
    /// export
    path: PathBuf,
    /// Write everything as JSON; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Read headers only: fast, but misses files that are damaged further on
    #[arg(long)]
    headers_only: bool,
    /// List every problem, not only the first ten of a kind
    #[arg(long)]
    all_problems: bool,
    #[command(flatten)]
    reading: Reading,
}

/// Options for reading a data set, shared with `train`.
#[derive(clap::Args)]
pub(crate) struct Reading {
    /// Leave out objects marked difficult in VOC annotations
    #[arg(long)]
    skip_difficult: bool,
    /// Take tags from the masks, to match published benchmarks
    #[arg(long)]
    tags_from_masks: bool,
    /// Class names, one per line, instead of the data set's own
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Hold out this fraction of the images for validation (chosen by name and --seed)
    #[arg(long, value_name = "0..1", value_parser = number_bounds::precise_fraction, conflicts_with = "split_lists")]
    val_share: Option<f64>,
    /// Take the splits from the NAME.txt lists of this folder
    #[arg(long, value_name = "DIR")]
    split_lists: Option<PathBuf>,
    /// In class folders, treat files of the same name in several folders as different images, not as one image with
    /// several tags
    #[arg(long)]
    same_names_differ: bool,
}

impl Reading {
    pub(crate) fn open_options(&self, seed: u64, limits: ImageLimits) -> OpenOptions {
        let split_by = match (self.val_share, &self.split_lists) {
            (Some(validation), _) => SplitBy::Share { validation, seed },
            (None, Some(folder)) => SplitBy::Lists(folder.clone()),
            (None, None) => SplitBy::Found,
        };
        OpenOptions {
            difficult: if self.skip_difficult { Difficult::Exclude } else { Difficult::Include },
            tag_source: if self.tags_from_masks { TagSource::Masks } else { TagSource::Annotations },
            split_by,
            same_name: if self.same_names_differ { SameName::SeveralImages } else { SameName::OneImage },
            classes: self.classes.clone(),
            limits,
            ..OpenOptions::default()
        }
    }

    /// Whether the user chose the validation images.
    pub(crate) fn names_splits(&self) -> bool {
        self.val_share.is_some() || self.split_lists.is_some()
    }
}

pub(crate) fn inspect(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    if !args.path.exists() {
        return Err(usage(anyhow::anyhow!("{}: there is no such folder or file", args.path.display())));
    }
    let dataset =
        Dataset::open(&args.path, &args.reading.open_options(session.seed, session.image_limits()))?;
    session.check_outputs(dataset.files(), args.json.clone())?;
    let options = InspectOptions {
        limits: session.image_limits(),
        depth: if args.headers_only { InspectDepth::Headers } else { InspectDepth::Content },
        ..InspectOptions::default()
    };
    let bar = session.messages.progress_bar(dataset.images().len(), "images");
    let inspection = std::thread::scope(|scope| {
        let worker = scope.spawn(|| inspect_dataset(&dataset, &options));
        while !worker.is_finished() {
            bar.set_position(options.progress.load(Ordering::Relaxed) as u64);
            std::thread::sleep(Duration::from_millis(20));
        }
        worker.join().map_err(|_| anyhow::anyhow!("a bug stopped the inspection; please report it"))
    })?;
    bar.finish_and_clear();
    let listed = if args.all_problems { usize::MAX } else { LISTED_PROBLEMS };
    let text = text(&inspection, options.input, listed).context("table")?;
    session.messages.json_or_text(args.json.as_deref(), &inspection, &text)?;
    dataset.check_tagged()?;
    Ok(Outcome::Done)
}

/// One line with the number of problems and the command that lists them; `None` if there are none.
pub(crate) fn problems_line(dataset: &Dataset, path: &Path) -> Option<String> {
    let inspect =
        shell_line([OsStr::new("vitpcm"), OsStr::new("data"), OsStr::new("inspect"), path.as_os_str()]);
    match dataset.problems() {
        [] => None,
        problems => Some(format!(
            "{} in the files; `{inspect}` lists them",
            counted(problems.len(), "problem", "problems")
        )),
    }
}

fn text(
    inspection: &Inspection,
    input: InputGrid,
    listed_problems: usize,
) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let count = |count: usize| grouped(count as u64);
    let tag_file = inspection.tag_file.as_ref().map_or_else(String::new, |file| format!(", {file}"));
    let path = printable::line(&inspection.path.display().to_string());
    writeln!(text, "{path}: {}{}", inspection.layout, printable::line(&tag_file))?;
    let negatives = match inspection.untagged_images {
        0 => String::new(),
        untagged => format!(", {} of them without tags (negative examples)", count(untagged)),
    };
    writeln!(
        text,
        "{}{negatives}; {}, {}; {} (for evaluation only)",
        counted(inspection.images, "image", "images"),
        counted(inspection.classes.len(), "class", "classes"),
        counted(inspection.tags, "tag", "tags"),
        counted(inspection.masks, "mask", "masks"),
    )?;
    if let Some(sizes) = &inspection.sizes {
        let (width, height) = (sizes.width, sizes.height);
        writeln!(
            text,
            "sizes: width {}–{} (median {}), height {}–{} (median {})",
            width.min, width.max, width.median, height.min, height.max, height.median
        )?;
        let covered = |median: u32| (f64::from(median) / input.patches as f64).round().max(1.0);
        writeln!(
            text,
            "resolution: at {side}×{side}, the network's input, a patch covers {}×{} pixels of an image (median)",
            covered(width.median),
            covered(height.median),
            side = input.side(),
        )?;
    }
    let formats: Vec<String> =
        inspection.formats.iter().map(|(format, images)| format!("{} {format}", count(*images))).collect();
    if !formats.is_empty() {
        writeln!(text, "formats: {}", formats.join(", "))?;
    }
    let by_tags = inspection.images_by_number_of_tags.iter().enumerate().filter(|(_, images)| **images > 0);
    let by_tags: Vec<String> = by_tags.map(|(tags, images)| format!("{tags}: {}", count(*images))).collect();
    writeln!(text, "images by number of tags: {}", by_tags.join(", "))?;

    let heading = ["class".to_string(), "images".to_string()].into_iter();
    let mut table = Table::new(heading.chain(inspection.splits.iter().map(|split| split.name.clone())));
    for (i, class) in inspection.classes.iter().enumerate() {
        let in_splits = inspection.splits.iter().map(|split| split.images_by_class[i]);
        table.row([class.name.clone(), count(class.images)].into_iter().chain(in_splits.map(count)));
    }
    let whole_splits = inspection.splits.iter().map(|split| split.images);
    table.row(["images".to_string(), count(inspection.images)].into_iter().chain(whole_splits.map(count)));
    let masks = inspection.splits.iter().map(|split| split.masks);
    table.row(["masks".to_string(), count(inspection.masks)].into_iter().chain(masks.map(count)));
    write!(text, "\n{table}")?;

    if !inspection.notes.is_empty() {
        writeln!(text, "\nhow the tags were read")?;
    }
    for note in &inspection.notes {
        writeln!(text, "  - {}", printable::line(&note.to_string()))?;
    }
    write_warnings(&mut text, inspection)?;
    write_problems(&mut text, inspection, listed_problems)?;
    Ok(text)
}

fn write_warnings(text: &mut String, inspection: &Inspection) -> std::fmt::Result {
    if inspection.warnings.is_empty() {
        return Ok(());
    }
    let among = if inspection.training_images < inspection.images {
        format!(" (in the {})", counted(inspection.training_images, "training image", "training images"))
    } else {
        String::new()
    };
    let number = counted(inspection.warnings.len(), "warning", "warnings");
    writeln!(text, "\n{number} about what the tags can teach{among}")?;
    for warning in &inspection.warnings {
        writeln!(text, "  - {}\n    → {}", warning.finding(), warning.advice())?;
    }
    Ok(())
}

fn write_problems(text: &mut String, inspection: &Inspection, listed: usize) -> std::fmt::Result {
    if inspection.problems.is_empty() {
        return writeln!(text, "\nno problems found in the files");
    }
    writeln!(text, "\n{} found in the files", counted(inspection.problems.len(), "problem", "problems"))?;
    let mut kinds: Vec<ProblemKind> = inspection.problems.iter().map(|problem| problem.kind).collect();
    kinds.dedup();
    for kind in kinds {
        let of_kind = || inspection.problems.iter().filter(|problem| problem.kind == kind);
        writeln!(text, "\n{kind} ({})", grouped(of_kind().count() as u64))?;
        for problem in of_kind().take(listed) {
            let path = problem.path.strip_prefix(&inspection.path).unwrap_or(&problem.path);
            let line = format!("{}: {}", path.display(), problem.detail);
            writeln!(text, "  {}", printable::line(&line))?;
        }
        let left_out = of_kind().count().saturating_sub(listed);
        if left_out > 0 {
            writeln!(text, "  … and {} more (--all-problems lists them)", grouped(left_out as u64))?;
        }
    }
    Ok(())
}
