//! `vitpcm-lab average`: averages the weights of several training runs of the same network.

use anyhow::anyhow;
use std::path::PathBuf;
use vitpcm::{DeepLabModel, Device, Model, Storage};
use vitpcm_cli::model_path;
use vitpcm_cli::outcome::{Outcome, usage};
use vitpcm_cli::session::Session;
use vitpcm_nets::WeightFile;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first two lines make models to try it on):\n  \
    vitpcm-lab random --backbone vit-nano16 --out a.safetensors\n  \
    vitpcm-lab random --backbone vit-nano16 --seed 1 --out b.safetensors\n  \
    vitpcm-lab average a.safetensors b.safetensors --out mean.safetensors\n\n\
    Average runs that started from the same weights; the mean of random weights is useless.")]
pub(crate) struct Args {
    /// Models of `train` or `verify` that started from the same weights: files or run folders
    #[arg(required = true, num_args = 2.., value_name = "MODEL", value_parser = model_path::parser())]
    models: Vec<PathBuf>,
    /// The model file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn average(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    session.check_outputs(&args.models, [args.out.clone()])?;
    let files = args.models.iter().map(WeightFile::open).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = args.models.iter().map(|path| path.display().to_string()).collect();
    let of_these = |error| usage(anyhow!("{}: {error}", names.join(", ")));
    let origin = ("averaged_from".to_owned(), names.join(" "));
    // Finishes writing after the first signal; a second one ends the program.
    let _interrupt = session.interrupt();
    match files.iter().any(DeepLabModel::is_in) {
        true => {
            let read = |file| DeepLabModel::from_weight_file(file, &Device::Cpu);
            let models = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let mut mean = DeepLabModel::mean(&models).map_err(of_these)?;
            mean.info.provenance.extend([origin]);
            mean.save(&args.out, Storage::F32)?;
        }
        false => {
            let read = |file| Model::from_weight_file(file, &Device::Cpu);
            let models = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let mut mean = Model::mean(&models).map_err(of_these)?;
            mean.info.provenance.extend([origin]);
            mean.save(&args.out, Storage::F32)?;
        }
    }
    session.messages.note(format!("{}: the mean of {} models", args.out.display(), files.len()));
    Ok(Outcome::Done)
}
