//! The files in `reference/exports`: what the formats look like, held fixed. `reference/exports/check.py` has read them
//! with the tools' own readers. After a change on purpose, `VITPCM_WRITE_REFERENCE=1 cargo test --release -p
//! vitpcm-exports --test reference_files` writes them anew; then run `check.py` again.

use std::path::{Path, PathBuf};
use vitpcm_data::DrawnScenes;
use vitpcm_exports::{
    CocoShape, ExportFormat, ExportOptions, Exporter, LabelledImage, Memory, Objects, Photograph,
    ScoresOnGrid,
};
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{Classes, IGNORE, LabelMap, ScoreMap};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/exports")
}

/// A ring around a block of another class, two classes side by side, a speck, unsure pixels, all at the border too.
fn nested() -> LabelMap {
    let (width, height) = (40usize, 30usize);
    let label = |x: usize, y: usize| match (x, y) {
        (5..25, 5..25) if (8..22).contains(&x) && (8..22).contains(&y) => match (x, y) {
            (12..18, 12..18) => 2,
            (20, 20) => 3,
            _ => 0,
        },
        (5..25, 5..25) => 1,
        (25..40, 0..12) if x + y < 46 => 3,
        (30..40, 15..30) => 4,
        (26..30, 15..30) => IGNORE,
        _ => 0,
    };
    let labels = (0..width * height).map(|at| label(at % width, at / width)).collect();
    LabelMap::new(width, height, labels).unwrap()
}

fn examples() -> Vec<(&'static str, LabelMap)> {
    vec![
        ("scene.png", DrawnScenes { seed: 5, side: 48 }.scene(1).mask),
        ("nested/ring around.jpg", nested()),
        ("empty.jpg", LabelMap::filled(12, 10, 0).unwrap()),
    ]
}

/// Five classes on 4×3 cells, as after conditioning: the last class is absent.
fn scores() -> ScoreMap {
    let score = |i: usize| if i >= 4 * 12 { 0.0 } else { ((7 * i + 3) % 32) as f32 / 64.0 };
    ScoreMap::new(5, 4, 3, (0..5 * 12).map(score).collect()).unwrap()
}

fn exported(format: ExportFormat, options: &ExportOptions) -> Memory {
    let classes = Classes::from_names(["disc", "square", "triangle", "cross & \"more\""]).unwrap();
    let mut export = Exporter::begin(format, &classes, options, Memory::default()).unwrap();
    let scores = scores();
    for (file_name, mask) in &examples() {
        let scores = Some(ScoresOnGrid { on_grid: &scores, alignment: Alignment::HalfPixel });
        let photograph = Photograph::Elsewhere;
        export.add(&LabelledImage { file_name, mask, scores, photograph }).unwrap();
    }
    export.finish().unwrap()
}

/// Holds an export to the files of a folder.
#[track_caller]
fn check(name: &str, format: ExportFormat, options: &ExportOptions) {
    let folder = folder().join(name);
    for (path, bytes) in exported(format, options).files {
        let file = folder.join(&path);
        if std::env::var_os("VITPCM_WRITE_REFERENCE").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &bytes).unwrap();
        }
        let expected = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if path.ends_with(".png") {
            // Another version of the encoder may pack the same picture otherwise.
            assert_eq!(pixels(&bytes), pixels(&expected), "{name}/{path}");
        } else {
            assert!(bytes == expected, "{name}/{path} is not what it was");
        }
    }
}

fn pixels(png: &[u8]) -> LabelMap {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mask.png");
    std::fs::write(&path, png).unwrap();
    vitpcm_masks::read_label_png(&path).unwrap()
}

#[test]
fn every_format_looks_as_the_tools_read_it() {
    let options = ExportOptions { made_by: "vitpcm".to_string(), ..ExportOptions::default() };
    for format in ExportFormat::ALL {
        check(format.name(), format, &options);
    }
    let polygons = ExportOptions { coco_shape: CocoShape::Polygons, ..options.clone() };
    check("coco-polygons", ExportFormat::Coco, &polygons);
    let classes = ExportOptions { objects: Objects::Classes, ..polygons };
    check("coco-class-polygons", ExportFormat::Coco, &classes);
    check("labelme-classes", ExportFormat::Labelme, &classes);
    check("label-studio-classes", ExportFormat::LabelStudio, &classes);
    check("voc-unsure", ExportFormat::Voc, &ExportOptions { unsure_below: Some(0.3), ..options });
}
