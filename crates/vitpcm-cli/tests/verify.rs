//! `vitpcm verify` as a user runs it: the run folder, an interruption, and a model that `segment` takes without tags.
#![cfg(unix)] // `kill` sends the signal

mod program;

use program::{check, num_rows, signal, vitpcm, wait_until};
use std::path::Path;
use std::process::Command;
use vitpcm_data::DrawnScenes;
use vitpcm_masks::read_label_png;

/// A network of seconds.
fn verify(data: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = vitpcm(&[
        "verify", "--quiet", "--backbone=resnet-nano", "--batch=4", "--scales=0.75,1", "--device=cpu",
    ]);
    command.args(["--set=crops.side=33", "--set=validation.every_steps=0"]);
    for (option, folder) in
        [("--images", "images"), ("--masks", "masks"), ("--val-images", "images"), ("--val-truth", "masks")]
    {
        command.arg(option).arg(data.join(folder));
    }
    command.arg("--classes").arg(data.join("names.txt")).arg("--out").arg(out).args(more);
    command
}

#[test]
fn a_run_is_interrupted_resumed_and_leaves_a_segmenter_that_needs_no_tags() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("run"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 12, 0).unwrap();
    let names = DrawnScenes::classes().names()[1..].join("\n");
    std::fs::write(data.join("names.txt"), names).unwrap();

    let mut child = verify(&data, &out, &["--steps=100000"]).spawn().unwrap();
    wait_until(&mut child, || num_rows(&out) >= 3);
    signal(&child, "-INT");
    check(child, 130);

    let rows = num_rows(&out);
    let steps = format!("--steps={}", rows + 3);
    let resumed = verify(&data, &out, &["--resume", &steps, "--crf", "--json=-"]).spawn().unwrap();
    let (json, _) = check(resumed, 0);
    for word in ["\"miou\"", "scores_with_crf", "\"num_images\": 12"] {
        assert!(json.contains(word), "{json}");
    }
    assert_eq!(num_rows(&out), rows + 3);
    for file in ["config.toml", "model.safetensors", "last/state.safetensors", "scores.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }

    let masks = folder.path().join("masks");
    let mut segment = vitpcm(&["segment"]);
    segment.arg(data.join("images")).arg("--model").arg(out.join("model.safetensors"));
    segment.arg("--out").arg(&masks).args(["--quiet", "--device=cpu", "--flip", "--scales=0.5,1", "--crf"]);
    check(segment.spawn().unwrap(), 0);
    let mask = read_label_png(&masks.join("scene-0003.png")).unwrap();
    assert_eq!(mask.size(), (40, 40));

    let mut inspect = vitpcm(&["model", "inspect"]);
    inspect.arg(out.join("model.safetensors"));
    let (text, _) = check(inspect.spawn().unwrap(), 0);
    assert!(text.contains("needs no tags") && text.contains("resnet-nano"), "{text}");
}

#[test]
fn wrong_usage_is_told_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("run"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 4, 0).unwrap();
    std::fs::write(data.join("names.txt"), "disc\nsquare\ntriangle\ncross\n").unwrap();
    for (more, part) in [
        ("--set=crops.side=32", "one more than a multiple of 8"),
        ("--set=crops.sides=33", "sides"),
        ("--backbone=resnet18", "resnet101"),
        ("--masks=nowhere", "nowhere"),
        ("--min-confidence=0.6", "segment --format png,npz"),
    ] {
        let (_, stderr) = check(verify(&data, &out, &[more]).spawn().unwrap(), 2);
        assert!(stderr.contains(part), "{more}: {stderr}");
    }
}

#[test]
fn pixels_that_a_model_is_unsure_of_are_not_learned_from() {
    let folder = tempfile::tempdir().unwrap();
    let (data, pseudo) = (folder.path().join("data"), folder.path().join("pseudo"));
    DrawnScenes { seed: 2, side: 40 }.write(&data, 6, 0).unwrap();
    // To the embedded model drawn scenes are background, and of little of it is it sure to 0.99.
    let mut segment = vitpcm(&["segment"]);
    segment.arg(data.join("images")).arg("--out").arg(&pseudo);
    segment.args(["--quiet", "--no-report", "--device=cpu", "--size=112", "--no-tags", "--format=png,npz"]);
    check(segment.spawn().unwrap(), 0);

    let losses = |unsure: &str| {
        let out = folder.path().join(format!("run{unsure}"));
        let mut command = verify(&data, &out, &["--steps=1", "--batch=6", "--classes=voc", unsure]);
        command.arg("--masks").arg(&pseudo).arg("--val-truth").arg(&pseudo);
        check(command.spawn().unwrap(), 0);
        let metrics = std::fs::read_to_string(out.join("metrics.csv")).unwrap();
        metrics.lines().nth(1).unwrap().split(',').nth(4).unwrap().to_owned()
    };
    assert_ne!(losses("--min-confidence=0.99"), losses("--min-confidence=0"));
}
