//! `vitpcm-lab random`: writes an untrained model.

use std::path::PathBuf;
use vitpcm::{Storage, random_model};
use vitpcm_cli::outcome::{Outcome, usage};
use vitpcm_cli::session::Session;
use vitpcm_masks::Classes;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste:\n  \
    vitpcm-lab random --backbone vit-nano16 --out random.safetensors")]
pub(crate) struct Args {
    /// The network's backbone (vit-ti16, vit-s16, vit-b16, vit-l16, dinov2-s14-reg, …)
    #[arg(long, value_name = "NAME", default_value = "vit-s16")]
    backbone: String,
    /// Class names, one per line [default: the 20 of PASCAL VOC]
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// The model file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn random(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    session.check_outputs(&args.classes, [args.out.clone()])?;
    let classes = match &args.classes {
        Some(file) => Classes::from_file(file).map_err(usage)?,
        None => Classes::voc(),
    };
    let foreground: Vec<&str> = classes.names()[1..].iter().map(String::as_str).collect();
    let model = random_model(&args.backbone, &foreground, session.seed).map_err(usage)?;
    // Finishes writing after the first signal; a second one ends the program.
    let _interrupt = session.interrupt();
    model.save(&args.out, Storage::F32)?;
    session.messages.note(format!("{}: an untrained {}", args.out.display(), args.backbone));
    Ok(Outcome::Done)
}
