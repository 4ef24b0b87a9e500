//! `vitpcm join`: the masks of two models in one, to train a further round on.

use crate::class_names::CLASS_LIST;
use crate::counting::counted;
use crate::mask_place;
use crate::number_bounds;
use crate::outcome::{Outcome, described, usage};
use crate::output;
use crate::session::Session;
use anyhow::{Context, bail};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use vitpcm_masks::{MaskPair, MaskPairs, read_label_png, text_file, write_label_png};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm segment scenes/images/scene-0001.png --out first\n  \
    vitpcm segment scenes/images/scene-0001.png --out second --crf\n  \
    vitpcm join first second --out joined")]
pub(crate) struct Args {
    /// Folder of masks
    first: PathBuf,
    /// Folder of another model's masks of the same images
    second: PathBuf,
    /// Folder for the joined masks: the first one's, and more of those classes of which the second found much more in an image
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How much less is much less: classes of which the first has less than this share of the second's pixels are completed
    #[arg(long, value_name = "X", value_parser = number_bounds::ratio, default_value_t = 0.6)]
    share: f64,
    /// Instead: only what both say; where they differ it is left open (255), and nothing is learned from it
    #[arg(long, conflicts_with = "share")]
    agreed: bool,
}

pub(crate) fn join(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let found = MaskPairs::find(&args.first, &args.second, None).map_err(usage)?;
    if found.pairs.is_empty() {
        let (first, second) = (args.first.display(), args.second.display());
        return Err(usage(anyhow::anyhow!("no mask (.png) of {first} has one of the same name in {second}")));
    }
    mask_place::say(&found.way, &args.first, &args.second, messages);
    let class_list = class_list(args).map_err(usage)?;
    let masks = found.pairs.iter().flat_map(|pair| [pair.prediction.clone(), pair.truth.clone()]);
    let lists = [&args.first, &args.second].map(|folder| folder.join(CLASS_LIST));
    let outputs = found.pairs.iter().map(|pair| joined_path(args, pair));
    session.check_outputs(masks.chain(lists), outputs.chain([args.out.join(CLASS_LIST)]))?;
    let _lock = output::lock_folder(&args.out, "join")?;
    let alone: Vec<_> = found.without_truth.iter().chain(&found.without_prediction).collect();
    for name in &alone {
        messages.failure(format!("{}: only in one of the two folders", name.display()));
    }

    let num_failed = AtomicUsize::new(alone.len());
    let bar = messages.progress_bar(found.pairs.len(), "joining");
    found.pairs.par_iter().for_each(|pair| {
        if let Err(error) = join_one(args, pair) {
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
    let num_done = found.pairs.len() + alone.len() - num_failed;
    let joined = counted(num_done, "mask", "masks");
    messages.note(format!("{joined} joined, {num_failed} failed; see {}", args.out.display()));
    if num_done == 0 {
        bail!("none of the masks could be joined");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

/// The classes of the masks, where a folder names them; two folders must mean the same by a number.
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

fn joined_path(args: &Args, pair: &MaskPair) -> PathBuf {
    args.out.join(pair.prediction.strip_prefix(&args.first).unwrap_or(&pair.prediction))
}

fn join_one(args: &Args, pair: &MaskPair) -> anyhow::Result<()> {
    let (first, second) = (&pair.prediction, &pair.truth);
    let (own, other) = (read_label_png(first)?, read_label_png(second)?);
    let joined = match args.agreed {
        true => own.agreed(&other),
        false => own.joined(&other, args.share),
    }
    .with_context(|| format!("{} and {}", first.display(), second.display()))?;
    let to = joined_path(args, pair);
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    Ok(write_label_png(&to, &joined)?)
}
