//! VOC devkits, COCO instances, class folders, Label Studio and CVAT exports, each in small.

mod folders;

use folders::{Folder, demand, notes, problems, splits, tags};
use std::collections::BTreeMap;
use vitpcm_data::{
    DataError, Dataset, DatasetLayout, Difficult, ImageLimits, OpenOptions, ProblemKind, SameName,
};

fn objects(names: &[&str]) -> String {
    let object = |name: &&str| {
        let (name, difficult) = name.strip_suffix('?').map_or((*name, 0), |name| (name, 1));
        format!(
            "<object><name>{name}</name><difficult>{difficult}</difficult><part><name>head</name></part></object>"
        )
    };
    format!(
        "<annotation><filename>x.jpg</filename>{}</annotation>",
        names.iter().map(object).collect::<String>()
    )
}

fn devkit(root: &str) -> Folder {
    let folder = Folder::new();
    for (id, names) in [("a", &["dog", "cat?"][..]), ("b", &["person"]), ("c", &["dog", "dog"]), ("d", &[])] {
        folder.image(format!("{root}JPEGImages/{id}.jpg"));
        folder.file(format!("{root}Annotations/{id}.xml"), objects(names));
    }
    folder.file(format!("{root}ImageSets/Segmentation/train.txt"), "a\n");
    folder.file(format!("{root}ImageSets/Segmentation/val.txt"), "b\r\n");
    folder.mask(&format!("{root}SegmentationClass/a.png"), 12);
    folder.mask(&format!("{root}SegmentationClass/b.png"), 15);
    folder
}

#[test]
fn a_devkit_is_found_at_its_folder_and_above() {
    for root in ["", "VOC2012/", "VOCdevkit/VOC2012/"] {
        let folder = devkit(root);
        let dataset = folder.open();
        assert_eq!(dataset.layout(), DatasetLayout::VocDevkit);
        assert_eq!(dataset.problems(), []);
        assert_eq!(dataset.classes().len(), 21);
        assert_eq!(
            tags(&dataset),
            BTreeMap::from([("a.jpg", vec!["cat", "dog"]), ("b.jpg", vec!["person"])])
        );
        assert_eq!(splits(&dataset), BTreeMap::from([("train", vec!["a.jpg"]), ("val", vec!["b.jpg"])]));
        assert_eq!(
            dataset.truth(0).unwrap().read(dataset.classes(), &ImageLimits::default()).unwrap().labels()[0],
            12
        );
    }
}

#[test]
fn difficult_objects_count_unless_excluded() {
    let options = OpenOptions { difficult: Difficult::Exclude, ..OpenOptions::default() };
    assert_eq!(tags(&devkit("").open_with(&options))["a.jpg"], ["dog"]);
}

#[test]
fn trainaug_is_what_the_augmented_masks_add_to_val() {
    let folder = devkit("");
    for id in ["a", "b", "c"] {
        folder.mask(&format!("SegmentationClassAug/{id}.png"), 12);
    }
    let expected = BTreeMap::from([
        ("train", vec!["a.jpg"]),
        ("trainaug", vec!["a.jpg", "c.jpg"]),
        ("val", vec!["b.jpg"]),
    ]);
    let dataset = folder.open();
    assert_eq!(splits(&dataset), expected);
    assert_eq!(dataset.training().name, "trainaug");
    assert!(dataset.truth(1).unwrap().path().ends_with("SegmentationClassAug/b.png"));

    folder.file(
        "ImageSets/Segmentation/trainaug.txt",
        "/JPEGImages/a.jpg /SegmentationClassAug/a.png\n/JPEGImages/c.jpg /SegmentationClassAug/c.png\n",
    );
    let dataset = folder.open();
    assert_eq!(splits(&dataset), expected);
    assert_eq!(dataset.problems(), []);
}

#[test]
fn without_segmentation_lists_main_lists_or_all_images_are_taken() {
    let folder = devkit("");
    std::fs::remove_dir_all(folder.path().join("ImageSets/Segmentation")).unwrap();
    assert_eq!(folder.open().images().len(), 4);
    folder.file("ImageSets/Main/train.txt", "a  1\nc -1\n");
    folder.file("ImageSets/Main/dog_train.txt", "a  1\nc -1\nd -1\n");
    assert_eq!(splits(&folder.open()), BTreeMap::from([("train", vec!["a.jpg", "c.jpg"])]));
}

#[test]
fn a_devkit_of_other_classes_has_the_names_found_or_listed() {
    let folder = Folder::new();
    folder.images(["JPEGImages/a.png", "JPEGImages/b.png"]);
    folder.file("Annotations/a.xml", objects(&["rust &amp; dirt", "<![CDATA[leaf]]>"]));
    folder.file("Annotations/b.xml", objects(&[]));
    assert_eq!(folder.open().classes().names(), ["background", "leaf", "rust & dirt"]);
    folder.file(
        "labelmap.txt",
        "# label:color_rgb:parts:actions\nbackground:0,0,0::\nrust & dirt:1,2,3::\nleaf:4,5,6::\n",
    );
    assert_eq!(folder.open().classes().names(), ["background", "rust & dirt", "leaf"]);
    folder.file("Annotations/b.xml", objects(&["dog"]));
    let dataset = folder.open();
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::UnknownClass,
        "Annotations/b.xml",
        "`dog` of b.png",
    );
}

#[test]
fn what_is_wrong_in_a_devkit_is_named() {
    let folder = devkit("");
    folder.file("ImageSets/Segmentation/train.txt", "a\nc\nc\nd\ngone\n");
    let whole = objects(&["dog", "cat"]);
    folder.file("Annotations/c.xml", &whole[..whole.len() - 40]);
    std::fs::remove_file(folder.path().join("Annotations/d.xml")).unwrap();
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    demand(
        &found,
        ProblemKind::UnreadableAnnotation,
        "Annotations/c.xml",
        "truncated; the image is left out",
    );
    demand(&found, ProblemKind::DuplicateEntry, "JPEGImages/c.jpg", "line 3");
    assert_eq!(notes(&dataset), "1 image without an annotation, used as negative examples: d.jpg\n");
    demand(&found, ProblemKind::MaskMissing, "JPEGImages/d.jpg", "others of train have one");
    demand(&found, ProblemKind::TagWithoutImage, "JPEGImages/gone", "line 5 of train.txt");
    assert_eq!(dataset.images().len(), 3);
}

/// Two categories with sparse ids; a polygon, both forms of run lengths, a crowd, an overlap.
const INSTANCES: &str = r#"{
  "info": {}, "licenses": [],
  "images": [
    {"id": 5, "file_name": "COCO_train_5.jpg", "width": 6, "height": 4, "license": 1},
    {"id": 9, "file_name": "COCO_train_9.jpg", "width": 6, "height": 4},
    {"id": 7, "file_name": "gone.jpg", "width": 6, "height": 4}
  ],
  "categories": [{"id": 90, "name": "toothbrush", "supercategory": "x"}, {"id": 3, "name": "car"}],
  "annotations": [
    {"id": 1, "image_id": 5, "category_id": 90, "iscrowd": 0, "bbox": [0, 0, 3, 4], "segmentation": [[0, 0, 3, 0, 3, 4, 0, 4]]},
    {"id": 2, "image_id": 5, "category_id": 3, "iscrowd": 1, "segmentation": {"size": [4, 6], "counts": [8, 8, 8]}},
    {"id": 3, "image_id": 9, "category_id": 3, "iscrowd": 0, "segmentation": {"counts": "08`0", "size": [4, 6]}},
    {"id": 4, "image_id": 8, "category_id": 3, "segmentation": []},
    {"id": 5, "image_id": 9, "category_id": 4, "segmentation": []}
  ]
}"#;

#[test]
fn coco_instances_give_tags_splits_and_masks() {
    let folder = Folder::new();
    folder.images([
        "train2014/COCO_train_5.jpg", "train2014/COCO_train_9.jpg", "train2014/extra.jpg", "test2014/z.jpg",
    ]);
    folder.file("annotations/instances_train2014.json", INSTANCES);
    let dataset = folder.open();
    assert_eq!(dataset.layout(), DatasetLayout::Coco);
    assert_eq!(dataset.classes().names(), ["background", "car", "toothbrush"]);
    let [five, nine] = ["train2014/COCO_train_5.jpg", "train2014/COCO_train_9.jpg"];
    assert_eq!(tags(&dataset), BTreeMap::from([(five, vec!["car", "toothbrush"]), (nine, vec!["car"])]));
    assert_eq!(splits(&dataset), BTreeMap::from([("train2014", vec![five, nine])]));

    let labels = |index: usize| {
        dataset.truth(index).unwrap().read(dataset.classes(), &ImageLimits::default()).unwrap().into_labels()
    };
    // The first annotation covers columns 0 to 2, the crowd columns 2 and 3: column 2 goes to the first.
    assert_eq!(labels(0), [2, 2, 2, 1, 0, 0].repeat(4));
    // Runs 0, 8, 16: the first two columns.
    assert_eq!(labels(1), [1, 1, 0, 0, 0, 0].repeat(4));

    let found = problems(&folder, dataset.problems());
    let file = "annotations/instances_train2014.json";
    demand(&found, ProblemKind::TagWithoutImage, "gone.jpg", "image 7 of instances_train2014.json");
    demand(&found, ProblemKind::TagWithoutImage, file, "image 8, which the file does not list");
    demand(&found, ProblemKind::UnknownClass, file, "category 4 of image 9");
    assert_eq!(found.len(), 3, "{found:#?}");
    let said = notes(&dataset);
    assert!(said.contains("1 image not in the instance files, left out: train2014/extra.jpg"), "{said}");
}

#[test]
fn coco_finds_images_in_every_usual_folder_and_one_image_in_two_splits() {
    for place in ["", "images/", "images/train/", "train/"] {
        let folder = Folder::new();
        folder.images([&format!("{place}COCO_train_5.jpg"), &format!("{place}COCO_train_9.jpg")]);
        folder.file("instances_train.json", INSTANCES);
        folder.file("instances_minival.json", r#"{"images": [{"id": 1, "file_name": "COCO_train_9.jpg"}]}"#);
        let dataset = folder.open();
        assert_eq!(dataset.images().len(), 2, "{place}");
        let members: Vec<usize> = dataset.splits().iter().map(|split| split.indices.len()).collect();
        assert_eq!(members, [2, 1], "{place}");
    }
}

#[test]
fn an_image_missing_from_its_split_is_not_taken_from_another() {
    let folder = Folder::new();
    folder.images(["train/1.jpg", "val/1.jpg", "val/2.jpg"]);
    let listed = r#"{"images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}]}"#;
    folder.file("instances_train.json", listed);
    folder.file("instances_val.json", listed);
    folder.file("instances_minival.json", r#"{"images": [{"id": 2, "file_name": "2.jpg"}]}"#);
    let dataset = folder.open();
    let val = vec!["val/1.jpg", "val/2.jpg"];
    let expected =
        BTreeMap::from([("train", vec!["train/1.jpg"]), ("val", val), ("minival", vec!["val/2.jpg"])]);
    assert_eq!(splits(&dataset), expected);
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::TagWithoutImage,
        "2.jpg",
        "instances_train.json",
    );
}

#[test]
fn malformed_coco_shapes_are_errors_of_their_image_only() {
    let wrong = INSTANCES.replace("[8, 8, 8]", "[8, 8]").replace("\"08`0\"", "\"0\"");
    let folder = Folder::new();
    folder.images(["COCO_train_5.jpg", "COCO_train_9.jpg"]);
    folder.file("instances_train.json", wrong);
    let dataset = folder.open();
    let message = |index: usize| {
        dataset
            .truth(index)
            .unwrap()
            .read(dataset.classes(), &ImageLimits::default())
            .unwrap_err()
            .to_string()
    };
    assert!(
        message(0).contains("COCO_train_5.jpg") && message(0).contains("cover 16 pixels"),
        "{}",
        message(0)
    );
    assert!(message(1).contains("COCO_train_9.jpg"), "{}", message(1));
    folder.file("instances_val.json", &INSTANCES[..INSTANCES.len() / 2]);
    let dataset = folder.open();
    assert_eq!(dataset.images().len(), 2);
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::UnreadableAnnotation, "instances_val.json", "not COCO instances: EOF");
}

#[test]
fn class_folders_join_equal_names_and_take_loose_images_for_negatives() {
    let folder = Folder::new();
    folder.images(["cat/1.jpg", "cat/deep/2.jpg", "dog/3.jpg", "none.jpg", ".hidden/4.jpg", "dog/._3.jpg"]);
    folder.file("dog/1.jpg", std::fs::read(folder.at("cat/1.jpg")).unwrap());
    folder.file("notes/readme.txt", "not a class");
    folder.mask("masks/1.png", 1);
    folder.mask("masks/cat/deep/2.png", 1);
    let dataset = folder.open();
    assert_eq!(dataset.layout(), DatasetLayout::ClassFolders);
    let expected = [
        ("cat/1.jpg", vec!["cat", "dog"]),
        ("cat/deep/2.jpg", vec!["cat"]),
        ("dog/3.jpg", vec!["dog"]),
        ("none.jpg", vec![]),
    ];
    assert_eq!(tags(&dataset), BTreeMap::from(expected));
    assert!(dataset.truth(0).is_some() && dataset.truth(1).is_some());
    let found = problems(&folder, dataset.problems());
    let is_about_images = |kind| matches!(kind, ProblemKind::ImageWithoutTag | ProblemKind::AmbiguousName);
    assert!(!found.iter().any(|(kind, ..)| is_about_images(*kind)), "{found:#?}");
}

#[test]
fn equal_names_of_different_pictures_are_reported_and_may_be_kept_apart() {
    let folder = Folder::new();
    folder.images(["cat/1.jpg", "dog/1.jpg"]);
    let dataset = folder.open();
    assert_eq!(tags(&dataset), BTreeMap::from([("cat/1.jpg", vec!["cat", "dog"])]));
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::AmbiguousName,
        "dog/1.jpg",
        "different content",
    );
    let apart =
        folder.open_with(&OpenOptions { same_name: SameName::SeveralImages, ..OpenOptions::default() });
    assert_eq!(tags(&apart), BTreeMap::from([("cat/1.jpg", vec!["cat"]), ("dog/1.jpg", vec!["dog"])]));
    assert_eq!(apart.problems(), []);
}

#[test]
fn class_folders_may_lie_below_split_folders_and_a_class_may_be_called_train() {
    let folder = Folder::new();
    folder.images([
        "images/train/cat/1.jpg", "images/train/dog/2.jpg", "images/validation/cat/3.jpg",
        "images/train/4.jpg",
    ]);
    let dataset = folder.open();
    assert_eq!(dataset.classes().names(), ["background", "cat", "dog"]);
    let train = vec!["train/4.jpg", "train/cat/1.jpg", "train/dog/2.jpg"];
    assert_eq!(splits(&dataset), BTreeMap::from([("train", train), ("val", vec!["validation/cat/3.jpg"])]));

    let folder = Folder::new();
    folder.images(["train/1.jpg", "bus/2.jpg"]);
    let dataset = folder.open();
    assert_eq!(dataset.classes().names(), ["background", "bus", "train"]);
    assert!(dataset.splits().is_empty());
}

#[test]
fn label_studio_exports_are_read_in_both_forms() {
    let tasks = r#"[
      {"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-a.jpg"}, "annotations": [
        {"result": [{"type": "choices", "value": {"choices": ["dog", "cat"]}}]},
        {"was_cancelled": true, "result": [{"type": "choices", "value": {"choices": ["hat"]}}]}]},
      {"id": 2, "data": {"image": "/data/local-files/?d=photos/b%20c.jpg"}, "annotations": [
        {"result": [{"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["dog"]}}]}]},
      {"id": 3, "data": {"img": "s3://bucket/far/away/d.jpg"}, "annotations": [{"result": []}]},
      {"id": 4, "data": {"image": "https://host/e.jpg?sig=1/2"}, "annotations": []},
      {"id": 5, "data": {"image": "gone.jpg"}, "annotations": [{"result": []}]},
      {"id": 6, "annotations": []}
    ]"#;
    let flat = r#"[
      {"image": "/data/upload/3/0a1b2c3d-a.jpg", "id": 1, "mood": {"choices": ["dog", "cat"]}, "annotator": 1, "annotation_id": 1, "created_at": "2026", "lead_time": 3.5},
      {"image": "/data/local-files/?d=photos/b%20c.jpg", "id": 2, "mood": "dog", "annotator": 1, "annotation_id": 2},
      {"image": "s3://bucket/far/away/d.jpg", "id": 3, "annotator": 1, "annotation_id": 3}
    ]"#;
    let folder = Folder::new();
    folder.images(["images/a.jpg", "photos/b c.jpg", "d.jpg", "e.jpg"]);
    let expected =
        BTreeMap::from([("a.jpg", vec!["cat", "dog"]), ("photos/b c.jpg", vec!["dog"]), ("d.jpg", vec![])]);
    folder.file("project-1.json", flat);
    let dataset = folder.open();
    assert_eq!(dataset.layout(), DatasetLayout::LabelStudio);
    assert_eq!(tags(&dataset), expected);

    folder.file("project-1.json", tasks);
    let dataset = folder.open();
    assert_eq!(tags(&dataset), expected);
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::ImageWithoutTag, "project-1.json", "task 4 is not annotated");
    demand(&found, ProblemKind::TagWithoutImage, "gone.jpg", "task 5");
    demand(&found, ProblemKind::UnreadableAnnotation, "project-1.json", "task 6: no image in it");
    assert!(
        notes(&dataset).contains("not in project-1.json, left out: ") && notes(&dataset).contains("e.jpg")
    );
}

#[test]
fn cvat_image_tags_are_read_up_to_a_break() {
    let xml = r#"<?xml version="1.0" encoding="utf-8"?>
      <annotations><version>1.1</version><meta><task><labels><label><name>dog</name></label></labels></task></meta>
      <image id="0" name="sub/a.jpg" width="6" height="4" subset="Train"><tag label="dog" source="manual"></tag><tag label="R&amp;D"/></image>
      <image id="1" name="b.jpg" width="6" height="4"/>
      <image id="2" name="gone.jpg" subset="default"><box label="dog" xtl="0"></box></image>
      <image id="3" name="c.jpg"><box label="dog" xtl="0"></box></image>
      </annotations>"#;
    let folder = Folder::new();
    folder.images(["images/sub/a.jpg", "images/b.jpg", "images/c.jpg"]);
    folder.file("annotations.xml", xml);
    let dataset = folder.open();
    assert_eq!(dataset.layout(), DatasetLayout::Cvat);
    assert_eq!(
        tags(&dataset),
        BTreeMap::from([("b.jpg", vec![]), ("c.jpg", vec!["dog"]), ("sub/a.jpg", vec!["R&D", "dog"])])
    );
    assert_eq!(splits(&dataset), BTreeMap::from([("train", vec!["sub/a.jpg"])]));
    demand(&problems(&folder, dataset.problems()), ProblemKind::TagWithoutImage, "gone.jpg", "image 2");

    folder.file("annotations.xml", &xml[..xml.find("<box").unwrap()]);
    let dataset = folder.open();
    assert_eq!(dataset.images().len(), 2);
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::UnreadableAnnotation,
        "annotations.xml",
        "truncated",
    );
    folder.file("annotations.xml", "<svg></svg>");
    let dataset = folder.open();
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::UnreadableAnnotation,
        "annotations.xml",
        "<annotations>",
    );
}

#[test]
fn a_folder_of_nothing_known_lists_what_was_expected() {
    let folder = Folder::new();
    folder.file("notes.md", "nothing yet");
    let error = Dataset::open(folder.path(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, DataError::NothingRecognised { .. }));
    for words in
        ["VOC devkit", "instances_*.json", "tags.csv", "class folders", "Label Studio", "annotations.xml"]
    {
        assert!(error.to_string().contains(words), "{error}");
    }
    let missing = Dataset::open(&folder.path().join("none"), &OpenOptions::default()).unwrap_err();
    assert!(matches!(missing, DataError::Io { .. }));
}
