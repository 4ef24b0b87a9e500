//! The program without its embedded model (`--no-default-features`): commands that start from it name the option that replaces
//! it, and all others work.
#![cfg(not(feature = "embedded-model"))]

mod program;

use program::run;
use vitpcm_data::DrawnScenes;

fn folder_with_scenes() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DrawnScenes { seed: 3, side: 48 }.write(&folder.path().join("data"), 6, 2).unwrap();
    folder
}

#[test]
fn commands_that_start_from_it_name_the_option_that_replaces_it() {
    let folder = folder_with_scenes();
    let lines = [
        ("segment data --out out --device=cpu", "expected --model FILE\n"),
        ("serve --port=0 --device=cpu", "expected --model FILE\n"),
        ("model export embedded --out model.onnx", "expected a model file\n"),
        ("model check-tags --data data --device=cpu", "expected --model FILE\n"),
        ("model fit-tags --data data --others data --out out --device=cpu", "expected --model FILE\n"),
        ("train --data data --out out --device=cpu", "expected --weights FILE, or --weights none"),
        ("masks data --out out --device=cpu", "expected `vitpcm train --weights FILE`"),
    ];
    for (line, expected) in lines {
        let said = run(folder.path(), line, 2);
        assert!(said.contains("error: this build has no embedded model; "), "{line}: {said}");
        assert!(said.contains(expected), "{line}: {said}");
        assert!(!folder.path().join("out").exists(), "{line}: it left something behind");
    }
}

#[test]
fn models_are_trained_and_used_from_files() {
    let folder = folder_with_scenes();
    let small =
        "--set=model.grid=4 --set=model.inference_grid=4 --set=validation.grid=4 --set=model.lstm_units=8";
    run(
        folder.path(),
        &format!("train --data data --out run --preset demo --device=cpu --epochs=1 --batch=4 {small}"),
        0,
    );
    run(folder.path(), "segment data --model run --out masks --device=cpu", 0);
    assert!(folder.path().join("masks/report.html").is_file());
}
