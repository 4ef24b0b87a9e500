//! Copies of run folders, to go on from one state in several ways.

use std::path::Path;

/// Copies the files of a run folder, and of its `last/`.
pub(crate) fn copy_run(from: &Path, to: &Path) {
    for folder in ["", "last"] {
        std::fs::create_dir_all(to.join(folder)).unwrap();
        for entry in std::fs::read_dir(from.join(folder)).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
}
