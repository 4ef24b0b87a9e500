//! `vitpcm`: from image tags to pixel masks. One subcommand is one file; this one says which there are, and turns
//! what they return into an exit code.

mod config_file;
mod data_inspect;
mod evaluate;
mod outcome;
mod output;
mod table;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use outcome::Outcome;
use std::path::PathBuf;
use std::process::ExitCode;

/// Pixel masks from image tags: weakly supervised segmentation after ViT-PCM (ECCV 2022).
#[derive(Parser)]
#[command(name = "vitpcm", version, max_term_width = 100, args_override_self = true)]
#[command(
    after_help = "Exit codes: 0 done; 1 some inputs failed, the rest is done; 2 wrong usage or configuration; \
                        3 nothing could be done; 130 interrupted, state saved."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// What every command takes.
#[derive(clap::Args)]
struct Common {
    /// Number of threads [default: all cores]
    #[arg(long, global = true, value_name = "N", help_heading = "Common options")]
    threads: Option<std::num::NonZeroUsize>,
    /// Messages and progress off; results and errors stay
    #[arg(long, global = true, help_heading = "Common options")]
    quiet: bool,
    /// A TOML file with any of this command's options (`crf = true`, `size = 960`); what is typed wins
    #[arg(long, global = true, value_name = "FILE.toml", help_heading = "Common options")]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Score predicted masks against true ones
    Evaluate(evaluate::Args),
    /// Look at a data set
    #[command(subcommand)]
    Data(DataCommand),
}

#[derive(Subcommand)]
enum DataCommand {
    /// What we understood of a data set: images, tags, splits, and every problem found
    Inspect(data_inspect::Args),
}

fn main() -> ExitCode {
    let arguments = match config_file::expanded_arguments(&Cli::command(), std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(error) => return outcome::report(Err(outcome::usage(error))),
    };
    let matches = Cli::command().get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    outcome::report(run(cli))
}

fn run(cli: Cli) -> anyhow::Result<Outcome> {
    if let Some(threads) = cli.common.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global()?;
    }
    let messages = output::Messages::new(cli.common.quiet);
    match cli.command {
        Command::Evaluate(args) => evaluate::evaluate(&args, &messages),
        Command::Data(DataCommand::Inspect(args)) => data_inspect::inspect(&args, &messages),
    }
}
