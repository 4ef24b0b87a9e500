//! `vitpcm model convert`: a model in less space.

use crate::outcome::Outcome;
use crate::session::Session;
use std::path::PathBuf;
use vitpcm::{Device, Model, Storage};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line makes a model to try it on):\n  \
    vitpcm model random --backbone vit-nano16 --out random.safetensors\n  \
    vitpcm model convert random.safetensors --store i8 --out small.safetensors")]
pub(crate) struct Args {
    /// A model of ours
    file: PathBuf,
    /// How numbers are stored
    #[arg(long, value_enum)]
    store: Store,
    /// The model file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Store {
    /// As trained
    F32,
    /// In half the space; masks stay the same but for a few pixels
    F16,
    /// In a quarter: matrices in 8 bits with a scale a row
    I8,
}

pub(crate) fn convert(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let model = Model::load(&args.file, &Device::Cpu)?;
    let storage = match args.store {
        Store::F32 => Storage::F32,
        Store::F16 => Storage::F16,
        Store::I8 => Storage::I8,
    };
    model.save(&args.out, storage)?;
    let megabytes = std::fs::metadata(&args.out).map_or(0.0, |file| file.len() as f64 / 1e6);
    session.messages.note(format!("{}: {megabytes:.1} MB", args.out.display()));
    Ok(Outcome::Done)
}
