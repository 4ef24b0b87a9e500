//! How a command ends, and the exit codes that users and scripts rely on.

use crate::output::to_stderr;
use crate::printable;
use std::io;
use std::time::Duration;
use vitpcm_train::Ranks;

/// The result of a command that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was done.
    Done,
    /// Some inputs failed; each was reported on stderr, and the rest is done.
    SomeFailed,
    /// The user asked to stop; finished work is kept, and the command can be resumed.
    Interrupted,
}

/// An error with exit code 2 instead of 3.
#[derive(Debug)]
struct UsageError(anyhow::Error);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&described(&self.0))
    }
}

impl std::error::Error for UsageError {}

/// A command that keeps nothing ended because the program that runs it asked it to stop.
#[derive(Debug)]
pub(crate) struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for Stopped {}

/// Whether an error is wrong usage or configuration.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>()
}

/// Marks an error as wrong usage or configuration (exit code 2). Other errors mean that nothing could be done (exit
/// code 3).
pub fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    UsageError(error.into()).into()
}

/// An error and its causes in one line, without causes that the text already contains.
pub fn described(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    for cause in error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()) {
        if let Some(words) = in_words(cause.kind()) {
            text = text.replace(&cause.to_string(), words);
        }
    }
    text
}

/// Plain words for errors of writing files.
pub(crate) fn in_words(kind: io::ErrorKind) -> Option<&'static str> {
    match kind {
        io::ErrorKind::StorageFull => Some("the disk is full"),
        io::ErrorKind::QuotaExceeded => Some("the disk quota is used up"),
        io::ErrorKind::ReadOnlyFilesystem => Some("the disk is read-only"),
        _ => None,
    }
}

/// An error common to all ranks is printed by the first one; the others wait this long.
const FIRST_SPEAKS: Duration = Duration::from_secs(1);

/// Prints an error once and returns the exit code. With several ranks, an error ends all of them.
pub(crate) fn report(result: anyhow::Result<Outcome>, ranks: &Ranks) -> u8 {
    match result {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::SomeFailed) => 1,
        Ok(Outcome::Interrupted) => 130,
        Err(error) => {
            let code = if is_usage(&error) { 2 } else { 3 };
            if ranks.size() == 1 {
                to_stderr(format_args!("error: {}\n", printable::message(&described(&error))));
                return code;
            }
            if !ranks.is_first() {
                std::thread::sleep(FIRST_SPEAKS);
            }
            let text = printable::message(&described(&error));
            to_stderr(format_args!("error: rank {} of {}: {text}\n", ranks.rank(), ranks.size()));
            Ranks::abort(code)
        }
    }
}

/// Makes a panic on any thread end all ranks; the others would wait for this one for ever.
pub(crate) fn end_all_ranks_on_panic(ranks: &Ranks) {
    let (rank, size) = (ranks.rank(), ranks.size());
    if size > 1 {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            print(panic);
            to_stderr(format_args!("error: a bug stopped rank {rank} of {size}; please report it\n"));
            Ranks::abort(101)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_said_once() {
        let full = || std::io::Error::other("disk full");
        let named: anyhow::Error = vitpcm_masks::MaskError::io("a.png", full()).into();
        assert_eq!(described(&named), "a.png: disk full");
        let in_context = Err::<(), _>(full()).context("a.png").unwrap_err();
        assert_eq!(described(&in_context), "a.png: disk full");
    }

    #[test]
    fn a_full_disk_is_said_in_words() {
        // ENOSPC, on Linux and macOS.
        let full = || io::Error::from_raw_os_error(28);
        let named: anyhow::Error = vitpcm_masks::MaskError::io("a.png", full()).into();
        let in_context = Err::<(), _>(full()).context("a.png").unwrap_err();
        for error in [named, in_context] {
            assert_eq!(described(&error), "a.png: the disk is full");
        }
    }
}
