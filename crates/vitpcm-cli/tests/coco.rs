//! MS COCO 2014 from its files to scores of 81 classes, on a small set in its exact format (`reference/coco/make.py`):
//! real category ids with their gaps, file names, polygons, crowds, an image that shows nothing.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use vitpcm_masks::{Classes, read_label_png};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/coco");

/// Runs a command and gives what it prints.
#[track_caller]
fn vitpcm(arguments: &[&str], paths: &[(&str, PathBuf)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
    command.args(arguments);
    for (option, path) in paths {
        if !option.is_empty() {
            command.arg(option);
        }
        command.arg(path);
    }
    let output = command.args(["--quiet", "--device=cpu"]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Size and labels of every image, as pycocotools paints them.
fn expected_masks() -> BTreeMap<String, ((u32, u32), Vec<u8>)> {
    let text = std::fs::read_to_string(Path::new(REFERENCE).join("masks.json")).unwrap();
    let images: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let mask = |(name, image): (String, Value)| {
        let number = |value: &Value| value.as_u64().unwrap();
        let runs = image["runs"].as_array().unwrap();
        let run = |pair: &[Value]| vec![number(&pair[0]) as u8; number(&pair[1]) as usize];
        let labels = runs.chunks_exact(2).flat_map(run).collect();
        (name, ((number(&image["width"]) as u32, number(&image["height"]) as u32), labels))
    };
    images.into_iter().map(mask).collect()
}

/// The data set's folders: annotations as they are, photographs drawn from the masks, a colour a class.
fn lay_out(folder: &Path) {
    std::fs::create_dir_all(folder.join("annotations")).unwrap();
    for split in ["train2014", "val2014"] {
        std::fs::create_dir_all(folder.join(split)).unwrap();
        let name = format!("instances_{split}.json");
        std::fs::copy(Path::new(REFERENCE).join(&name), folder.join("annotations").join(&name)).unwrap();
    }
    for (name, ((width, height), labels)) in expected_masks() {
        let colour = |label: u8| [37, 91, 151].map(|factor: u8| label.wrapping_mul(factor).wrapping_add(40));
        let pixels = labels.iter().flat_map(|&label| colour(label)).collect();
        let split = if name.contains("train2014") { "train2014" } else { "val2014" };
        image::RgbImage::from_raw(width, height, pixels)
            .unwrap()
            .save(folder.join(split).join(name))
            .unwrap();
    }
}

#[test]
fn masks_of_instance_files_are_those_of_pycocotools() {
    let folder = tempfile::tempdir().unwrap();
    for split in ["train2014", "val2014"] {
        let file = Path::new(REFERENCE).join(format!("instances_{split}.json"));
        vitpcm(&["export", "--format=png"], &[("", file), ("--out", folder.path().to_path_buf())]);
    }
    for (name, ((width, height), labels)) in expected_masks() {
        let mask = read_label_png(&folder.path().join(name.replace(".jpg", ".png"))).unwrap();
        assert_eq!(mask.size(), (width as usize, height as usize), "{name}");
        assert_eq!(mask.labels(), labels, "{name}");
    }
}

#[test]
fn all_81_classes_go_from_annotations_to_a_model_to_masks_to_scores() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    lay_out(&path("coco"));

    let inspected = json(&vitpcm(&["data", "inspect", "--json=-"], &[("", path("coco"))]));
    assert_eq!(inspected["images"], 72);
    assert_eq!(inspected["classes"].as_array().unwrap().len(), 80);

    let small =
        ["--preset=demo", "--epochs=2", "--batch=4", "--set=model.grid=4", "--set=model.inference_grid=4"];
    let small = [&["train"], &small[..], &["--set=validation.grid=4", "--set=model.lstm_units=8"]].concat();
    let coco = [&small[..], &["--set=views.crop_probability=0"]].concat();
    vitpcm(&coco, &[("--data", path("coco")), ("--out", path("run"))]);
    let model = path("run/model.safetensors");
    let described = json(&vitpcm(&["model", "inspect", "--json=-"], &[("", model.clone())]));
    let names: Vec<&str> =
        described["info"]["classes"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names, Classes::coco().names());

    for (images, split, out) in
        [("coco/val2014", "--split=val2014", "masks"), ("coco/train2014", "--split=training", "pseudo-masks")]
    {
        let places = [("", path(images)), ("--model", model.clone()), ("--tags-file", path("coco"))];
        vitpcm(&["segment", split], &[&places[..], &[("--out", path(out))]].concat());
    }
    let instances = path("coco/annotations/instances_val2014.json");
    vitpcm(&["export", "--format=png"], &[("", instances), ("--out", path("truth"))]);

    let evaluate = |more: &[(&str, PathBuf)]| {
        let places = [("--pred", path("masks")), ("--truth", path("truth"))];
        json(&vitpcm(&["evaluate", "--classes=coco", "--json=-"], &[&places[..], more].concat()))
    };
    let scores = evaluate(&[]);
    let classes = scores["per_class"].as_array().unwrap();
    assert_eq!((classes.len(), scores["num_images"].as_u64()), (81, Some(31)));
    assert!(classes.iter().all(|class| class["truth_pixels"].as_u64() > Some(0)));
    // Two epochs on 41 images: little, but tags alone would put every class everywhere.
    assert!(scores["miou"].as_f64() > Some(5.0), "{}", scores["miou"]);

    // Of fewer images, the classes that their truth shows count, and no others.
    let list = path("list.txt");
    std::fs::write(&list, "COCO_val2014_000000000042.jpg\nCOCO_val2014_000000000049.jpg\n").unwrap();
    let scores = evaluate(&[("--list", list)]);
    let classes = scores["per_class"].as_array().unwrap();
    let shown: Vec<f64> = classes
        .iter()
        .filter(|class| class["truth_pixels"].as_u64() > Some(0))
        .map(|class| class["iou"].as_f64().unwrap())
        .collect();
    assert!((2..81).contains(&shown.len()), "{}", shown.len());
    let mean = shown.iter().sum::<f64>() / shown.len() as f64;
    assert!((scores["miou"].as_f64().unwrap() - mean).abs() < 1e-9);

    let tiny = ["verify", "--classes=coco", "--backbone=resnet-nano", "--batch=4", "--steps=4", "--scales=1"];
    let tiny = [&tiny[..], &["--set=crops.side=33", "--set=validation.every_steps=0"]].concat();
    let places = [("--images", path("coco/train2014")), ("--masks", path("pseudo-masks"))];
    let truth = [("--val-images", path("coco/val2014")), ("--val-truth", path("truth"))];
    vitpcm(&tiny, &[&places[..], &truth[..], &[("--out", path("verification"))]].concat());
    let segmenter = path("verification/model.safetensors");
    vitpcm(&["segment"], &[("", path("coco/val2014")), ("--model", segmenter), ("--out", path("verified"))]);
    let names = std::fs::read_to_string(path("verified/classes.txt")).unwrap();
    assert_eq!(names.lines().count(), 80);
}
