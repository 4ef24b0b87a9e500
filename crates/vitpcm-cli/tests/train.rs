//! `vitpcm train` as a user runs it: exit codes, the run folder, and a run that is interrupted and resumed.
#![cfg(unix)] // `kill` sends the signals

mod program;

use program::{num_rows, signal, vitpcm, wait_until};
use std::path::Path;
use std::process::Child;
use vitpcm_data::DrawnScenes;

/// A network of seconds, with its state saved all the time.
const SMALL: [&str; 13] = [
    "--preset=demo",
    "--quiet",
    "--epochs=12",
    "--batch=4",
    "--threads=2",
    "--set=model.grid=4",
    "--set=model.inference_grid=4",
    "--set=validation.grid=4",
    "--set=model.lstm_units=8",
    "--set=model.dropout.backbone=0.1",
    "--set=schedule.effective_batch=8",
    "--set=validation.every_epochs=1",
    "--set=loader.save_minutes=0.002",
];

fn start(data: &Path, out: &Path, more: &[&str]) -> Child {
    let mut command = vitpcm(&["train", "--data"]);
    command.arg(data).arg("--out").arg(out).args(SMALL).args(more).spawn().unwrap()
}

/// Expects an exit code, gives what was said on stderr.
#[track_caller]
fn check(child: Child, code: i32) -> String {
    program::check(child, code).1
}

fn steps(out: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(out.join("metrics.csv")).unwrap();
    text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect()
}

#[test]
fn an_interrupted_or_killed_run_resumes_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (data, whole, broken) =
        (folder.path().join("data"), folder.path().join("whole"), folder.path().join("broken"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 20, 4).unwrap();
    check(start(&data, &whole, &[]), 0);
    assert_eq!(steps(&whole), (1..=36).collect::<Vec<_>>());

    let mut child = start(&data, &broken, &[]);
    wait_until(&mut child, || num_rows(&broken) >= 5);
    signal(&child, "-TERM");
    check(child, 130);
    for rows in [9, 14, 20, 27] {
        let mut child = start(&data, &broken, &["--resume"]);
        wait_until(&mut child, || num_rows(&broken) >= rows);
        signal(&child, "-KILL");
        child.wait().unwrap();
    }
    let page = || std::fs::read_to_string(broken.join("report.html")).unwrap();
    assert!(page().contains("The run goes on"), "reports are written at validations");
    check(start(&data, &broken, &["--resume"]), 0);
    for expected in
        ["All epochs are done", "Verdict: ", "Learning rate", "mIoU, tags given", "true masks", "et_target"]
    {
        assert!(page().contains(expected), "{expected}");
    }
    assert_eq!(steps(&broken), steps(&whole));
    for file in ["last/state.safetensors", "model.safetensors", "config.toml"] {
        let same = std::fs::read(whole.join(file)).unwrap() == std::fs::read(broken.join(file)).unwrap();
        assert!(same, "{file} differs");
    }
}

#[test]
fn wrong_usage_is_told_before_anything_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 4, 0).unwrap();
    for (more, message) in [
        (["--set", "losses.et_targt=none"], "et_targt"),
        (["--set", "model.grid=5"], "model.grid"),
        (["--backbone", "vit-x"], "vit-x"),
        (["--weights", "/nowhere.safetensors"], "/nowhere.safetensors"),
    ] {
        let stderr = check(start(&data, &out, &more), 2);
        assert!(stderr.contains(message), "{more:?}: {stderr}");
        assert!(!out.exists(), "{more:?} left a folder");
    }
    let stderr = check(start(&folder.path().join("absent"), &out, &[]), 2);
    assert!(stderr.contains("no such folder"), "{stderr}");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    let stderr = check(start(&data, &out, &[]), 2);
    assert!(stderr.contains("not empty") && !stderr.contains("--resume"), "{stderr}");
}

#[test]
fn a_broken_image_is_named_and_the_exit_code_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 8, 2).unwrap();
    std::fs::write(data.join("images/scene-0003.png"), "no image").unwrap();
    let stderr = check(start(&data, &out, &["--epochs=2"]), 1);
    assert_eq!(stderr.matches("scene-0003.png").count(), 1, "{stderr}");
    assert!(out.join("model.safetensors").is_file());
}

#[test]
fn a_new_run_says_what_its_tags_cannot_teach_and_a_resumed_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("run"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 8, 0).unwrap();
    let stderr_of = |more: &[&str]| {
        let mut command = vitpcm(&["train", "--data"]);
        command.arg(&data).arg("--out").arg(&out);
        command.args(SMALL.into_iter().filter(|option| !["--quiet", "--epochs=12"].contains(option)));
        check(command.args(more).spawn().unwrap(), 0)
    };
    let stderr = stderr_of(&["--epochs=1"]);
    assert_eq!(stderr.matches("fewer than 15 are seldom enough").count(), 1, "{stderr}");
    assert!(stderr.lines().any(|line| line.starts_with("warning: `")), "{stderr}");
    let stderr = stderr_of(&["--epochs=2", "--resume"]);
    assert!(!stderr.contains("warning:"), "{stderr}");
}

#[test]
fn patches_are_classified_on_every_kind_of_backbone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 3, side: 48 }.write(&data, 12, 4).unwrap();
    for backbone in ["resnet-nano", "xception-nano"] {
        let out = folder.path().join(backbone);
        let plain = ["--set=model.conditioning=none", "--set=losses.et_target=none", "--epochs=1"];
        check(start(&data, &out, &[&plain[..], &["--backbone", backbone]].concat()), 0);
        assert_eq!(num_rows(&out), 2);
        assert!(!out.join("thresholds.csv").exists(), "{backbone}: thresholds are of activation maps");
    }
}
