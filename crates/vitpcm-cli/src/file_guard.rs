//! Refuses to overwrite inputs: every command that writes lists its inputs and planned outputs, and fails before any
//! work if a file is both or cannot be written. Files are compared by what the file system knows them by, not by path.

use crate::outcome::usage;
use anyhow::{anyhow, bail};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use vitpcm_masks::FileIdentity;
use vitpcm_masks::atomic_file::AtomicFile;

fn identity(path: &Path) -> Option<FileIdentity> {
    FileIdentity::of(path).ok()
}

/// Whether two paths lead to the same existing file.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    identity(a).is_some_and(|file| identity(b) == Some(file))
}

/// Whether two paths lead to the same place, whether or not a file exists there.
pub(crate) fn is_same_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        Some((identity(folder)?, path.file_name()?.to_owned()))
    };
    a == b || is_same_file(a, b) || place(a).is_some_and(|place_of_a| place(b) == Some(place_of_a))
}

/// Refuses outputs that are inputs, naming both. `-` stands for stdout.
pub(crate) fn check(
    inputs: impl IntoIterator<Item = impl AsRef<Path>>,
    outputs: impl IntoIterator<Item = PathBuf>,
) -> anyhow::Result<()> {
    let written: HashMap<FileIdentity, PathBuf> = outputs
        .into_iter()
        .filter(|path| path != Path::new("-"))
        .filter_map(|path| Some((identity(&path)?, path)))
        .collect();
    // The usual case: no output exists yet.
    if written.is_empty() {
        return Ok(());
    }
    for input in inputs {
        let input = input.as_ref();
        if let Some(output) = identity(input).and_then(|file| written.get(&file)) {
            return Err(usage(anyhow!(
                "{} would be overwritten: it is the input {}; choose another place for the results",
                output.display(),
                input.display()
            )));
        }
    }
    Ok(())
}

/// Refuses folders that cannot be written to, before hours of work. `-` stands for stdout.
pub(crate) fn check_writable(outputs: &[PathBuf]) -> anyhow::Result<()> {
    let mut tried = HashSet::new();
    for output in outputs.iter().filter(|path| *path != Path::new("-")) {
        // A device or pipe is written to directly, not replaced.
        if std::fs::metadata(output).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
            continue;
        }
        let Some(wanted) = output.parent() else { continue };
        let existing = wanted.ancestors().find(|folder| folder.is_dir());
        let folder = existing.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        if !tried.insert(folder.to_path_buf()) {
            continue;
        }
        // The probe file is removed at once.
        let Err(error) = AtomicFile::create(&folder.join("vitpcm")) else { continue };
        if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) {
            bail!("{}: cannot be written: the folder {} is read-only", output.display(), folder.display());
        }
    }
    Ok(())
}

/// All files below a folder, or the single file.
pub(crate) fn files_below(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut rest = vec![path.to_path_buf()];
    while let Some(next) = rest.pop() {
        match std::fs::read_dir(&next) {
            Ok(entries) => rest.extend(entries.flatten().map(|entry| entry.path())),
            Err(_) => files.push(next),
        }
    }
    files
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_known_by_every_name_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("photos/deep")).unwrap();
        fs::write(at("photos/a.png"), "a").unwrap();
        fs::write(at("photos/b.png"), "a").unwrap();
        symlink("a.png", at("photos/link.png")).unwrap();
        fs::hard_link(at("photos/a.png"), at("photos/hard.png")).unwrap();
        symlink("photos", at("other")).unwrap();
        let same =
            ["photos/a.png", "photos/deep/../a.png", "photos/link.png", "photos/hard.png", "other/a.png"];
        for name in same {
            let error = check([at("photos/a.png")], [at("new.png"), at(name)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("photos/a.png"), "{error}");
            assert!(is_same_place(&at(name), &at("photos/a.png")));
        }
        check([at("photos/a.png"), at("photos/none.png")], [at("photos/b.png"), at("photos/none.png")])
            .unwrap();
        assert!(is_same_place(&at("other/new.png"), &at("photos/deep/../new.png")));
        assert!(!is_same_place(&at("photos/new.png"), &at("photos/deep/new.png")));
    }
}
