//! `vitpcm`: from image tags to pixel masks. One file per subcommand; this one lists them. Public items are the
//! plumbing that `vitpcm-lab` shares: options, messages, tables, exit codes.

mod allocator;
pub mod class_names;
pub mod compared_masks;
mod completions;
mod confidence_options;
mod config_file;
pub mod counting;
mod crf_options;
mod data_inspect;
mod demo;
mod demo_report;
mod embedded_model;
mod evaluate;
mod export;
mod file_guard;
mod folder_record;
pub mod head_contest;
pub mod image_inputs;
pub mod in_process;
mod initial_weights;
pub mod interrupt;
pub mod invocation;
mod json_lines;
mod live_run;
mod man;
mod mask_exports;
mod mask_formats;
pub mod mask_place;
mod masks;
mod model_check_tags;
mod model_convert;
mod model_export;
mod model_fit_tags;
mod model_inspect;
pub mod model_path;
pub mod number_bounds;
pub mod outcome;
pub mod output;
mod planned_results;
mod printable;
pub mod program;
mod propose;
mod refine;
mod report;
mod results_folder;
mod segment;
mod segment_report;
mod serve;
pub mod session;
pub mod table;
mod tagged_photographs;
pub mod train;
mod train_report;
mod verdict;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use invocation::Invocation;
use outcome::Outcome;
use session::Session;
use std::ffi::OsString;
use std::process::ExitCode;
use vitpcm_train::Ranks;

/// Pixel masks from image tags: weakly supervised segmentation after ViT-PCM (ECCV 2022).
#[derive(Parser)]
#[command(name = "vitpcm", version, max_term_width = 100, args_override_self = true)]
#[command(after_help = "Example, to paste (each command's --help has its own):\n  \
                        vitpcm demo --data-only scenes\n  \
                        vitpcm data inspect scenes\n\n\
                        Exit codes: 0 done; 1 some inputs failed, the rest is done; 2 wrong usage or \
                        configuration; 3 nothing could be done; 130 interrupted, state saved.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: session::Common,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole pipeline on drawn scenes: nothing to download
    Demo(demo::Args),
    /// Make masks for a folder of tagged images: plans, trains and refines by itself
    Masks(masks::Args),
    /// Make masks for images or folders of images
    Segment(segment::Args),
    /// Open the viewer in your browser: drop images, choose tags, see masks change
    Serve(serve::Args),
    /// Look at a data set
    #[command(subcommand)]
    #[command(after_help = "Example, to paste:\n  \
        vitpcm demo --data-only scenes\n  \
        vitpcm data inspect scenes")]
    Data(DataCommand),
    /// Train a model from tagged images
    Train(train::Args),
    /// Choose masks for a further training round: the given ones, or those of linear heads where these are more
    /// plausible
    Propose(propose::Args),
    /// Refine stored score maps with a dense CRF
    Refine(refine::Args),
    /// Score predicted masks against true ones
    Evaluate(evaluate::Args),
    /// Train a segmenter that needs no tags from images and pseudo-masks, and score it
    Verify(verify::Args),
    /// Convert finished masks to the formats of other tools: COCO, YOLO, Label Studio, CVAT, Labelme, VOC
    Export(export::Args),
    /// Inspect, convert and export models, and measure their predicted tags
    #[command(subcommand)]
    #[command(after_help = "Example, to paste:\n  \
        vitpcm demo --data-only scenes\n  \
        vitpcm train --data scenes --out run --preset demo --epochs 2\n  \
        vitpcm model inspect run")]
    Model(ModelCommand),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Write manual pages of all commands
    Man(man::Args),
}

#[derive(Subcommand)]
enum DataCommand {
    /// Show how a data set was understood: images, tags, splits, and every problem found
    Inspect(data_inspect::Args),
}

#[derive(Subcommand)]
enum ModelCommand {
    /// Show what a weights file or model holds
    Inspect(model_inspect::Args),
    /// Write a model in less space
    Convert(model_convert::Args),
    /// Write a model for other runtimes: ONNX, from image to class probabilities
    Export(model_export::Args),
    /// Fit a tag head, so that objects of unknown classes get no tag
    FitTags(model_fit_tags::Args),
    /// Measure predicted tags: precision, calibration, and false tags on images without known classes
    CheckTags(model_check_tags::Args),
}

/// The program: parses the command line, runs the command, returns the exit code.
pub fn vitpcm() -> ExitCode {
    program::start(run)
}

/// The program with this command line, whose first word is its name; the exit code as a number. It takes over signals.
pub fn vitpcm_with(words: Vec<OsString>) -> u8 {
    program::exit_code(words, run)
}

fn run(cli: Cli, invocation: Invocation, ranks: &Ranks) -> anyhow::Result<Outcome> {
    let session = Session::new(&cli.common, invocation, ranks)?;
    let is_shared = matches!(cli.command, Command::Train(_) | Command::Segment(_) | Command::Refine(_));
    if ranks.size() > 1 && !is_shared {
        let text = "this command runs as one process; train, segment and refine support several";
        return Err(outcome::usage(anyhow::anyhow!(text)));
    }
    dispatch(cli.command, &session)
}

/// Runs a command line as a stage of the current command.
pub(crate) fn run_stage(words: &[OsString], session: &Session) -> anyhow::Result<Outcome> {
    let matches = Cli::command().try_get_matches_from(words)?;
    let invocation = Invocation::new(words, &Cli::command(), &matches);
    dispatch(Cli::from_arg_matches(&matches)?.command, &session.of_stage(invocation))
}

/// Runs a command line for the program of this process.
pub(crate) fn run_in_process(words: &[OsString], program: in_process::Program) -> anyhow::Result<Outcome> {
    let parsed = Cli::command().try_get_matches_from(words).and_then(|matches| {
        let invocation = Invocation::new(words, &Cli::command(), &matches);
        Ok((Cli::from_arg_matches(&matches)?, invocation))
    });
    let (cli, invocation) = parsed.map_err(|error| outcome::usage(in_process::without_advice(&error)))?;
    let session = Session::new(&cli.common, invocation, &Ranks::Single)?.in_process(program);
    dispatch(cli.command, &session)
}

fn dispatch(command: Command, session: &Session) -> anyhow::Result<Outcome> {
    match command {
        Command::Demo(args) => demo::demo(&args, session),
        Command::Masks(args) => masks::masks(&args, session),
        Command::Segment(args) => segment::segment(&args, session),
        Command::Serve(args) => serve::serve(&args, session),
        Command::Data(DataCommand::Inspect(args)) => data_inspect::inspect(&args, session),
        Command::Train(args) => train::train(&args, session),
        Command::Propose(args) => propose::propose(&args, session),
        Command::Refine(args) => refine::refine(&args, session),
        Command::Evaluate(args) => evaluate::evaluate(&args, session),
        Command::Verify(args) => verify::verify(&args, session),
        Command::Export(args) => export::export(&args, session),
        Command::Model(ModelCommand::Inspect(args)) => model_inspect::inspect(&args, session),
        Command::Model(ModelCommand::Convert(args)) => model_convert::convert(&args, session),
        Command::Model(ModelCommand::Export(args)) => model_export::export(&args, session),
        Command::Model(ModelCommand::FitTags(args)) => model_fit_tags::fit_tags(&args, session),
        Command::Model(ModelCommand::CheckTags(args)) => model_check_tags::check_tags(&args, session),
        Command::Completions(args) => completions::completions(&args, Cli::command(), session),
        Command::Man(args) => man::man(&args, Cli::command(), session),
    }
}
