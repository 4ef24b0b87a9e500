//! Commands that another program runs in its own process, as the Python package does. Nothing is printed: what a command
//! would say is sent to that program, which can ask it to stop and keeps its own handling of signals.

use crate::outcome::{Outcome, Stopped, is_usage};
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

pub use indicatif::ProgressBar;

/// What a command says.
pub enum Said {
    /// What it would print to stderr.
    Note(String),
    /// An input that failed.
    Failure(String),
    /// What it would print to stdout.
    Result(String),
    /// A stage begins, in words: `2/5 masks to learn from`.
    Stage(String),
    /// Work of a known length begins. Position and length of the hidden bar can be read at any time.
    Progress {
        /// The work, in a word or two.
        what: &'static str,
        /// Its bar.
        bar: ProgressBar,
    },
}

/// The program that runs a command in its process.
pub struct Program {
    /// Where it hears what the command says. Never full, since a command that waited here could hold the lock of a bar that the
    /// program is looking at.
    pub hears: Sender<Said>,
    /// Set by the program to stop the command at its next safe point.
    pub stop: Arc<AtomicBool>,
}

/// Why a command could not be run.
pub enum Failure {
    /// Wrong usage or configuration.
    Usage(String),
    /// Nothing could be done.
    Other(String),
}

/// Runs a command line, whose first word is the program's name. A command that was stopped may not have begun: then there
/// is nothing to resume. `serve` runs until the process ends.
pub fn run(words: &[OsString], program: Program) -> Result<Outcome, Failure> {
    match crate::run_in_process(words, program) {
        Err(error) if error.is::<Stopped>() => Ok(Outcome::Interrupted),
        Err(error) if is_usage(&error) => Err(Failure::Usage(crate::outcome::described(&error))),
        Err(error) => Err(Failure::Other(crate::outcome::described(&error))),
        Ok(outcome) => Ok(outcome),
    }
}

/// clap's error without what only helps at a terminal: `error: ` before it, usage and `try '--help'` after it.
pub(crate) fn without_advice(error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    anyhow::anyhow!("{}", first.strip_prefix("error: ").unwrap_or(first).trim_end())
}
