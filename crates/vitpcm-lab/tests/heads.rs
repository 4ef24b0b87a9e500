//! `vitpcm-lab heads` as a person runs it.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Output};
use vitpcm_data::DrawnScenes;

fn lab(folder: &Path, line: &str) -> Output {
    let words = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_vitpcm-lab")).current_dir(folder).args(words).output().unwrap()
}

#[test]
fn true_masks_among_the_candidates_have_an_iou_of_100() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    // A pixel per cell of the grid.
    DrawnScenes { seed: 2, side: 32 }.write(&root.join("data"), 12, 0).unwrap();
    let output = lab(root, "heads --data data --masks data/masks --truth data/masks --out heads.csv --quiet");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let table = std::fs::read_to_string(root.join("heads.csv")).unwrap();
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("candidate,score,miou,class,auc,area,empty,iou"));
    let (mut candidates, mut given) = (HashSet::new(), 0);
    for line in lines {
        let (candidate, values) = line[1..].split_once("\",").unwrap();
        let [_, miou, _, auc, area, empty, iou] = values.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        candidates.insert(candidate.to_owned());
        for share in [auc, area, empty] {
            assert!((0.0..=1.0).contains(&share.parse::<f64>().unwrap()), "{line}");
        }
        if candidate == "the given masks" {
            given += 1;
            assert_eq!((miou, iou, empty), ("100.00", "100.00", "0.0000"), "{line}");
        } else {
            assert!(miou.parse::<f64>().unwrap() < 100.0, "{line}");
        }
    }
    assert!(given > 1 && candidates.len() > 40, "{given} classes, {} candidates", candidates.len());
}

#[test]
fn a_folder_without_true_masks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    DrawnScenes { seed: 2, side: 32 }.write(&root.join("data"), 12, 0).unwrap();
    std::fs::create_dir(root.join("truth")).unwrap();
    let output = lab(root, "heads --data data --masks data/masks --truth truth --out heads.csv");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("truth: none of the images has a mask there"), "{stderr}");
    assert!(!root.join("heads.csv").exists());
}
