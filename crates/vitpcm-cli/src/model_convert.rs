//! `vitpcm model convert`: stores a model or initial weights in less space.

use crate::model_path;
use crate::outcome::{Outcome, usage};
use crate::session::Session;
use anyhow::{anyhow, bail};
use std::path::{Path, PathBuf};
use vitpcm::{DeepLabModel, Device, Model, Storage};
use vitpcm_nets::{FileSummary, WeightFile, inspect, shrink_weights};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first lines make a model to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n  \
    vitpcm model convert run --store i8 --out small.safetensors\n\n\
    With your own files:\n  \
    vitpcm model convert ResNet50/model.json --store f16 --out resnet50.safetensors")]
pub(crate) struct Args {
    /// A vitpcm model or its run folder, or backbone weights (.safetensors, .pth, .npz, TensorFlow.js model.json)
    #[arg(value_name = "FILE|RUN", value_parser = model_path::parser())]
    file: PathBuf,
    /// Number format
    #[arg(long, value_enum)]
    store: Store,
    /// The model file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Store {
    /// 32-bit floats, as trained
    F32,
    /// Half the space; masks differ in a few pixels at most
    F16,
    /// A quarter of the space: matrices as 8-bit integers with one scale per row
    I8,
}

/// The file and, for TensorFlow.js, its weight files.
fn inputs(file: &Path) -> Vec<PathBuf> {
    let is_description = file.extension().is_some_and(|extension| extension == "json");
    let beside = file.parent().filter(|_| is_description).into_iter().flat_map(std::fs::read_dir).flatten();
    let weights = beside.flatten().map(|entry| entry.path());
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bin");
    weights.filter(is_shard).chain([file.to_path_buf()]).collect()
}

pub(crate) fn convert(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    session.check_outputs(inputs(&args.file), [args.out.clone()])?;
    let file = WeightFile::open(&args.file)?;
    // The batch norms of a verification network stay f32: some values exceed f16.
    let storage = match (args.store, DeepLabModel::is_in(&file)) {
        (Store::F32, _) => Storage::F32,
        (Store::F16, false) => Storage::F16,
        (Store::F16, true) => Storage::F16Matrices,
        (Store::I8, false) => Storage::I8,
        (Store::I8, true) => {
            return Err(usage(anyhow!(
                "{}: f16 is the smallest format for a verification network",
                args.file.display()
            )));
        }
    };
    // Finishes writing after the first signal; a second one ends the program.
    let _interrupt = session.interrupt();
    match inspect(&args.file)? {
        FileSummary::Model(_) => Model::from_weight_file(&file, &Device::Cpu)?.save(&args.out, storage)?,
        FileSummary::DeepLab(_) => {
            DeepLabModel::from_weight_file(&file, &Device::Cpu)?.save(&args.out, storage)?;
        }
        FileSummary::Backbone(_) | FileSummary::ResNet(_) | FileSummary::Xception(_)
            if matches!(args.store, Store::F16) =>
        {
            shrink_weights(&file, &args.out)?;
        }
        FileSummary::Backbone(_) | FileSummary::ResNet(_) | FileSummary::Xception(_) => {
            return Err(usage(anyhow!(
                "{}: backbone weights can only be stored as f16",
                args.file.display()
            )));
        }
        FileSummary::Arrays { reason, .. } => bail!("{reason}"),
    }
    let megabytes = std::fs::metadata(&args.out).map_or(0.0, |file| file.len() as f64 / 1e6);
    session.messages.note(format!("{}: {megabytes:.1} MB", args.out.display()));
    Ok(Outcome::Done)
}
