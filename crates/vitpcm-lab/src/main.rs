//! `vitpcm-lab`: reproduces tables of the ViT-PCM paper and our own experiments. It shares `vitpcm`'s libraries and
//! command-line plumbing; nothing in `vitpcm` depends on it.

mod annotator;
mod attention;
mod attention_maps;
mod average;
mod cam;
mod clicks;
mod foreground;
mod foreground_scores;
mod heads;
mod join;
mod joined_masks;
mod random;
mod score_dictionary;
mod scores;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use vitpcm_cli::invocation::Invocation;
use vitpcm_cli::outcome::{Outcome, usage};
use vitpcm_cli::session::{Common, Session};
use vitpcm_train::Ranks;

/// Experiments around vitpcm and the tables of the ViT-PCM paper.
#[derive(Parser)]
#[command(name = "vitpcm-lab", version, max_term_width = 100, args_override_self = true)]
#[command(after_help = "Example, to paste:\n  \
                        vitpcm-lab random --backbone vit-nano16 --out a.safetensors")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum Command {
    /// Make foreground masks from a ViT's own attention, without tags or training
    Attention(attention::Args),
    /// Score masks as foreground against background, whatever their classes
    Foreground(foreground::Args),
    /// Train class activation maps, as a baseline
    Cam(cam::Args),
    /// Merge the masks of two models, to train a further round on
    Join(join::Args),
    /// Average the weights of several training runs of the same network
    Average(average::Args),
    /// Write an untrained model, to measure time and memory
    Random(random::Args),
    /// Score masks after every click of a simulated annotator
    Clicks(clicks::Args),
    /// Compare the candidates of `vitpcm propose` with true masks
    Heads(heads::Args),
    /// Write score maps as the dictionaries that PSA and IRN read
    Scores(scores::Args),
}

fn main() -> ExitCode {
    vitpcm_cli::program::start(run)
}

fn run(cli: Cli, invocation: Invocation, ranks: &Ranks) -> anyhow::Result<Outcome> {
    let session = Session::new(&cli.common, invocation, ranks)?;
    if ranks.size() > 1 && !matches!(cli.command, Command::Cam(_)) {
        return Err(usage(anyhow::anyhow!("this command runs as one process; cam supports several")));
    }
    match cli.command {
        Command::Attention(args) => attention::attention(&args, &session),
        Command::Foreground(args) => foreground::foreground(&args, &session),
        Command::Cam(args) => cam::cam(&args, &session),
        Command::Join(args) => join::join(&args, &session),
        Command::Average(args) => average::average(&args, &session),
        Command::Random(args) => random::random(&args, &session),
        Command::Clicks(args) => clicks::clicks(&args, &session),
        Command::Heads(args) => heads::heads(&args, &session),
        Command::Scores(args) => scores::scores(&args, &session),
    }
}
