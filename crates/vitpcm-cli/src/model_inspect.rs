//! `vitpcm model inspect`: the contents of a weights file or model.

use crate::model_path;
use crate::outcome::Outcome;
use crate::session::Session;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use vitpcm_nets::{FileSummary, WeightFile};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first lines make a model to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n  \
    vitpcm model inspect run")]
pub(crate) struct Args {
    /// A vitpcm model or its run folder, or backbone weights: .safetensors, .pth, .pt, .npz
    #[arg(value_name = "FILE|RUN", value_parser = model_path::parser())]
    file: PathBuf,
    /// Write everything as JSON; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The content of `--json`.
#[derive(Serialize)]
struct Inspection {
    #[serde(flatten)]
    summary: FileSummary,
    checksums: Checksums,
}

/// Result of the checksum test.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Checksums {
    None,
    Verified,
    Failed,
}

impl fmt::Display for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Checksums::None => "none: damage cannot be detected",
            Checksums::Verified => "verified",
            Checksums::Failed => "failed: the file is damaged",
        })
    }
}

pub(crate) fn inspect(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    session.check_outputs([&args.file], args.json.clone())?;
    let summary = vitpcm_nets::inspect(&args.file)?;
    let file = WeightFile::open(&args.file)?;
    // Files of other programs may hold arrays that our networks do not use.
    let is_ours = matches!(summary, FileSummary::Model(_) | FileSummary::DeepLab(_));
    let damage = if is_ours || file.has_checksums() { file.find_damage() } else { Vec::new() };
    let checksums = match (file.has_checksums(), damage.is_empty()) {
        (false, _) => Checksums::None,
        (true, true) => Checksums::Verified,
        (true, false) => Checksums::Failed,
    };
    let text = format!("{summary}  checksums       {checksums}\n\n");
    session.messages.json_or_text(args.json.as_deref(), &Inspection { summary, checksums }, &text)?;
    match damage.into_iter().next() {
        Some(error) => Err(error.into()),
        None => Ok(Outcome::Done),
    }
}
