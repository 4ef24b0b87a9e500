//! Startup and exit of our programs: ranks, signals, `--config`, argument parsing, exit code.

use crate::invocation::Invocation;
use crate::outcome::{self, Outcome};
use crate::{config_file, interrupt, printable};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use vitpcm_train::Ranks;

/// Parses the command line and runs the command. `main` calls it once and does nothing else.
pub fn start<P: Parser>(run: impl FnOnce(P, Invocation, &Ranks) -> anyhow::Result<Outcome>) -> ExitCode {
    ExitCode::from(exit_code(std::env::args_os().collect(), run))
}

/// The same for these words, as the exit code's number.
pub(crate) fn exit_code<P: Parser>(
    typed: Vec<OsString>,
    run: impl FnOnce(P, Invocation, &Ranks) -> anyhow::Result<Outcome>,
) -> u8 {
    // First, so that wrong usage is reported once, not by every rank.
    let ranks = match Ranks::start() {
        Ok(ranks) => ranks,
        Err(error) => return outcome::report(Err(outcome::usage(error)), &Ranks::Single),
    };
    outcome::end_all_ranks_on_panic(&ranks);
    if let Err(error) = interrupt::end_on_signals() {
        return outcome::report(Err(error), &ranks);
    }
    let arguments = match config_file::expanded_arguments(&P::command(), typed.clone()) {
        Ok(arguments) => arguments,
        Err(error) => return outcome::report(Err(outcome::usage(error)), &ranks),
    };
    let parsed = P::command().try_get_matches_from(&arguments).and_then(|matches| {
        let invocation = Invocation::new(&typed, &P::command(), &matches);
        Ok((P::from_arg_matches(&matches)?, invocation))
    });
    match parsed {
        Ok((cli, invocation)) => outcome::report(run(cli, invocation, &ranks), &ranks),
        // Wrong usage, or `--help`.
        Err(text) => {
            let exit_code = text.exit_code() as u8;
            if ranks.is_first() {
                let _ = with_safe_names::<P>(text, &arguments).print();
            }
            exit_code
        }
    }
}

/// The same error with arguments that are safe to print.
fn with_safe_names<P: Parser>(error: clap::Error, arguments: &[OsString]) -> clap::Error {
    if arguments.iter().all(|argument| printable::is_plain(&argument.to_string_lossy())) {
        return error;
    }
    let shown = arguments.iter().map(|argument| printable::one_line(&argument.to_string_lossy()));
    P::command().try_get_matches_from(shown).err().unwrap_or(error)
}
