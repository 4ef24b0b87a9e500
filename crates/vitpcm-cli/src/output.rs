//! Output: results to stdout, messages and progress to stderr; or all of it to the program that runs a command in its
//! process. No other file prints, except for the final error.

use crate::in_process::Said;
use crate::outcome::usage;
use crate::printable;
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::Sender;
use vitpcm_masks::{FolderLock, FolderLockError, atomic_file};

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

/// Which messages are printed to stderr, or who gets them instead.
#[derive(Clone)]
pub enum Messages {
    /// With `--verbose`: also details for those who know the method.
    Verbose,
    /// Notes and failures.
    All,
    /// With `--quiet`, and on all ranks but the first: failures only.
    Failures,
    /// Nothing: another rank prints it.
    None,
    /// Notes, failures, progress and results, to the program that runs the command in its process.
    Sent(Sender<Said>),
}

impl Messages {
    /// A result: to stdout.
    pub(crate) fn result(&self, text: &str) -> anyhow::Result<()> {
        match self {
            Messages::Sent(program) => said(program, Said::Result(text.to_owned())),
            _ => return to_stdout(&printable::lines(text)),
        }
        Ok(())
    }

    /// A result as JSON: to a file or, for `-`, to stdout in place of the text.
    pub fn json_or_text(
        &self,
        json: Option<&Path>,
        value: &impl Serialize,
        text: &str,
    ) -> anyhow::Result<()> {
        let Some(path) = json else { return self.result(text) };
        let mut data = serde_json::to_string_pretty(value)?;
        data.push('\n');
        if path == Path::new("-") {
            return self.result(&printable::json(&data));
        }
        // Devices and pipes are written to directly; only files are replaced atomically.
        match std::fs::metadata(path) {
            Ok(known) if !known.is_file() && !known.is_dir() => {
                std::fs::write(path, data).with_context(|| format!("{}", path.display()))?;
            }
            _ => write_file(path, data.as_bytes())?,
        }
        self.result(text)
    }

    /// A note.
    pub fn note(&self, text: impl std::fmt::Display) {
        match self {
            Messages::Verbose | Messages::All => {
                to_stderr(format_args!("{}\n", printable::message(&text.to_string())));
            }
            Messages::Sent(program) => said(program, Said::Note(printable::message(&text.to_string()))),
            Messages::Failures | Messages::None => {}
        }
    }

    pub(crate) fn says_notes(&self) -> bool {
        matches!(self, Messages::Verbose | Messages::All | Messages::Sent(_))
    }

    pub(crate) fn is_verbose(&self) -> bool {
        matches!(self, Messages::Verbose)
    }

    /// A failed input.
    pub fn failure(&self, text: impl std::fmt::Display) {
        let text = || printable::message(&text.to_string());
        match self {
            Messages::Sent(program) => said(program, Said::Failure(text())),
            Messages::None => {}
            _ => to_stderr(format_args!("error: {}\n", text())),
        }
    }

    /// The beginning of a stage, one of several.
    pub(crate) fn stage(&self, number: usize, total: usize, what: &str) {
        let text = format!("{number}/{total} {what}");
        self.note(&text);
        if let Messages::Sent(program) = self {
            said(program, Said::Stage(text));
        }
    }

    /// A progress bar with rate and time left on a terminal; hidden elsewhere and where notes are off.
    pub fn progress_bar(&self, length: usize, what: &'static str) -> ProgressBar {
        let is_printed = matches!(self, Messages::Verbose | Messages::All);
        let hidden = !is_printed || !std::io::stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = "{msg} {wide_bar} {pos}/{len}  {per_sec}  {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is valid");
        let bar = ProgressBar::with_draw_target(Some(length as u64), target);
        if let Messages::Sent(program) = self {
            said(program, Said::Progress { what, bar: bar.clone() });
        }
        bar.with_style(style).with_message(what)
    }
}

/// A program that no longer listens is no error.
fn said(program: &Sender<Said>, what: Said) {
    let _ = program.send(what);
}
