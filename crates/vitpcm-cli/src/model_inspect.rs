//! `vitpcm model inspect`: what a weights file or model holds.

use crate::outcome::Outcome;
use crate::output;
use crate::session::Session;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line makes a model to try it on):\n  \
    vitpcm model random --backbone vit-nano16 --out random.safetensors\n  \
    vitpcm model inspect random.safetensors")]
pub(crate) struct Args {
    /// A model of ours, or backbone weights: .safetensors, .pth, .pt, .npz
    file: PathBuf,
    /// Write everything as JSON; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn inspect(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    session.check_outputs([&args.file], args.json.clone())?;
    let summary = vitpcm_nets::inspect(&args.file)?;
    output::json_or_text(args.json.as_deref(), &summary, &format!("{summary}\n"))?;
    Ok(Outcome::Done)
}
