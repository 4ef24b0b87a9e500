//! Messages about masks compared with true masks: which are missing, which failed, and which a list names.

use crate::output::Messages;
use anyhow::{Context, anyhow};
use std::path::{Path, PathBuf};
use vitpcm_masks::{MaskError, text_file};

/// File names as strings.
pub fn names_of(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

/// How many missing or failed masks are listed by name; the JSON lists all missing ones.
pub const NAMED_MISSING: usize = 10;

/// Reports masks that do not count because they have no counterpart.
pub fn say_missing(names: &[String], what: &str, folder: &Path, messages: &Messages) {
    let folder = folder.display();
    for name in names.iter().take(NAMED_MISSING) {
        messages.failure(format!("{name}: no {what} in {folder}; left out of the scores"));
    }
    if names.len() > NAMED_MISSING {
        let more = names.len() - NAMED_MISSING;
        messages.failure(format!(
            "{more} more have no {what} in {folder} (--json names them all; --list FILE scores a subset)"
        ));
    }
}

/// The error if no prediction has a true mask.
pub fn nothing_to_compare(pred: &Path, truth: &Path) -> anyhow::Error {
    let (pred, truth) = (pred.display(), truth.display());
    anyhow!(
        "no mask of {pred} has a true mask of the same name in {truth}; expected PNG files named after the images"
    )
}

/// The message for a mask that failed. Errors about a file already name it; it may be the true mask.
pub fn failure_text(prediction: &Path, error: &MaskError) -> String {
    let reason = error.to_string();
    if reason.contains(".png") { reason } else { format!("{}: {reason}", prediction.display()) }
}

/// The first word of each line, without folder and extension, as VOC's lists have it.
pub fn read_names(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = text_file::read(path).with_context(|| format!("{}", path.display()))?;
    let name = |line: &str| {
        let first = line.split_whitespace().next()?;
        Path::new(first).file_stem().map(|stem| stem.to_string_lossy().into_owned())
    };
    Ok(text.trim_start_matches('\u{feff}').lines().filter_map(name).collect())
}
