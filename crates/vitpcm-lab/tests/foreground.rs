//! `vitpcm-lab attention` and `vitpcm-lab foreground` as a person runs them.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use vitpcm_data::DrawnScenes;
use vitpcm_masks::{LabelMap, read_label_png, write_label_png};

fn lab(folder: &Path, line: &str) -> Output {
    let words = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_vitpcm-lab")).current_dir(folder).args(words).output().unwrap()
}

#[track_caller]
fn json(folder: &Path, line: &str) -> Value {
    let output = lab(folder, line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[track_caller]
fn check_error(folder: &Path, line: &str, code: i32, text: &str) {
    let output = lab(folder, line);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
    assert!(stderr.contains(text), "{line}: {stderr}");
}

#[test]
fn a_vits_attention_becomes_masks_that_are_scored_by_the_best_head() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    DrawnScenes { seed: 2, side: 40 }.write(&root.join("data"), 6, 0).unwrap();
    json(root, "random --backbone vit-nano16 --out random.safetensors --quiet");
    json(root, "attention data/images --weights random.safetensors --size 96 --out attention --quiet");

    let truth = read_label_png(&root.join("data/masks/scene-0003.png")).unwrap();
    let folders = ["head-1", "head-2", "mean"].map(|name| root.join("attention").join(name));
    for folder in &folders {
        let mask = read_label_png(&folder.join("scene-0003.png")).unwrap();
        assert_eq!(mask.size(), truth.size());
        let histogram = mask.histogram();
        // The patches that hold most of the attention are fewer than all, and at least one.
        assert!(histogram[1] > 0 && histogram[0] > 0 && histogram[2..].iter().all(|&count| count == 0));
    }
    let score = |folders: &str, measure: &str| {
        let line = format!("foreground --pred {folders} --truth data/masks --json -");
        json(root, &line)[measure].as_f64().unwrap()
    };
    for measure in ["jaccard", "jaccard_by_class"] {
        let [first, second] = ["attention/head-1", "attention/head-2"].map(|one| score(one, measure));
        let best = score("attention/head-1 attention/head-2", measure);
        assert!(best >= first.max(second) && best < 100.0, "{measure}: {best}, {first}, {second}");
    }
    assert_eq!(score("data/masks", "foreground_background_miou"), 100.0);
    assert_eq!(score("data/masks attention/mean", "jaccard"), 100.0);

    // Classes do not matter, only whether there is one.
    let other = truth.labels().iter().map(|&label| label.min(1)).collect();
    let other = LabelMap::new(truth.width(), truth.height(), other).unwrap();
    std::fs::create_dir(root.join("binary")).unwrap();
    write_label_png(&root.join("binary/scene-0003.png"), &other).unwrap();
    std::fs::write(root.join("one.txt"), "scene-0003\n").unwrap();
    assert_eq!(score("binary --list one.txt", "foreground_iou"), 100.0);
}

#[test]
fn what_cannot_be_scored_or_attended_to_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    DrawnScenes { seed: 2, side: 40 }.write(&root.join("data"), 2, 0).unwrap();
    std::fs::create_dir(root.join("one")).unwrap();
    std::fs::copy(root.join("data/masks/scene-0001.png"), root.join("one/scene-0001.png")).unwrap();
    let masks = "--pred data/masks one --truth data/masks";
    check_error(root, &format!("foreground {masks}"), 1, "scene-0000: no predicted mask in one");
    check_error(root, "attention data/images --out out --mass 1.5", 2, "a number above 0, at most 1");
    check_error(root, "attention data/images --out out --weights gone.pt", 2, "gone.pt");
    std::fs::write(root.join("list.txt"), "other\n").unwrap();
    check_error(root, "attention data/images --out out --list list.txt", 3, "listed in list.txt");
}
