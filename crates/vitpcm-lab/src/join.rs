//! `vitpcm-lab join`: merges the masks of two models to train a further round on.

use crate::joined_masks::{agreed, joined};
use anyhow::{Context, bail};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use vitpcm_cli::class_names::CLASS_LIST;
use vitpcm_cli::counting::counted;
use vitpcm_cli::mask_place;
use vitpcm_cli::number_bounds;
use vitpcm_cli::outcome::{Outcome, described, usage};
use vitpcm_cli::output;
use vitpcm_cli::session::Session;
use vitpcm_masks::{NamedMasks, read_label_png, text_file, write_label_png};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm segment scenes/images/scene-0001.png --out first\n  \
    vitpcm segment scenes/images/scene-0001.png --out second --crf\n  \
    vitpcm-lab join first second --out joined")]
pub(crate) struct Args {
    /// Folder of masks
    first: PathBuf,
    /// Folder of another model's masks of the same images
    second: PathBuf,
    /// Folder for the joined masks: the first model's, plus classes of which the second found much more in an image
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Take a class from SECOND if FIRST has under this fraction of its pixels
    #[arg(long, value_name = "X", value_parser = number_bounds::ratio, default_value_t = 0.6)]
    share: f64,
    /// Instead keep only pixels on which both agree; the others become 255 (ignored in training)
    #[arg(long, conflicts_with = "share")]
    agreed: bool,
}

pub(crate) fn join(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let found = NamedMasks::find(&args.first, &args.second).map_err(usage)?;
    let names = found.first.keys().chain(found.second.keys()).collect::<BTreeSet<_>>();
    let (both, alone): (Vec<_>, Vec<_>) = names
        .into_iter()
        .partition(|&name| found.first.contains_key(name) && found.second.contains_key(name));
    let two_masks = |name: &PathBuf| TwoMasks { first: &found.first[name], second: &found.second[name] };
    let both: Vec<TwoMasks<'_>> = both.into_iter().map(two_masks).collect();
    if both.is_empty() {
        let (first, second) = (args.first.display(), args.second.display());
        return Err(usage(anyhow::anyhow!("no mask (.png) of {first} has one of the same name in {second}")));
    }
    mask_place::say(&found.way, &args.first, &args.second, messages);
    let class_list = class_list(args).map_err(usage)?;
    let masks = both.iter().flat_map(|masks| [masks.first.to_path_buf(), masks.second.to_path_buf()]);
    let lists = [&args.first, &args.second].map(|folder| folder.join(CLASS_LIST));
    let outputs = both.iter().map(|masks| joined_path(args, masks));
    session.check_outputs(masks.chain(lists), outputs.chain([args.out.join(CLASS_LIST)]))?;
    let _lock = output::lock_folder(&args.out, "join")?;
    for name in &alone {
        messages.failure(format!("{}: only in one of the two folders", name.display()));
    }

    let num_failed = AtomicUsize::new(alone.len());
    let bar = messages.progress_bar(both.len(), "joining");
    both.par_iter().for_each(|masks| {
        if let Err(error) = join_one(args, masks) {
            num_failed.fetch_add(1, Ordering::Relaxed);
            bar.suspend(|| messages.failure(described(&error)));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    if let Some(text) = class_list {
        output::write_file(&args.out.join(CLASS_LIST), text.as_bytes())?;
    }
    let num_failed = num_failed.into_inner();
    let num_done = both.len() + alone.len() - num_failed;
    let joined = counted(num_done, "mask", "masks");
    messages.note(format!("{joined} joined, {num_failed} failed; see {}", args.out.display()));
    if num_done == 0 {
        bail!("none of the masks could be joined");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// The class list, if a folder has one; two lists must be equal.
fn class_list(args: &Args) -> anyhow::Result<Option<String>> {
    let read = |folder: &Path| {
        let path = folder.join(CLASS_LIST);
        match path.is_file() {
            true => text_file::read(&path).map(Some).with_context(|| format!("{}", path.display())),
            false => Ok(None),
        }
    };
    match (read(&args.first)?, read(&args.second)?) {
        (Some(first), Some(second)) if first != second => bail!(
            "{} and {} list different classes in {CLASS_LIST}; expected masks of the same classes",
            args.first.display(),
            args.second.display()
        ),
        (first, second) => Ok(first.or(second)),
    }
}

/// The masks of one image.
struct TwoMasks<'a> {
    first: &'a Path,
    second: &'a Path,
}

fn joined_path(args: &Args, masks: &TwoMasks<'_>) -> PathBuf {
    args.out.join(masks.first.strip_prefix(&args.first).unwrap_or(masks.first))
}

fn join_one(args: &Args, masks: &TwoMasks<'_>) -> anyhow::Result<()> {
    let TwoMasks { first, second } = masks;
    let (own, other) = (read_label_png(first)?, read_label_png(second)?);
    let joined = match args.agreed {
        true => agreed(&own, &other),
        false => joined(&own, &other, args.share),
    }
    .with_context(|| format!("{} and {}", first.display(), second.display()))?;
    let to = joined_path(args, masks);
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    Ok(write_label_png(&to, &joined)?)
}
