//! `vitpcm propose` with the embedded network: good masks are kept, useless ones are replaced by a head's.

use std::path::Path;
use std::process::Command;
use vitpcm_data::DrawnScenes;
use vitpcm_masks::{LabelMap, read_label_png, write_label_png};

fn propose(folder: &Path, masks: &str, out: &str, options: &[&str]) -> serde_json::Value {
    let json = folder.join(out).with_extension("json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
    command
        .current_dir(folder)
        .args(["propose", "--data=data", "--masks", masks, "--out", out, "--device=cpu"]);
    let output = command.args(options).arg("--json").arg(&json).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

#[test]
fn good_masks_are_kept_and_empty_ones_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    DrawnScenes { seed: 7, side: 64 }.write(&folder.join("data"), 24, 1).unwrap();
    let names: Vec<String> = (0..24).map(|index| format!("scene-{index:04}.png")).collect();
    for name in &names {
        std::fs::create_dir_all(folder.join("empty")).unwrap();
        write_label_png(&folder.join("empty").join(name), &LabelMap::new(64, 64, vec![0; 64 * 64]).unwrap())
            .unwrap();
    }

    // Masks of a usual size are kept as they are; whether heads would be better is looked at where that is asked for.
    let unseen = propose(folder, "data/masks", "unseen", &[]);
    assert_eq!(
        (&unseen["chosen"], unseen["candidates"].as_array().unwrap().len()),
        (&"the given masks".into(), 0)
    );
    let kept = propose(folder, "data/masks", "kept", &["--suspect-area=0"]);
    assert_eq!(kept["chosen"], "the given masks");
    // Eleven rules on four blocks, a head on each to what they agree on, and the given masks.
    assert_eq!((kept["images"].as_u64(), kept["candidates"].as_array().unwrap().len()), (Some(24), 49));
    for name in &names {
        let [given, kept] =
            ["data/masks", "kept"].map(|place| read_label_png(&folder.join(place).join(name)).unwrap());
        assert_eq!(given.labels(), kept.labels(), "{name}");
    }

    // Masks whose numbers mean other classes, or of another image, are refused.
    std::fs::write(folder.join("empty/classes.txt"), "cross\ndisc\n").unwrap();
    let refused = |masks: &str, out: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
        command.current_dir(folder).args(["propose", "--data=data", "--masks", masks, "--out", out]);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = refused("empty", "nothing");
    assert!(code == Some(2) && text.contains("in this order"), "{code:?} {text}");
    std::fs::remove_file(folder.join("empty/classes.txt")).unwrap();
    std::fs::create_dir(folder.join("full")).unwrap();
    std::fs::write(folder.join("full/notes.txt"), "mine").unwrap();
    let (code, text) = refused("data/masks", "full");
    assert!(code == Some(2) && text.contains("empty folder"), "{code:?} {text}");

    let replaced = propose(folder, "empty", "replaced", &[]);
    assert_ne!(replaced["chosen"], "the given masks");
    let is_empty = |name: &String| {
        read_label_png(&folder.join("replaced").join(name)).unwrap().labels().iter().all(|&label| label == 0)
    };
    assert!(!names.iter().all(is_empty));

    // The head is a model, too: it makes the same masks of the same images.
    let mut segment = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
    segment.current_dir(folder).args(["segment", "data/images", "--tags-file=data", "--model=replaced"]);
    let output = segment.args(["--out=by-model", "--no-report", "--device=cpu"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let same = |name: &String| {
        let [head, model] =
            ["replaced", "by-model"].map(|place| read_label_png(&folder.join(place).join(name)).unwrap());
        head.labels().iter().zip(model.labels()).filter(|(a, b)| a == b).count()
    };
    let num_same: usize = names.iter().map(same).sum();
    assert!(num_same > names.len() * 64 * 64 * 95 / 100, "{num_same}");
}
