//! Exports as a user asks for them: beside the masks of `segment`, after an interruption and by several runs, and from
//! finished masks by `export`.

mod program;
mod untrained;

use program::{Folder, vitpcm};
use std::path::{Path, PathBuf};
use vitpcm_data::DrawnScenes;
use vitpcm_exports::MaskSet;
use vitpcm_masks::{LabelMap, read_label_png, write_label_png};

/// Runs a command, expects an exit code, gives what it said on stderr.
#[track_caller]
fn check(arguments: &[&str], code: i32) -> String {
    program::check(vitpcm(arguments).spawn().unwrap(), code).1
}

impl Folder {
    /// Six drawn scenes.
    fn with_scenes() -> Folder {
        let folder = Folder::new();
        DrawnScenes { seed: 3, side: 64 }.write(&folder.path("scenes"), 4, 2).unwrap();
        folder
    }

    /// And an untrained model that knows their classes.
    fn with_model() -> Folder {
        let folder = Folder::with_scenes();
        untrained::write(&folder.path("model.safetensors"), &DrawnScenes::classes(), 0);
        folder
    }

    fn segment(&self, images: &str, more: &[&str], code: i32) -> String {
        let (images, model, out) = (self.text(images), self.text("model.safetensors"), self.text("out"));
        let base = ["segment", &images, "--model", &model, "--out", &out, "--size", "64", "--no-tags"];
        check(&[&base[..], more].concat(), code)
    }
}

/// Holds masks read back from an export to those beside it.
#[track_caller]
fn check_same_masks(set: &Path, images: Option<&Path>, masks: &Path, num_masks: usize) {
    let set = MaskSet::open(set, None, images).unwrap();
    assert_eq!(set.len(), num_masks);
    for i in 0..set.len() {
        let mask = read_label_png(&masks.join(set.file_name(i)).with_extension("png")).unwrap();
        assert!(set.read(i).unwrap() == mask, "{}", set.file_name(i));
    }
}

const ALL: &str = "coco,yolo,label-studio,cvat,labelme,voc";

#[test]
fn segment_exports_all_that_is_done_also_what_an_earlier_run_did() {
    let scenes = Folder::with_model();
    // Everything at once, and everything in two runs of which the second finds half of the images done.
    scenes.segment("scenes/images", &["--format", ALL], 0);
    let whole = scenes.path("whole");
    std::fs::rename(scenes.path("out"), &whole).unwrap();
    let half = scenes.path("half");
    std::fs::create_dir(&half).unwrap();
    for name in ["scene-0000.png", "scene-0003.png"] {
        std::fs::copy(scenes.path("scenes/images").join(name), half.join(name)).unwrap();
    }
    scenes.segment("half", &["--format", "png,npz"], 0);
    let stderr = scenes.segment("scenes/images", &["--format", ALL, "--resume"], 0);
    assert!(stderr.contains("2 of 6 images are done already"), "{stderr}");
    let out = scenes.path("out");
    for name in [
        "coco/instances_default.json",
        "yolo/data.yaml",
        "yolo/labels/scene-0005.txt",
        "yolo/images/scene-0005.png",
        "label-studio/tasks.json",
        "label-studio/labels.xml",
        "cvat/segmentation-mask-1.1.zip",
        "labelme/scene-0005.json",
        "voc/ImageSets/Segmentation/train.txt",
        "voc/JPEGImages/scene-0005.png",
    ] {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(read(&out) == read(&whole), "{name}");
    }
    let images = scenes.path("scenes/images");
    for export in ["coco", "label-studio", "cvat/segmentation-mask-1.1.zip", "voc"] {
        check_same_masks(&out.join(export), Some(&images), &out, 6);
    }
    // Exports beside masks are no masks.
    let (out, truth) = (scenes.text("out"), scenes.text("scenes/masks"));
    let output = vitpcm(&["evaluate", "--pred", &out, "--truth", &truth]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("6 images"));
    let leftover =
        walk(&scenes.path("out")).into_iter().find(|path| path.to_string_lossy().ends_with(".tmp"));
    assert_eq!(leftover, None);
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn an_export_leaves_out_what_failed_and_says_so() {
    let scenes = Folder::with_model();
    std::fs::write(scenes.path("scenes/images/broken.jpg"), "not an image").unwrap();
    let stderr = scenes.segment("scenes/images", &["--format", "coco,voc"], 1);
    assert!(stderr.contains("broken.jpg"), "{stderr}");
    check_same_masks(&scenes.path("out/coco"), None, &scenes.path("out"), 6);
}

#[cfg(unix)]
#[test]
fn after_an_interruption_the_exports_hold_what_is_done_and_later_the_rest() {
    let scenes = Folder::with_model();
    DrawnScenes { seed: 4, side: 64 }.write(&scenes.path("many"), 150, 1).unwrap();
    let [images, model, out] = ["many/images", "model.safetensors", "out"].map(|name| scenes.text(name));
    let arguments =
        ["segment", &images, "--model", &model, "--out", &out, "--size", "64", "--format", "coco,cvat"];
    let mut segment = vitpcm(&arguments).spawn().unwrap();
    program::wait_until(&mut segment, || scenes.path("out/scene-0003.png").is_file());
    program::signal(&segment, "-INT");
    let code = segment.wait().unwrap().code();
    assert!(code == Some(130) || code == Some(0), "{code:?}");
    let num_done = std::fs::read_dir(scenes.path("out")).unwrap().flatten();
    let num_done = num_done.filter(|entry| entry.path().extension().is_some_and(|e| e == "png")).count();
    assert!(num_done >= 4);
    let check_exports = |num_masks: usize| {
        for export in ["coco", "cvat/segmentation-mask-1.1.zip"] {
            check_same_masks(&scenes.path("out").join(export), None, &scenes.path("out"), num_masks);
        }
    };
    check_exports(num_done);
    check(&[&arguments[..], &["--resume"]].concat(), 0);
    check_exports(151);
}

#[test]
fn masks_go_from_format_to_format() {
    let scenes = Folder::with_scenes();
    let [masks, classes, images] =
        ["scenes/masks", "scenes/classes.txt", "scenes/images"].map(|name| scenes.text(name));
    let first = scenes.text("first");
    let base = ["export", &masks, "--classes", &classes, "--images", &images, "--out", &first, "--format"];
    check(&[&base[..], &["coco,voc,cvat,yolo,labelme,label-studio"]].concat(), 0);
    for (i, export) in
        ["coco", "voc", "cvat/segmentation-mask-1.1.zip", "label-studio/tasks.json"].iter().enumerate()
    {
        let (set, again) = (format!("{first}/{export}"), scenes.text(&format!("again-{i}")));
        check(&["export", &set, "--images", &images, "--out", &again, "--format", "png"], 0);
        check_same_masks(&scenes.path(&format!("again-{i}")), None, &scenes.path("scenes/masks"), 6);
    }
    for export in ["yolo", "labelme"] {
        let (set, again) = (format!("{first}/{export}"), scenes.text(&format!("again-{export}")));
        check(&["export", &set, "--out", &again, "--format", "png"], 0);
        let output =
            vitpcm(&["evaluate", "--pred", &again, "--truth", &masks, "--json", "-"]).output().unwrap();
        let scores: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(scores["miou"].as_f64().unwrap() > 98.0, "{export}: {scores}");
    }
    // No images asked for, none placed.
    check(&[&base[..], &["yolo", "--place-images", "none", "--out", &scenes.text("bare")]].concat(), 0);
    assert!(scenes.path("bare/yolo/labels").is_dir() && !scenes.path("bare/yolo/images").exists());
}

#[test]
fn specks_are_removed_on_request() {
    let scenes = Folder::with_scenes();
    std::fs::create_dir(scenes.path("specks")).unwrap();
    let mut labels = vec![0; 400];
    labels[45] = 1;
    labels[200..260].fill(2);
    write_label_png(&scenes.path("specks/a.png"), &LabelMap::new(20, 20, labels).unwrap()).unwrap();
    let [masks, classes, out] = ["specks", "scenes/classes.txt", "clean"].map(|name| scenes.text(name));
    check(&["export", &masks, "--classes", &classes, "--min-area", "5", "--format", "png", "--out", &out], 0);
    let histogram = read_label_png(&scenes.path("clean/a.png")).unwrap().histogram();
    assert_eq!((histogram[1], histogram[2]), (0, 60));
}

#[test]
fn what_cannot_be_exported_is_said_in_one_line() {
    let scenes = Folder::with_scenes();
    let [masks, classes, out] = ["scenes/masks", "scenes/classes.txt", "out"].map(|name| scenes.text(name));
    let says = |arguments: &[&str], code: i32, expected: &str| {
        let stderr = check(&[&["export"], arguments, &["--out", &out]].concat(), code);
        assert!(stderr.contains(expected), "{expected} is not in\n{stderr}");
    };
    says(&[&masks, "--format", "coco"], 2, "--classes voc|coco|FILE");
    says(&[&masks, "--format", "coco,bmp", "--classes", "voc"], 2, "bmp");
    says(
        &[&masks, "--format", "voc", "--classes", "voc", "--min-confidence", "0.5"],
        2,
        "voc needs score maps",
    );
    says(
        &[&masks, "--format", "coco", "--classes", "voc", "--min-confidence", "0.5"],
        2,
        "is for png, voc and cvat",
    );
    says(&[&scenes.text("nowhere"), "--format", "coco"], 2, "there is no such file or folder");
    says(&[&classes, "--format", "coco"], 3, "no masks recognised here");
    std::fs::write(scenes.path("cut.json"), r#"{"images": [{"id": 1, "file_na"#).unwrap();
    says(&[&scenes.text("cut.json"), "--format", "png"], 3, "cut.json");
    // One mask that is none: the rest is done.
    std::fs::write(scenes.path("scenes/masks/bad.png"), "nothing").unwrap();
    says(&[&masks, "--format", "coco,yolo", "--classes", &classes], 1, "bad.png: not a readable PNG mask");
    let set = MaskSet::open(&scenes.path("out/coco"), None, None).unwrap();
    assert_eq!(set.len(), 6);
    // A class that the list does not have.
    std::fs::write(scenes.path("two.txt"), "disc\nsquare\n").unwrap();
    says(&[&masks, "--format", "coco", "--classes", &scenes.text("two.txt")], 1, "class index");
}
