//! Files of other tools that are cut short, changed by a byte or made to mislead: an error that names the file, or a
//! mask, but never a panic and nothing allocated by a header's word.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use vitpcm_exports::{ExportFormat, ExportOptions, Exporter, LabelledImage, MaskSet, Photograph, Zip};
use vitpcm_masks::{Classes, read_label_png};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/exports").join(name)
}

fn cvat_archive() -> Vec<u8> {
    let mask = read_label_png(&reference("png/nested/ring around.png")).unwrap();
    let classes = Classes::from_names(["a", "b", "c", "d"]).unwrap();
    let archive = Zip::new(Cursor::new(Vec::new()));
    let mut export =
        Exporter::begin(ExportFormat::Cvat, &classes, &ExportOptions::default(), archive).unwrap();
    let photograph = Photograph::Elsewhere;
    export.add(&LabelledImage { file_name: "a.jpg", mask: &mask, scores: None, photograph }).unwrap();
    export.finish().unwrap().finish().unwrap().into_inner()
}

/// Reads everything that can be read.
fn read_all(path: &Path) {
    if let Ok(set) = MaskSet::open(path, None, None) {
        (0..set.len()).for_each(|i| drop(set.read(i)));
    }
}

#[test]
fn no_change_of_a_file_makes_a_reader_panic() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("coco.json", std::fs::read(reference("coco/instances_default.json")).unwrap()),
        ("polygons.json", std::fs::read(reference("coco-polygons/instances_default.json")).unwrap()),
        ("tasks.json", std::fs::read(reference("label-studio/tasks.json")).unwrap()),
        ("labelme.json", std::fs::read(reference("labelme/scene.json")).unwrap()),
        ("cvat.zip", cvat_archive()),
    ];
    for (name, whole) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, &whole).unwrap();
        assert!(!MaskSet::open(&path, None, None).unwrap().is_empty(), "{name}");
        let step = (whole.len() / 120).max(1);
        for at in (0..whole.len()).step_by(step) {
            std::fs::write(&path, &whole[..at]).unwrap();
            read_all(&path);
            for flip in [0x01, 0x10, 0x80] {
                let mut broken = whole.clone();
                broken[at] ^= flip;
                std::fs::write(&path, &broken).unwrap();
                read_all(&path);
            }
        }
    }
}

#[track_caller]
fn check_refused(path: &Path, expected: &str) {
    let message = match MaskSet::open(path, None, None) {
        Err(error) => error.to_string(),
        Ok(set) => set.read(0).unwrap_err().to_string(),
    };
    assert!(message.contains(expected), "{message}");
}

#[test]
fn what_misleads_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    let check = |text: &str, expected: &str| {
        std::fs::write(&path, text).unwrap();
        check_refused(&path, expected);
    };
    let labelme = |width: usize, shape: &str| {
        format!(r#"{{"shapes": [{shape}], "imagePath": "a.jpg", "imageHeight": 4, "imageWidth": {width}}}"#)
    };
    check(&labelme(4_000_000_000, ""), "pixels; expected 1 to");
    check(
        &labelme(4, r#"{"label": "a", "points": [[1, 1]], "shape_type": "point"}"#),
        "a shape of type `point` with 1 points",
    );
    check(
        r#"{"images": [{"id": 1, "file_name": "a", "width": 90000, "height": 90000}]}"#,
        "90000×90000 pixels, more than the",
    );
    check(
        r#"[{"data": {"image": "a"}, "predictions": [{"result": [{"original_width": 2, "original_height": 2,
            "value": {"brushlabels": ["a"], "rle": [0, 0, 0, 99, 57, 8, 119]}}]}]}]"#,
        "99 values, expected 4 for each of 4 pixels",
    );
    check(r#"[{"data": {"image": "a"}}]"#, "the size of the image is not known");
    check(r#"{"something": "else"}"#, "no masks recognised here");

    let yolo = folder.path().join("yolo");
    std::fs::create_dir_all(yolo.join("labels")).unwrap();
    std::fs::create_dir_all(yolo.join("images")).unwrap();
    std::fs::copy(reference("png/empty.png"), yolo.join("images/a.png")).unwrap();
    let check = |yaml: &str, labels: &str, expected: &str| {
        std::fs::write(yolo.join("data.yaml"), yaml).unwrap();
        std::fs::write(yolo.join("labels/a.txt"), labels).unwrap();
        check_refused(&yolo, expected);
    };
    check("nc: 2\n", "", "no `names`");
    check("names: {0: a, 2: b}\n", "", "without a gap");
    check(
        "names: [a, b]\n",
        "0 0.5 0.5 0.2 0.2\n",
        "line 1: expected a class below 2 and at least three corners",
    );
    check("names: ['a', \"b\"]\n", "2 0 0 1 0 1 1\n", "a class below 2");
    check("names:\n- a\n- b # not c\n", "1 0 0 1e300 0 1 1\n", "expected shares of width and height");
    check("names:\n  0: a\n", "0 0 0 NaN 0 1 1\n", "expected shares of width and height");
}
