//! `vitpcm export`: converts finished masks to the formats of other tools, from any of these formats.

use crate::class_names;
use crate::counting::counted;
use crate::folder_record::{self, FolderRecord, Settings};
use crate::mask_exports::{ExportArgs, Finished, MaskAt, MaskExports, Pass, format_parser};
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::planned_results::{Planned, PlannedResults};
use crate::results_folder::{ResultsFolder, Start};
use crate::session::Session;
use anyhow::{anyhow, bail};
use std::path::{Path, PathBuf};
use vitpcm_exports::{ExportError, ExportFormat, MaskSet};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws masks to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm export scenes/masks --classes scenes/classes.txt \\\n    \
    --images scenes/images --out exports --format coco,yolo,labelme\n  \
    vitpcm export exports/coco --out again --format png\n\n\
    The formats and how to import them: docs/guide/exports.md")]
pub(crate) struct Args {
    /// The masks: a folder of mask PNGs, in VOC layout, of YOLO or of Labelme files; a COCO or Label Studio JSON file;
    /// a CVAT zip
    #[arg(value_name = "MASKS")]
    masks: PathBuf,
    /// Output folder; each format gets a subfolder of its name, except `png`, which goes directly into it
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Formats to write
    #[arg(long, value_parser = format_parser(), value_delimiter = ',', required = true, value_name = "FORMAT,…")]
    format: Vec<ExportFormat>,
    /// `voc`, `coco`, or a file with one class name per line [default: what the masks' own files say]
    #[arg(long, value_name = "voc|coco|FILE")]
    classes: Option<String>,
    /// Folder of the images, named like the masks: for their file names and sizes, and to place them
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Folder of score maps (.npz), for --min-confidence [default: npz next to the masks]
    #[arg(long, value_name = "DIR")]
    scores: Option<PathBuf>,
    #[command(flatten)]
    export: ExportArgs,
}

pub(crate) fn export(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    args.export.check(&args.format)?;
    if !args.masks.exists() {
        return Err(usage(anyhow!("{}: there is no such file or folder", args.masks.display())));
    }
    let classes = args.classes.as_deref().map(class_names::named).transpose().map_err(usage)?;
    let set =
        MaskSet::open(&args.masks, classes.as_ref(), args.images.as_deref()).map_err(
            |error| match error {
                ExportError::NoClassNames { .. } => {
                    usage(anyhow!("{error}; --classes voc|coco|FILE names them"))
                }
                other => other.into(),
            },
        )?;
    let limits = session.image_limits();
    let set = set.with_limits(limits.clone());
    set.remark().into_iter().for_each(|remark| messages.note(remark));
    if set.is_empty() {
        bail!("{}: no mask found", args.masks.display());
    }
    let beside = args.masks.join("npz");
    let scores = args.scores.clone().or_else(|| beside.is_dir().then_some(beside));
    if let (None, Some(format)) =
        (&scores, args.format.iter().find(|&&format| args.export.needs_scores(format)))
    {
        let text = "needs score maps: --scores DIR, as `segment --format npz` writes them";
        return Err(usage(anyhow!("{} {text}", format.name())));
    }
    let finished = |index: usize| {
        let file_name = set.file_name(index).to_string();
        let name = Path::new(&file_name).with_extension("npz");
        Finished {
            scores: scores.as_ref().map(|folder| folder.join(name)),
            photograph: set.photograph(index),
            mask: MaskAt::InSet(&set, index),
            file_name,
        }
    };
    let images: Vec<Finished<'_>> = (0..set.len()).map(finished).collect();
    let (formats, classes) = (&args.format[..], set.classes());
    check_outputs(args, &set, &images, session)?;
    let record = FolderRecord::read(&args.out)?;
    let _lock = output::lock_folder(&args.out, "export")?;
    let run = ("export", Settings::new());
    let results = ResultsFolder::open(&args.out, record, Start::Fresh, run, session.ranks)?;
    let exports = MaskExports { formats, args: &args.export, classes, out: &results, limits };
    let interrupt = session.interrupt();
    let pass = exports.write(&images, messages, Some(&interrupt))?;
    results.say_what_was_edited(messages);
    let Pass::Whole { num_failed } = pass else {
        messages.note("interrupted; nothing half-written is left");
        return Ok(Outcome::Interrupted);
    };
    let num_done = images.len() - num_failed;
    let words: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    let out = args.out.display();
    let (masks, words) = (counted(num_done, "mask", "masks"), words.join(", "));
    messages.note(format!("{masks} written as {words}, {num_failed} failed; see {out}"));
    if num_done == 0 {
        bail!("none of the masks could be exported");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// Refuses to overwrite the masks, class lists, images or scores.
fn check_outputs(
    args: &Args,
    set: &MaskSet,
    images: &[Finished<'_>],
    session: &Session,
) -> anyhow::Result<()> {
    let planned = PlannedResults {
        out: &args.out,
        formats: &[],
        exports: &args.format,
        classes: set.classes(),
        others: vec![folder_record::record_file(&args.out, 0)],
        images: images.iter().map(|image| Planned::of(image, &args.export)).collect(),
    };
    let scores = images.iter().filter_map(|image| image.scores.clone());
    let class_list = args.classes.iter().map(PathBuf::from);
    planned.check(set.files().into_iter().chain(scores).chain(class_list), session)
}
