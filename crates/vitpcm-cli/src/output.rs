//! Output: results to stdout, messages and progress to stderr. No other file prints, except for the final error.

use crate::outcome::usage;
use crate::printable;
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;
use vitpcm_masks::{FolderLock, FolderLockError, atomic_file};

/// Writes a result to stdout.
pub(crate) fn result(text: &str) -> anyhow::Result<()> {
    to_stdout(&printable::lines(text))
}

/// A closed pipe (`vitpcm … | head`) is no error.
fn to_stdout(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("stdout"),
        _ => Ok(()),
    }
}

/// Where nobody reads any more (`vitpcm … 2>&1 | head`), the work goes on.
pub(crate) fn to_stderr(text: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Writes a result as JSON to a file or, for `-`, to stdout in place of the text.
pub fn json_or_text(json: Option<&Path>, value: &impl Serialize, text: &str) -> anyhow::Result<()> {
    let Some(path) = json else { return result(text) };
    let mut data = serde_json::to_string_pretty(value)?;
    data.push('\n');
    if path == Path::new("-") {
        return to_stdout(&printable::json(&data));
    }
    // Devices and pipes are written to directly; only files are replaced atomically.
    match std::fs::metadata(path) {
        Ok(known) if !known.is_file() && !known.is_dir() => {
            std::fs::write(path, data).with_context(|| format!("{}", path.display()))?;
        }
        _ => write_file(path, data.as_bytes())?,
    }
    result(text)
}

/// Writes a file atomically.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    atomic_file::write(path, |file| file.write_all(bytes)).with_context(|| format!("{}", path.display()))
}

/// Refuses a folder that contains anything but results of the command that left `marker` there.
pub(crate) fn check_own_folder(folder: &Path, marker: &str) -> anyhow::Result<()> {
    if !folder.exists() || folder.join(marker).exists() {
        return Ok(());
    }
    let mut entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => {
            Err(usage(anyhow!("{}: it holds other files; expected an empty folder", folder.display())))
        }
    }
}

/// Creates a results folder and locks it for this process as long as the lock is held.
pub fn lock_folder(folder: &Path, command: &str) -> anyhow::Result<FolderLock> {
    std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    FolderLock::take(folder, command).map_err(|error| match error {
        FolderLockError::Held { .. } => usage(error),
        FolderLockError::Io { .. } => error.into(),
    })
}

/// Which messages are printed to stderr.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Messages {
    /// With `--verbose`: also details for those who know the method.
    Verbose,
    /// Notes and failures.
    All,
    /// With `--quiet`, and on all ranks but the first: failures only.
    Failures,
    /// Nothing: another rank prints it.
    None,
}

impl Messages {
    /// A note.
    pub fn note(&self, text: impl std::fmt::Display) {
        if self.says_notes() {
            to_stderr(format_args!("{}\n", printable::message(&text.to_string())));
        }
    }

    pub(crate) fn says_notes(&self) -> bool {
        matches!(self, Messages::Verbose | Messages::All)
    }

    pub(crate) fn is_verbose(&self) -> bool {
        *self == Messages::Verbose
    }

    /// A failed input.
    pub fn failure(&self, text: impl std::fmt::Display) {
        if *self != Messages::None {
            to_stderr(format_args!("error: {}\n", printable::message(&text.to_string())));
        }
    }

    /// A progress bar with rate and time left on a terminal; hidden elsewhere and where notes are off.
    pub fn progress_bar(&self, length: usize, what: &'static str) -> ProgressBar {
        let hidden = !self.says_notes() || !std::io::stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = "{msg} {wide_bar} {pos}/{len}  {per_sec}  {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is valid");
        ProgressBar::with_draw_target(Some(length as u64), target).with_style(style).with_message(what)
    }
}
