//! `vitpcm-lab scores`: stored score maps as the files that PSA and IRN read instead of their own class activation
//! maps.

use crate::score_dictionary;
use anyhow::{Context, bail};
use clap::ValueEnum;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use vitpcm_cli::counting::counted;
use vitpcm_cli::outcome::{Outcome, described, usage};
use vitpcm_cli::output;
use vitpcm_cli::session::Session;
use vitpcm_masks::{StoredScores, score_files};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first lines make score maps to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm segment scenes/images/scene-0001.png --out masks --format npz\n  \
    vitpcm-lab scores masks/npz --format irn --out irn")]
pub(crate) struct Args {
    /// Folder of score maps (.npz), as `vitpcm segment --format npz` writes them
    #[arg(value_name = "DIR")]
    scores: PathBuf,
    /// Format: one .npy file per image, for numpy.load(file, allow_pickle=True).item()
    #[arg(long, value_enum)]
    format: Format,
    /// Folder for the files, each named after its score map
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// PSA: {class: scores at the image's size}
    Psa,
    /// IRN: keys, cam (at a quarter of the size) and high_res
    Irn,
}

pub(crate) fn scores(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let files = score_files(&args.scores).map_err(usage)?;
    if files.is_empty() {
        bail!("{}: no score map (.npz) found", args.scores.display());
    }
    let result = |name: &Path| args.out.join(name.with_extension("npy"));
    session.check_outputs(files.values(), files.keys().map(|name| result(name)))?;
    let _lock = output::lock_folder(&args.out, "scores")?;
    let max_pixels = session.image_limits().max_pixels;
    let num_failed = AtomicUsize::new(0);
    let bar = messages.progress_bar(files.len(), "writing");
    files.par_iter().for_each(|(name, path)| {
        if let Err(error) = write_one(args, path, &result(name), max_pixels) {
            num_failed.fetch_add(1, Ordering::Relaxed);
            bar.suspend(|| messages.failure(described(&error)));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let num_failed = num_failed.into_inner();
    let num_done = files.len() - num_failed;
    let written = counted(num_done, "score map", "score maps");
    messages.note(format!("{written} written, {num_failed} failed; see {}", args.out.display()));
    if num_done == 0 {
        bail!("none of the score maps could be written");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

fn write_one(args: &Args, from: &Path, to: &Path, max_pixels: u64) -> anyhow::Result<()> {
    let stored = StoredScores::read_within(from, max_pixels)?;
    let bytes = match args.format {
        Format::Psa => score_dictionary::psa(&stored),
        Format::Irn => score_dictionary::irn(&stored),
    };
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    output::write_file(to, &bytes)
}
