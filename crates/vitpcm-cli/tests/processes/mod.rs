//! Real processes of the real binary on a data set of seconds, to be killed, starved and disturbed.
#![allow(dead_code, reason = "each test file uses a part")]

use crate::program::vitpcm;
use crate::untrained;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use vitpcm_data::DrawnScenes;

/// Training of seconds, with its state saved all the time and images read from disk each time.
pub(crate) const TRAIN: [&str; 14] = [
    "--preset=demo",
    "--quiet",
    "--device=cpu",
    "--threads=2",
    "--epochs=6",
    "--batch=4",
    "--set=model.grid=4",
    "--set=model.inference_grid=4",
    "--set=validation.grid=4",
    "--set=model.lstm_units=8",
    "--set=schedule.effective_batch=8",
    "--set=validation.every_epochs=1",
    "--set=loader.save_minutes=0.0002",
    "--set=loader.cache_megabytes=0",
];

pub(crate) const NUM_IMAGES: usize = 40;

/// What is exported.
pub(crate) const EXPORTS: &str = "coco,yolo,cvat,labelme,voc,label-studio";

/// A folder with drawn scenes and a model, in which everything happens.
pub(crate) struct Stage {
    pub(crate) folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let stage = Stage { folder: tempfile::tempdir().unwrap() };
        DrawnScenes { seed: 2, side: 40 }.write(&stage.path("data"), NUM_IMAGES - 8, 8).unwrap();
        untrained::write(&stage.path("model.safetensors"), &DrawnScenes::classes(), 0);
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn train(&self, out: &Path, more: &[&str]) -> Child {
        let mut command = vitpcm(&["train"]);
        command.args(resume(&out.join("config.toml")));
        command.arg("--data").arg(self.path("data")).arg("--out").arg(out).args(TRAIN).args(more);
        command.spawn().unwrap()
    }

    pub(crate) fn segment(&self, out: &Path, more: &[&str]) -> Child {
        let mut command = vitpcm(&["segment", "--quiet", "--size=64", "--device=cpu"]);
        command.args(resume(&out.join(".vitpcm/record-0.jsonl")));
        command.arg(self.path("data/images")).arg("--model").arg(self.path("model.safetensors"));
        command.arg("--out").arg(out).args(["--no-tags", "--format=png,npz,coco"]).args(more);
        command.spawn().unwrap()
    }

    pub(crate) fn export(&self, out: &Path) -> Child {
        let mut command = vitpcm(&["export", "--quiet", "--format", EXPORTS, "--classes"]);
        command.arg(self.path("data/classes.txt")).arg("--images").arg(self.path("data/images"));
        command.arg("--out").arg(out).arg(self.path("data/masks")).spawn().unwrap()
    }

    pub(crate) fn verify(&self, out: &Path, more: &[&str]) -> Child {
        let data = self.path("data");
        let mut command = vitpcm(&["verify", "--quiet", "--device=cpu", "--threads=2", "--batch=2"]);
        command.args(resume(&out.join("config.toml")));
        for (option, name) in [
            ("--images", "images"),
            ("--masks", "masks"),
            ("--val-images", "images"),
            ("--val-truth", "masks"),
        ] {
            command.arg(option).arg(data.join(name));
        }
        command.arg("--classes").arg(data.join("classes.txt")).arg("--out").arg(out);
        command.args(["--backbone=resnet-nano", "--set=crops.side=33", "--scales=1"]).args(more);
        command.spawn().unwrap()
    }
}

/// The option to go on, where an earlier run got as far as this file.
fn resume(first_file: &Path) -> Option<&'static str> {
    first_file.is_file().then_some("--resume")
}

/// Waits for the end, expects an exit code, gives what was said on stderr.
#[track_caller]
pub(crate) fn check(child: Child, code: i32) -> String {
    let (found, stderr) = ended(child);
    assert_eq!(found, Some(code), "{stderr}");
    stderr
}

/// Exit code, if there is one, and stderr.
pub(crate) fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// All files below a folder, by their names there, with their bytes.
pub(crate) fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                found.insert(path.strip_prefix(folder).unwrap().to_string_lossy().into_owned(), bytes);
            }
        }
    }
    found
}

/// Files that are results: no report (which says when it was made), no records of the run's course, no lock.
pub(crate) fn results(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = files(folder);
    files.retain(|name, _| {
        let course = ["report.html", "metrics.csv", ".vitpcm.lock"].contains(&name.as_str())
            || name.starts_with("events.")
            || name.contains(".report/")
            || name.contains(".vitpcm/")
            || name.starts_with("report/");
        !course && !name.ends_with(".tmp")
    });
    files
}

/// Half-written files of killed processes.
pub(crate) fn leftovers(folder: &Path) -> Vec<String> {
    files(folder).into_keys().filter(|name| name.ends_with(".tmp") || name.ends_with(".lock")).collect()
}

/// Holds results to those of an undisturbed run.
#[track_caller]
pub(crate) fn check_same(found: &Path, whole: &Path) {
    let (found, whole) = (results(found), results(whole));
    assert_eq!(found.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
    for (name, bytes) in &whole {
        assert!(found[name] == *bytes, "{name} differs");
    }
}
