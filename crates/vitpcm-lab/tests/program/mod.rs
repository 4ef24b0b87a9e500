//! `vitpcm-lab` as a program, and folders to run it in.

use std::path::PathBuf;
use std::process::{Command, Output};
use vitpcm_masks::{LabelMap, write_label_png};

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm-lab"));
    command.args(arguments);
    command
}

pub(crate) fn lab(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs it, expects an exit code, gives what was written to stdout and stderr.
#[track_caller]
pub(crate) fn check(arguments: &[&str], code: i32) -> (String, String) {
    let output = lab(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn mask(&self, name: &str, width: usize, labels: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mask = LabelMap::new(width, labels.len() / width, labels.to_vec()).unwrap();
        write_label_png(&path, &mask).unwrap();
    }
}
