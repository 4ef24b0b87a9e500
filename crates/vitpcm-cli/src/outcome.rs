//! How a command ends, and the exit code users and scripts rely on.

use std::process::ExitCode;

/// A command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was done.
    Done,
    /// Some inputs failed; each was named on stderr and the rest is done.
    SomeFailed,
    /// The user asked to stop; what is done stays, and the command can go on later.
    Interrupted,
}

/// A command that could not run: its error ends the program with another code than the usual 3.
#[derive(Debug)]
struct UsageError(anyhow::Error);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for UsageError {}

/// Marks an error as wrong usage or configuration (exit code 2). Any other error means that nothing could be done
/// (exit code 3).
pub(crate) fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    UsageError(error.into()).into()
}

/// Prints an error, once, and gives the exit code.
#[allow(clippy::print_stderr)]
pub(crate) fn report(result: anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::SomeFailed) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 3 })
        }
    }
}
