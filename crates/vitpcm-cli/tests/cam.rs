//! `vitpcm train --localisation cam|pcm` on every kind of backbone, as a user runs it: train, resume, segment.

use std::path::Path;
use std::process::Command;

use vitpcm_data::DrawnScenes;

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
    let output = Command::new(env!("CARGO_BIN_EXE_vitpcm")).args(arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap() + &stderr
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary folder's path is text")
}

#[test]
fn both_localisations_train_resume_and_segment_on_every_backbone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 3, side: 48 }.write(&data, 12, 4).unwrap();
    for (backbone, localisation) in [
        ("vit-nano8", "cam"),
        ("resnet-nano", "cam"),
        ("resnet-nano", "pcm"),
        ("xception-nano", "cam"),
        ("xception-nano", "pcm"),
    ] {
        let out = folder.path().join(format!("{backbone}-{localisation}"));
        let mut arguments = vec!["train", "--data", text(&data), "--out", text(&out), "--device=cpu"];
        arguments.extend(SMALL);
        arguments.extend(["--localisation", localisation, "--backbone", backbone]);
        if localisation == "pcm" {
            arguments.extend(["--set=model.conditioning=none", "--set=losses.et_target=none"]);
        }
        run(&[&arguments[..], &["--epochs=1"]].concat(), 0);
        let resumed =
            ["train", "--data", text(&data), "--out", text(&out), "--resume", "--epochs=2", "--quiet"];
        run(&resumed, 0);
        let rows = std::fs::read_to_string(out.join("metrics.csv")).unwrap().lines().count();
        assert_eq!(rows, 1 + 2 * 2, "{backbone} {localisation}");

        let thresholds = std::fs::read_to_string(out.join("thresholds.csv"));
        let model = out.join("model.safetensors");
        let inspected = run(&["model", "inspect", text(&model)], 0);
        assert!(inspected.contains(backbone), "{inspected}");
        match localisation {
            "cam" => {
                assert_eq!(thresholds.unwrap().lines().count(), 1 + 19);
                assert!(inspected.contains("the best of 19 from 0.05 to 0.95"), "{inspected}");
            }
            _ => assert!(thresholds.is_err()),
        }

        let masks = out.join("masks");
        for tags in [&["--predict-tags"][..], &["--no-tags"], &["--tags", "disc"]] {
            let images = data.join("images");
            let segment =
                ["segment", text(&images), "--model", text(&model), "--out", text(&masks), "--quiet"];
            run(&[&segment[..], tags].concat(), 0);
        }
    }
}

#[test]
fn what_class_activation_maps_cannot_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 3, side: 48 }.write(&data, 4, 1).unwrap();
    let out = folder.path().join("run");
    let start = ["train", "--data", text(&data), "--out", text(&out), "--preset=demo", "--localisation=cam"];
    for (more, part) in [
        ("--set=model.conditioning=hv-bilstm", "model.conditioning=none"),
        ("--set=losses.et_target=main", "losses.et_target=none"),
        ("--set=model.localisation=pcm", "--localisation differs"),
        ("--backbone=resnet99", "xception"),
    ] {
        let message = run(&[&start[..], &[more]].concat(), 2);
        assert!(message.contains(part), "{message}");
    }
}
