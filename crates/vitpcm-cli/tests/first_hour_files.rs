//! What a new user's files stumble over in the first hour: masks one folder away from where they are looked for, photographs of phones,
//! classes in colours that cannot be seen. Made folders, the real program, its words and exit codes.

mod program;
mod untrained;

use std::path::Path;
use vitpcm_data::{DrawnScenes, ImageLimits, read_image};
use vitpcm_masks::palette::{display_colour, voc_palette};
use vitpcm_masks::read_label_png;

const PHOTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/data/photos");

/// Runs a line on the CPU.
#[track_caller]
fn run(folder: &Path, line: &str, code: i32) -> String {
    program::run(folder, &format!("--device=cpu {line}"), code)
}

/// [`run`], and what it says must hold these words.
#[track_caller]
fn says(folder: &Path, arguments: &str, code: i32, words: &str) {
    let said = run(folder, arguments, code);
    assert!(said.contains(words), "{arguments} does not say `{words}`: {said}");
}

/// `data` with four drawn scenes in `images`, true masks in `masks` and tags; `model.safetensors`, untrained.
fn scenes_and_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DrawnScenes { seed: 3, side: 64 }.write(&folder.path().join("data"), 3, 1).unwrap();
    untrained::write(&folder.path().join("model.safetensors"), &DrawnScenes::classes(), 0);
    folder
}

/// The names of the files of a folder, sorted.
fn listed(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn masks_one_level_down_are_found_by_every_reader_and_it_says_so() {
    let made = scenes_and_model();
    let here = made.path();
    // The whole folder: its images are in `images`, and so are their masks.
    let model = "--model model.safetensors --tags-file data";
    says(here, &format!("segment data {model} --format png,npz --out masks"), 0, "masks are in masks/images");
    let down = "masks: looked one level down, in masks/images";

    says(here, "evaluate --pred masks --truth data/masks", 0, down);
    says(here, "evaluate --pred data/masks --truth masks", 0, down);
    let refine = "refine --images data/images --scores masks/npz --out refined";
    says(here, refine, 0, "masks/npz: looked one level down, in masks/npz/images");
    says(here, "export masks --images data/images --out exports --format coco,yolo", 0, down);
    let train = "train --data data --pseudo-masks masks --out run --preset demo --epochs 1 --batch 2 \
                 --set model.grid=4 --set model.inference_grid=4 --set validation.grid=4 --set model.lstm_units=8";
    says(here, train, 0, down);
    says(here, "propose --data data --masks masks --out chosen", 0, down);
    let verify = "verify --images data/images --masks masks --val-images data/images --val-truth data/masks \
                  --backbone resnet-nano --steps 1 --batch 1 --set crops.side=65 --scales 1 --out verification";
    says(here, verify, 0, down);
}

#[test]
fn a_data_set_named_as_truth_stands_for_its_masks() {
    let made = scenes_and_model();
    run(made.path(), "segment data --model model.safetensors --tags-file data --out masks", 0);
    let words = "data: a data set; its true masks are in data/masks";
    says(made.path(), "evaluate --pred masks --truth data", 0, words);
}

#[test]
fn masks_where_they_are_looked_for_need_no_remark() {
    let made = scenes_and_model();
    let said = run(made.path(), "segment data/images --model model.safetensors --out masks", 0);
    assert!(said.contains("masks are in masks\n"), "{said}");
    let said = run(made.path(), "evaluate --pred masks --truth data/masks", 0);
    assert!(!said.contains("one level down"), "{said}");
}

#[test]
fn two_folders_of_masks_that_could_be_meant_are_named() {
    let made = scenes_and_model();
    for copy in ["both/new", "both/old"] {
        run(made.path(), &format!("segment data/images --model model.safetensors --out {copy}"), 0);
    }
    says(
        made.path(),
        "evaluate --pred both --truth data/masks",
        3,
        "both/new and both/old hold files of the same names",
    );
}

#[test]
fn images_in_sub_folders_keep_their_place_in_results_and_exports() {
    let made = scenes_and_model();
    let here = made.path();
    // Two images of one name.
    for (sub_folder, from) in [("roses", "scene-0001"), ("tulips", "scene-0002")] {
        std::fs::create_dir_all(here.join("photos").join(sub_folder)).unwrap();
        let from = here.join("data/images").join(from).with_extension("png");
        std::fs::copy(from, here.join("photos").join(sub_folder).join("1.png")).unwrap();
    }
    let formats = "png,npz,overlay,coco,yolo,labelme,voc";
    run(
        here,
        &format!("segment photos --model model.safetensors --tags disc --out masks --format {formats}"),
        0,
    );
    for sub_folder in ["roses", "tulips"] {
        for place in ["", "npz", "overlay", "yolo/labels", "labelme", "voc/SegmentationClass"] {
            let folder = here.join("masks").join(place).join(sub_folder);
            assert!(listed(&folder).iter().any(|name| name.starts_with("1.")), "{}", folder.display());
        }
    }
    let coco = std::fs::read_to_string(here.join("masks/coco/instances_default.json")).unwrap();
    assert!(coco.contains("roses/1.png") && coco.contains("tulips/1.png"), "{coco}");
    run(here, "refine --images photos --scores masks/npz --out refined", 0);
    assert_eq!(listed(&here.join("refined/roses")), ["1.png"]);
}

#[test]
fn photographs_of_phones_and_of_the_web_are_read() {
    let made = scenes_and_model();
    let here = made.path();
    std::fs::create_dir(here.join("phone")).unwrap();
    for name in ["plain.heic", "orientation-6.heic", "grid.heic", "animated.gif"] {
        std::fs::copy(Path::new(PHOTOS).join(name), here.join("phone").join(name)).unwrap();
    }
    let segment = "segment phone --model model.safetensors --tags disc --format png,overlay --out masks";
    says(here, segment, 0, "4 images segmented");
    // Turned by a quarter, as the phone asks for.
    assert_eq!(read_label_png(&here.join("masks/orientation-6.png")).unwrap().size(), (16, 24));
    assert_eq!(read_label_png(&here.join("masks/grid.png")).unwrap().size(), (600, 520));
    let tags = "image,tags\nplain.heic,leaf\norientation-6.heic,leaf\ngrid.heic,rust\nanimated.gif,rust\n";
    std::fs::write(here.join("phone/tags.csv"), tags).unwrap();
    says(here, "data inspect phone", 0, "HEIC");
}

#[test]
#[cfg(not(feature = "avif"))]
fn a_format_that_needs_a_feature_is_counted_and_the_feature_named() {
    let made = scenes_and_model();
    let here = made.path();
    std::fs::create_dir(here.join("web")).unwrap();
    std::fs::copy(Path::new(PHOTOS).join("plain.avif"), here.join("web/a.avif")).unwrap();
    std::fs::copy(Path::new(PHOTOS).join("plain.heic"), here.join("web/b.heic")).unwrap();
    let segment = "segment web --model model.safetensors --tags disc --out masks";
    says(here, segment, 1, "web/a.avif: AVIF, which this build does not read: build with `--features avif`");
    says(here, segment, 1, "1 failed");
}

#[test]
fn a_reader_that_stops_reading_what_is_said_stops_no_work() {
    let made = scenes_and_model();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command =
        program::vitpcm(&["segment", "data/images", "--model=model.safetensors", "--out=masks"]);
    command.current_dir(made.path());
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert_eq!(command.status().unwrap().code(), Some(0));
    assert!(made.path().join("masks/scene-0003.png").is_file());
}

#[test]
fn a_folder_without_images_says_which_formats_are_read() {
    let made = scenes_and_model();
    std::fs::create_dir(made.path().join("empty")).unwrap();
    let formats = "JPEG, PNG, HEIC, ";
    says(made.path(), "segment empty --model model.safetensors --out masks", 3, formats);
}

#[test]
fn overlays_and_reports_show_classes_in_colours_that_stand_out_and_masks_keep_vocs() {
    let made = scenes_and_model();
    let here = made.path();
    run(
        here,
        "segment data/images --model model.safetensors --tags disc --format png,overlay --out masks",
        0,
    );
    let [red, green, blue] = display_colour(1);
    let report = std::fs::read_to_string(here.join("masks/report.html")).unwrap();
    assert!(
        report.contains(&format!("rgb({red} {green} {blue})")),
        "the report has no swatch of the first class"
    );
    let mask = std::fs::read(here.join("masks/scene-0001.png")).unwrap();
    let palette = voc_palette();
    assert!(mask.windows(96).any(|part| part == &palette[..96]), "the mask has another palette than VOC's");
    let overlay = read_image(&here.join("masks/overlay/scene-0001.png"), &ImageLimits::default()).unwrap();
    let labels = read_label_png(&here.join("masks/scene-0001.png")).unwrap();
    if labels.labels().contains(&1) {
        // Outlines are drawn in full colour.
        assert!(overlay.pixels().any(|pixel| pixel.0 == [red, green, blue]));
    }
}
