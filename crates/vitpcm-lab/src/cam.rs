//! `vitpcm-lab cam`: trains class activation maps: global average pooling, one linear layer, no equivariance loss;
//! background by a threshold chosen on validation images.

use vitpcm_cli::outcome::Outcome;
use vitpcm_cli::session::Session;
use vitpcm_cli::train;
use vitpcm_train::LocalisationKind;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws tagged images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm-lab cam --data scenes --out cam --preset demo --epochs 1\n\n\
    `vitpcm segment --model cam` makes masks with it; thresholds.csv lists the sweep.")]
pub(crate) struct Args {
    #[command(flatten)]
    train: train::Args,
}

pub(crate) fn cam(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    train::train_as(&args.train, LocalisationKind::Cam, session)
}
