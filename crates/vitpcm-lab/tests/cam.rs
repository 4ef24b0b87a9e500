//! `vitpcm-lab cam` on every kind of backbone, as a person runs it: train, resume, segment.

use std::path::Path;
use std::process::Command;

use vitpcm::{Device, Segmenter, SegmenterOptions, TagMode};
use vitpcm_data::DrawnScenes;
use vitpcm_nets::inspect;

/// A network of seconds.
const SMALL: [&str; 9] = [
    "--preset=demo",
    "--quiet",
    "--batch=4",
    "--threads=2",
    "--set=model.grid=4",
    "--set=model.inference_grid=4",
    "--set=validation.grid=4",
    "--set=schedule.effective_batch=8",
    "--set=validation.every_epochs=1",
];

#[track_caller]
fn run(arguments: &[&str], code: i32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vitpcm-lab")).args(arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap() + &stderr
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary folder's path is text")
}

#[test]
fn activation_maps_train_resume_and_segment_on_every_backbone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 3, side: 48 }.write(&data, 12, 4).unwrap();
    for backbone in ["vit-nano8", "resnet-nano", "xception-nano"] {
        let out = folder.path().join(backbone);
        let mut arguments = vec!["cam", "--data", text(&data), "--out", text(&out), "--device=cpu"];
        arguments.extend(SMALL);
        arguments.extend(["--backbone", backbone]);
        run(&[&arguments[..], &["--epochs=1"]].concat(), 0);
        let resumed =
            ["cam", "--data", text(&data), "--out", text(&out), "--resume", "--epochs=2", "--quiet"];
        run(&resumed, 0);
        let rows = std::fs::read_to_string(out.join("metrics.csv")).unwrap().lines().count();
        assert_eq!(rows, 1 + 2 * 2, "{backbone}");
        let thresholds = std::fs::read_to_string(out.join("thresholds.csv")).unwrap();
        assert_eq!(thresholds.lines().count(), 1 + 19);

        let path = out.join("model.safetensors");
        let inspected = inspect(&path).unwrap().to_string();
        assert!(inspected.contains(backbone), "{inspected}");
        assert!(inspected.contains("the best of 19 from 0.05 to 0.95"), "{inspected}");
        let segmenter = Segmenter::open(&path, &Device::Cpu, SegmenterOptions::default()).unwrap();
        let image = DrawnScenes { seed: 3, side: 48 }.scene(1).image;
        for tags in [TagMode::Predicted { threshold: 0.5 }, TagMode::Unknown, TagMode::Given(&[1])] {
            assert_eq!(segmenter.segment(&image, tags).unwrap().label_map().size(), (48, 48));
        }
    }
}

#[test]
fn what_class_activation_maps_cannot_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 3, side: 48 }.write(&data, 4, 1).unwrap();
    let out = folder.path().join("run");
    let start = ["cam", "--data", text(&data), "--out", text(&out), "--preset=demo"];
    for (more, part) in [
        ("--set=model.conditioning=hv-bilstm", "model.conditioning=none"),
        ("--set=losses.et_target=main", "losses.et_target=none"),
        ("--set=model.localisation=pcm", "is not `cam`"),
        ("--backbone=resnet99", "xception"),
    ] {
        let message = run(&[&start[..], &[more]].concat(), 2);
        assert!(message.contains(part), "{message}");
    }
}
