//! `vitpcm segment`: masks for images. Decoding, the network and writing run concurrently, a few images apart, so that
//! memory does not grow with their number. With several ranks, images are dealt out in turn.

mod resume;
mod stages;

use self::resume::{OwnResults, Progress, check_settings, settings};
use self::stages::{ImageTags, Stages};
use crate::class_names::{CLASS_LIST, class_list};
use crate::confidence_options::ConfidenceOptions;
use crate::counting::images;
use crate::crf_options::CrfOptions;
use crate::embedded_model;
use crate::folder_record::{self, FolderRecord};
use crate::image_inputs::{self, Input, TagTable};
use crate::mask_exports::{ExportArgs, Finished, MaskAt, MaskExports};
use crate::mask_formats::{Format, FormatOptions};
use crate::mask_place;
use crate::model_path;
use crate::number_bounds;
use crate::outcome::{Outcome, described, usage};
use crate::output;
use crate::planned_results::{Planned, PlannedResults};
use crate::report::MaskLinks;
use crate::results_folder::{ResultsFolder, Start};
use crate::segment_report;
use crate::segment_report::{Comparisons, Ending, ReportOptions, SegmentReport};
use crate::session::{Role, Session};
use anyhow::{anyhow, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vitpcm::{Segmentation, Segmenter, SegmenterOptions, Supervision, TagMode};
use vitpcm_data::{ClassLookup, Difficult};
use vitpcm_masks::Classes;
use vitpcm_train::Ranks;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm segment scenes/images/scene-0001.png --out masks --format png,overlay\n\n\
    With your own files:\n  \
    vitpcm segment cat.jpg kitten.jpg --tags cat --out masks\n  \
    vitpcm segment photos --out masks --format png,overlay,coco,yolo\n  \
    vitpcm segment VOC2012 --tags-file VOC2012 --crf --out pseudo-masks")]
pub(crate) struct Args {
    /// Images, or folders of images (at any depth)
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Folder for the masks, each named after its image
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The model, as `train`, `verify` or `masks` writes it: file or run folder [default: the embedded one, which knows
    /// the 20 classes of PASCAL VOC]
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    model: Option<PathBuf>,
    #[command(flatten)]
    tags: TagOptions,
    #[command(flatten)]
    formats: FormatOptions,
    /// Refine each mask with a dense CRF
    #[arg(long)]
    crf: bool,
    #[command(flatten)]
    confidence: ConfidenceOptions,
    /// Continue in --out: skip images that are done and unchanged; the model and the options must be the same
    #[arg(long)]
    resume: bool,
    /// Process only the images listed in --tags-file
    #[arg(long, requires = "tags_file")]
    listed_only: bool,
    /// Only the images of this split of --tags-file: `val`, …, or `training` for what `train` learns from and holds out
    #[arg(long, value_name = "NAME", requires = "tags_file")]
    split: Option<String>,
    /// In --tags-file, skip objects that VOC's annotations mark as difficult
    #[arg(long, requires = "tags_file")]
    skip_difficult: bool,
    /// Side in pixels to which images are resized for the network [default: the model's own]
    #[arg(long, value_name = "N", value_parser = number_bounds::network_side)]
    size: Option<usize>,
    /// Average the scores over these scales of the size
    #[arg(long, value_name = "X,Y,…", value_parser = number_bounds::scale, value_delimiter = ',')]
    scales: Vec<f64>,
    /// Average the scores over the image and its mirror image
    // `--symmetries` used to average over all 8 symmetries of the square; as an alias it now gives the mirror image.
    #[arg(long, alias = "symmetries")]
    flip: bool,
    /// Write the tags of each image, with their probabilities, as JSON; `-` prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    crf_options: CrfOptions,
    #[command(flatten)]
    report_options: ReportOptions,
}

#[derive(clap::Args)]
#[group(multiple = false)]
struct TagOptions {
    /// Tags of every image: class names in any case, separated by commas
    #[arg(long, value_name = "dog,person", value_delimiter = ',')]
    tags: Vec<String>,
    /// Tags of each image: a table (CSV, Excel), JSON tags or a data set; images are named by path or by file name
    #[arg(long, value_name = "FILE")]
    tags_file: Option<PathBuf>,
    /// Let the model predict the tags of each image (the default)
    #[arg(long)]
    predict_tags: bool,
    /// Let every class compete in every pixel
    #[arg(long)]
    no_tags: bool,
    /// Probability from which a tag counts as predicted
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, default_value_t = 0.5, group = "threshold")]
    tag_threshold: f32,
}

/// The resolved source of tags.
enum TagSource {
    Given(Vec<usize>),
    Table(TagTable),
    Predicted { threshold: f32 },
    Unknown,
}

impl TagSource {
    fn new(args: &Args, inputs: &[Input], segmenter: &Segmenter) -> anyhow::Result<TagSource> {
        let (options, classes) = (&args.tags, segmenter.classes());
        if let Some(file) = &options.tags_file {
            let difficult = if args.skip_difficult { Difficult::Exclude } else { Difficult::Include };
            let split = args.split.as_deref();
            return Ok(TagSource::Table(TagTable::read(file, inputs, classes, split, difficult)?));
        }
        if options.no_tags {
            return Ok(TagSource::Unknown);
        }
        // Models trained on masks need no tags, unless the user wants them.
        let is_asked = !options.tags.is_empty() || options.predict_tags;
        if segmenter.supervision() == Supervision::Masks && !is_asked {
            return Ok(TagSource::Unknown);
        }
        if options.tags.is_empty() {
            return Ok(TagSource::Predicted { threshold: options.tag_threshold });
        }
        let lookup = ClassLookup::new(classes);
        let (mut tags, mut unknown) = (Vec::new(), Vec::new());
        // As in tag files, semicolons and bars separate tags too.
        let names = options.tags.iter().flat_map(|name| match lookup.index_of(name) {
            Some(_) => vec![name.as_str()],
            None => name.split([';', '|']).filter(|part| !part.trim().is_empty()).collect(),
        });
        for name in names {
            match lookup.index_of(name).filter(|&index| index > 0) {
                Some(tag) if tags.contains(&tag) => {}
                Some(tag) => tags.push(tag),
                None => unknown.push(format!("`{}`{}", name.trim(), lookup.question(name))),
            }
        }
        if !unknown.is_empty() {
            let (unknown, known) = (unknown.join(", "), classes.names()[1..].join(", "));
            bail!("--tags: the model does not know {unknown}; it knows {known}");
        }
        Ok(TagSource::Given(tags))
    }

    /// The source of the tags, as part of a sentence.
    fn description(&self) -> &'static str {
        match self {
            TagSource::Given(_) | TagSource::Table(_) => "tags given",
            TagSource::Predicted { .. } => "tags predicted by the model",
            TagSource::Unknown => "every class allowed everywhere",
        }
    }

    fn given<'a>(&self, segmentation: &'a Segmentation) -> Option<&'a [usize]> {
        match self {
            TagSource::Given(_) | TagSource::Table(_) => Some(&segmentation.tags),
            TagSource::Predicted { .. } | TagSource::Unknown => None,
        }
    }

    /// The tags of an image in the tag file.
    fn recorded(&self, input: &Input) -> Option<&[usize]> {
        match self {
            TagSource::Table(table) => table.tags_of(&input.path),
            TagSource::Given(_) | TagSource::Predicted { .. } | TagSource::Unknown => None,
        }
    }

    fn mode_of(&self, input: &Input) -> anyhow::Result<TagMode<'_>> {
        Ok(match self {
            TagSource::Given(tags) => TagMode::Given(tags),
            TagSource::Table(table) => {
                let tags = table.tags_of(&input.path);
                TagMode::Given(tags.ok_or_else(|| anyhow!("the tag file does not name it"))?)
            }
            TagSource::Predicted { threshold } => TagMode::Predicted { threshold: *threshold },
            TagSource::Unknown => TagMode::Unknown,
        })
    }
}

pub(crate) fn segment(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let (messages, ranks) = (&session.messages, session.ranks);
    let segmenter = open_segmenter(args, session)?;
    let record = FolderRecord::read(&args.out)?;
    let own = OwnResults::new(&args.out, &record);
    let mut inputs = image_inputs::collect(&args.paths, |path| own.is_one(path), session.common_messages())?;
    let tags = TagSource::new(args, &inputs.images, &segmenter).map_err(usage)?;
    if let (TagSource::Table(table), Role::Command) = (&tags, session.role) {
        table.remarks.iter().for_each(|remark| messages.note(remark));
    }
    if let (TagSource::Table(table), true) = (&tags, args.listed_only) {
        inputs.images.retain(|input| table.lists(&input.path));
        if inputs.images.is_empty() {
            bail!("the tag file lists none of the images");
        }
    }
    if let (TagSource::Table(table), Some(split)) = (&tags, &args.split) {
        inputs.images.retain(|input| table.tags_of(&input.path).is_some());
        if inputs.images.is_empty() {
            bail!("none of the images belongs to the split `{split}`");
        }
    }
    let formats = args.formats.written_per_image();
    let limits = session.image_limits();
    let is_there = |input: &Input| {
        formats.iter().all(|format| format.is_done(&args.out, &input.name, limits.max_pixels))
    };
    if args.resume && !record.exists() && !inputs.images.iter().any(is_there) {
        let text = "there is nothing to resume; the same command without --resume starts";
        return Err(usage(anyhow!("{}: {text}", args.out.display())));
    }
    let comparisons = args.report_options.comparisons(
        (&args.paths, &inputs.images),
        segmenter.classes(),
        |path| own.is_one(path),
        session.common_messages(),
    );
    let comparisons = comparisons.map_err(usage)?;
    check_outputs(args, &inputs.images, &tags, &comparisons, segmenter.classes(), session)?;
    let settings = settings(args, session)?;
    if args.resume {
        check_settings(args, &record, &settings)?;
    }
    ranks.barrier(); // all have read the record
    let _lock = ranks.is_first().then(|| output::lock_folder(&args.out, "segment")).transpose()?;
    let own = inputs.images.iter().skip(ranks.rank()).step_by(ranks.size());
    let progress = match args.resume {
        true => Progress::resumed(own, &record, &tags, is_there),
        false => Progress::fresh(own),
    };
    let [num_done, num_changed, num_found] = ranks.sum_counts(progress.counts());
    if num_done > 0 {
        let all = images(inputs.images.len());
        messages
            .note(format!("{num_done} of {all} {} done already", if num_done == 1 { "is" } else { "are" }));
    }
    if num_found > 0 {
        messages.note(format!(
            "{}: no record of how its results were made; {num_found} complete ones count as done",
            args.out.display()
        ));
    }
    if num_changed > 0 {
        messages.note(format!("segmented again because the image or its tags changed since: {num_changed}"));
    }
    let start = if args.resume { Start::Resumed } else { Start::Fresh };
    let results = ResultsFolder::open(&args.out, record, start, ("segment", settings), ranks)?;
    progress.note_found(&results, &tags)?;
    if ranks.is_first() {
        results.write_file(CLASS_LIST, class_list(segmenter.classes()).as_bytes())?;
    }
    let mut report = SegmentReport::open(
        &args.report_options,
        start,
        (&args.out, comparisons),
        segmenter.classes(),
        ranks,
    )?;
    let interrupt = session.interrupt();
    let started = Instant::now();
    let stages =
        Stages { args, segmenter: &segmenter, tags: &tags, results: &results, limits: limits.clone() };
    let written = stages.run(&progress.todo, report.as_mut(), messages, &interrupt)?;
    let [num_written, num_failed] = ranks.sum_counts([written.num_written, written.num_failed]);
    // All ranks have written everything. Exports hold what is done, in this run or earlier ones.
    let [num_not_exported] = ranks.sum_counts([match ranks.is_first() {
        true => {
            let (formats, classes) = (&args.formats.exports()[..], segmenter.classes());
            let exports = MaskExports {
                formats,
                args: &ExportArgs::default(),
                classes,
                out: &results,
                limits: limits.clone(),
            };
            let finished = inputs.images.iter().map(|input| finished(&args.out, input));
            exports.write_what_is_there(finished, messages)?
        }
        false => 0,
    }]);
    results.say_what_was_edited(messages);
    let mut num_failed = inputs.num_failed + num_failed + num_not_exported;
    if let Some(path) = &args.json {
        let all = tags_of_all(written.tags, &inputs.images, ranks)?;
        if ranks.is_first() {
            messages.json_or_text(Some(path), &all, "")?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = num_written as f64 / seconds.max(1e-9);
    let masks = mask_place::results_place(&args.out, inputs.images.iter().map(|input| input.name.as_str()));
    messages.note(format!(
        "{} segmented in {seconds:.1} s ({rate:.2} per second), {num_failed} failed; masks are in {}",
        images(num_written),
        masks.display()
    ));
    let is_interrupted = ranks.any(interrupt.is_asked());
    if let Some(report) = report.filter(|_| ranks.is_first()) {
        let ending = Ending {
            inputs: &inputs.images,
            num_failed,
            is_interrupted,
            model: &args
                .model
                .as_ref()
                .map_or("the embedded model".into(), |path| path.display().to_string()),
            tags: tags.description(),
            tag_threshold: args.tags.tag_threshold,
            links: match args.formats.written_per_image().contains(&Format::Png) {
                true => MaskLinks::BesideReport,
                false => MaskLinks::None,
            },
            invocation: &session.invocation,
        };
        match report.write(&ending) {
            Ok(path) => messages.note(format!("the report is {}", path.display())),
            Err(error) => {
                num_failed += 1;
                messages.failure(format!("the report could not be written: {}", described(&error)));
            }
        }
    }
    if is_interrupted {
        messages.note("interrupted; the same command with --resume continues");
        return Ok(Outcome::Interrupted);
    }
    if num_written == 0 && num_done == 0 && num_failed > 0 {
        bail!("none of the images could be segmented");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// Refuses results that would replace an image, the model, tags, a mask to compare with or each other.
fn check_outputs(
    args: &Args,
    inputs: &[Input],
    tags: &TagSource,
    comparisons: &Comparisons,
    classes: &Classes,
    session: &Session,
) -> anyhow::Result<()> {
    let (rank, exports) = (session.ranks.rank(), args.formats.exports());
    let formats = args.formats.written_per_image();
    let files: Vec<Finished<'_>> = inputs.iter().map(|input| finished(&args.out, input)).collect();
    let report = [args.out.join("report.html"), segment_report::review_file(&args.out, rank)];
    let json = args.json.iter().filter(|path| *path != Path::new("-")).cloned();
    let planned = PlannedResults {
        out: &args.out,
        formats: &formats,
        exports: &exports,
        classes,
        others: json.chain(report).chain([folder_record::record_file(&args.out, rank)]).collect(),
        images: files.iter().map(|image| Planned::of(image, &ExportArgs::default())).collect(),
    };
    let table = match tags {
        TagSource::Table(table) => &table.files[..],
        _ => &[],
    };
    let images = inputs.iter().map(|input| input.path.clone());
    let others = args.model.iter().chain(&args.tags.tags_file).chain(table).cloned();
    planned.check(images.chain(others).chain(comparisons.files(inputs)), session)
}

/// The paths of an image's results.
pub(crate) fn finished<'a>(out: &Path, input: &'a Input) -> Finished<'a> {
    let extension = input.path.extension().unwrap_or_default().to_string_lossy();
    Finished {
        file_name: format!("{}.{extension}", input.name.replace(std::path::MAIN_SEPARATOR, "/")),
        photograph: Some(&input.path),
        mask: MaskAt::File(Format::Png.file(out, &input.name)),
        scores: Some(Format::Npz.file(out, &input.name)),
    }
}

fn open_segmenter(args: &Args, session: &Session) -> anyhow::Result<Segmenter> {
    let (device, precision) = session.open_device()?;
    let options = SegmenterOptions {
        size: args.size,
        scales: args.scales.clone(),
        flip: args.flip,
        precision,
        ..SegmenterOptions::default()
    };
    match &args.model {
        Some(model) => Segmenter::open(model, &device, options),
        None => Segmenter::new(&embedded_model::load(&device, "--model FILE")?, &device, options),
    }
    .map_err(usage)
}

/// The tags from all ranks in input order; complete on the first rank only.
fn tags_of_all(own: Vec<ImageTags>, inputs: &[Input], ranks: &Ranks) -> anyhow::Result<Vec<ImageTags>> {
    let mut all = own;
    if ranks.size() > 1 {
        let gathered = ranks.gather(serde_json::to_vec(&all)?);
        all = Vec::new();
        for json in gathered {
            all.extend(serde_json::from_slice::<Vec<ImageTags>>(&json)?);
        }
    }
    let name = |input: &Input| input.path.to_string_lossy().into_owned();
    let places: HashMap<String, usize> = inputs.iter().map(name).zip(0..).collect();
    all.sort_by_key(|tags: &ImageTags| places.get(&tags.image).copied());
    Ok(all)
}
