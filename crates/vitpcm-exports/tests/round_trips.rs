//! Masks out and back in: identical where the format holds pixels or run lengths, IoU over 0.98 where it holds
//! polygons. On drawn scenes always, on real masks where `../shared` is.

use std::fs::File;
use std::path::{Path, PathBuf};
use vitpcm_data::DrawnScenes;
use vitpcm_exports::{
    CocoShape, ExportFormat, ExportOptions, Exporter, Folder, LabelledImage, MaskSet, Objects, Photograph,
    Zip,
};
use vitpcm_masks::{Classes, ConfusionMatrix, IGNORE, LabelMap, read_label_png};

struct Example {
    file_name: String,
    mask: LabelMap,
    photograph: PathBuf,
}

/// Drawn scenes with their pictures, one in a folder of its own, one with blanks and an umlaut in its name.
fn scenes(folder: &Path) -> (Vec<Example>, Classes) {
    let examples = (0..12).map(|index| {
        let scene = DrawnScenes { seed: 5, side: 160 }.scene(index);
        let file_name = match index {
            3 => "deeper/down/scene.png".to_string(),
            4 => "süße Szene.png".to_string(),
            _ => format!("scene-{index}.png"),
        };
        let photograph = folder.join("pictures").join(&file_name);
        std::fs::create_dir_all(photograph.parent().unwrap()).unwrap();
        scene.image.save(&photograph).unwrap();
        let mut labels = scene.mask.into_labels();
        if index == 5 {
            labels[160 * 20..160 * 25].fill(IGNORE);
        }
        Example { file_name, mask: LabelMap::new(160, 160, labels).unwrap(), photograph }
    });
    (examples.collect(), DrawnScenes::classes())
}

/// Masks of `../shared/data/voc-mini`, where that folder is.
fn voc_mini() -> Option<(Vec<Example>, Classes)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/voc-mini");
    let list = std::fs::read_to_string(root.join("ImageSets/Segmentation/val.txt")).ok()?;
    let example = |name: &str| Example {
        file_name: format!("{name}.jpg"),
        mask: read_label_png(&root.join(format!("SegmentationClass/{name}.png"))).unwrap(),
        photograph: root.join(format!("JPEGImages/{name}.jpg")),
    };
    Some((list.split_whitespace().take(40).map(example).collect(), Classes::voc()))
}

/// Exports, and opens what was written.
fn there_and_back(
    folder: &Path,
    examples: &[Example],
    classes: &Classes,
    format: ExportFormat,
    options: &ExportOptions,
) -> MaskSet {
    let out = folder.join(format.name());
    let add_all = |add: &mut dyn FnMut(&LabelledImage<'_>)| {
        for Example { file_name, mask, photograph } in examples {
            let photograph = Photograph::Link(photograph);
            add(&LabelledImage { file_name, mask, scores: None, photograph });
        }
    };
    if format == ExportFormat::Cvat {
        let archive = Zip::new(File::create(folder.join("cvat.zip")).unwrap());
        let mut export = Exporter::begin(format, classes, options, archive).unwrap();
        add_all(&mut |image| export.add(image).unwrap());
        export.finish().unwrap().finish().unwrap();
        return MaskSet::open(&folder.join("cvat.zip"), None, None).unwrap();
    }
    let mut export = Exporter::begin(format, classes, options, Folder::new(&out)).unwrap();
    add_all(&mut |image| export.add(image).unwrap());
    export.finish().unwrap();
    let pictures = examples[0].photograph.parent().unwrap();
    let images = (format == ExportFormat::LabelStudio).then_some(pictures);
    MaskSet::open(&out, None, images).unwrap()
}

/// Position of each example in a set, whose order is its own.
fn pairs<'a>(examples: &'a [Example], set: &'a MaskSet) -> impl Iterator<Item = (&'a Example, LabelMap)> {
    assert_eq!(set.len(), examples.len());
    let stem = |name: &str| Path::new(name).with_extension("");
    examples.iter().map(move |example| {
        let at = (0..set.len()).find(|&i| stem(set.file_name(i)) == stem(&example.file_name));
        let at = at.unwrap_or_else(|| panic!("{} is not in the set", example.file_name));
        (example, set.read(at).unwrap())
    })
}

fn without_ignore(map: &LabelMap) -> LabelMap {
    let labels = map.labels().iter().map(|&label| if label == IGNORE { 0 } else { label }).collect();
    LabelMap::new(map.width(), map.height(), labels).unwrap()
}

/// The lowest IoU of any class in any image.
fn lowest_iou<'a>(classes: &Classes, pairs: impl Iterator<Item = (&'a Example, LabelMap)>) -> f64 {
    let mut lowest = f64::INFINITY;
    for (example, mask) in pairs {
        let mut matrix = ConfusionMatrix::new(classes.len());
        matrix.add(&mask, &without_ignore(&example.mask)).unwrap();
        let ious = matrix.scores(classes).per_class.into_iter().filter_map(|class| class.iou);
        lowest = ious.fold(lowest, f64::min);
    }
    lowest / 100.0
}

#[track_caller]
fn check_all(examples: &[Example], classes: &Classes) {
    let folder = tempfile::tempdir().unwrap();
    for objects in [Objects::Parts, Objects::Classes] {
        let options = ExportOptions { objects, ..ExportOptions::default() };
        for format in [ExportFormat::Png, ExportFormat::Voc, ExportFormat::Cvat] {
            let set = there_and_back(folder.path(), examples, classes, format, &options);
            assert_eq!(set.classes(), classes);
            for (example, mask) in pairs(examples, &set) {
                assert_eq!(mask, example.mask, "{} of {format:?}", example.file_name);
            }
        }
        for format in [ExportFormat::Coco, ExportFormat::LabelStudio] {
            let set = there_and_back(folder.path(), examples, classes, format, &options);
            assert_eq!(set.classes(), classes);
            for (example, mask) in pairs(examples, &set) {
                assert!(mask == without_ignore(&example.mask), "{} of {format:?}", example.file_name);
            }
        }
        let options = ExportOptions { coco_shape: CocoShape::Polygons, ..options };
        for format in [ExportFormat::Coco, ExportFormat::Labelme, ExportFormat::Yolo] {
            let set = there_and_back(folder.path(), examples, classes, format, &options);
            assert_eq!(set.classes(), classes);
            let in_image = lowest_iou(classes, pairs(examples, &set));
            assert!(in_image > 0.98, "{format:?} {objects:?}: {in_image}");
        }
    }
    // Without any error polygons are exact too.
    let options =
        ExportOptions { polygon_error: 0.0, coco_shape: CocoShape::Polygons, ..ExportOptions::default() };
    for format in [ExportFormat::Coco, ExportFormat::Labelme, ExportFormat::Yolo] {
        let set = there_and_back(folder.path(), examples, classes, format, &options);
        for (example, mask) in pairs(examples, &set) {
            assert!(mask == without_ignore(&example.mask), "{} of {format:?}", example.file_name);
        }
    }
}

#[test]
fn drawn_scenes_come_back_from_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let (examples, classes) = scenes(folder.path());
    check_all(&examples, &classes);
}

#[test]
fn real_masks_come_back_from_every_format() {
    match voc_mini() {
        Some((examples, classes)) => check_all(&examples, &classes),
        None => eprintln!("skipped: ../shared/data/voc-mini is not here"),
    }
}
