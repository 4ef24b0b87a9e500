//! tags.csv, tags.json and tags.jsonl: every way of writing tags that users rely on.

mod folders;

use folders::{Folder, demand, notes, problems, splits, tags};
use std::collections::BTreeMap;
use vitpcm_data::{Dataset, DatasetLayout, ImageLimits, OpenOptions, ProblemKind, SplitBy};

/// Tags that a tag file of this content gives to the images a.jpg, b.jpg and sub/c.png.
#[track_caller]
fn check(file: &str, content: impl AsRef<[u8]>, expected: &[(&str, &[&str])]) {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg", "sub/c.png"]);
    folder.file(file, content);
    let dataset = folder.open();
    let expected: BTreeMap<&str, Vec<&str>> = expected.iter().map(|(k, v)| (*k, v.to_vec())).collect();
    assert_eq!(tags(&dataset), expected, "{:#?}", dataset.problems());
}

const ALL: [(&str, &[&str]); 3] = [("a.jpg", &["cat", "dog"]), ("b.jpg", &[]), ("sub/c.png", &["dog"])];

#[test]
fn tags_separated_by_semicolons_are_read() {
    check("tags.csv", "image,tags\na.jpg,dog;cat\nb.jpg,\nsub/c.png,dog\n", &ALL);
    check("tags.csv", "\u{feff}image,tags\r\na.jpg, dog ; cat ;\r\nb.jpg\r\n\r\nsub/c.png,dog", &ALL);
    check("tags.csv", "tags,file_name\ndog;cat,a.jpg\n,b.jpg\ndog,sub/c.png\n", &ALL);
    check("tags.csv", "a.jpg,dog;cat\nb.jpg,\nsub/c.png,dog\n", &ALL);
    check("tags.csv", "image;tags\na.jpg;dog,cat\nb.jpg;\nsub/c.png;dog\n", &ALL);
    check("tags.csv", "image\ttags\na.jpg\tdog;cat\nb.jpg\t\nsub/c.png\tdog\n", &ALL);
    check("tags.csv", "image,tags\na.jpg,dog\na.jpg,cat\nb.jpg,background\nsub/c.png,dog\n", &ALL);
}

#[test]
fn names_may_have_folders_backslashes_and_no_extension() {
    check("tags.csv", "image,tags\n./a,dog;cat\nsub/../b,\nsub\\c.png,dog\n", &ALL);
    check("tags.csv", "image,tags\na,dog;cat\nb,\nc,dog\n", &ALL);
}

#[test]
fn one_column_for_each_class_is_read() {
    let content = "image,dog,cat\na.jpg,1,1.0\nb.jpg,0,\nsub/c.png,TRUE,false\n";
    check("tags.csv", content, &[("a.jpg", &["dog", "cat"]), ("b.jpg", &[]), ("sub/c.png", &["dog"])]);
    let content = "image;split;dog;cat\na.jpg;train;x;1\nb.jpg;train;0;0\nsub/c.png;val;yes;no\n";
    check("tags.csv", content, &[("a.jpg", &["dog", "cat"]), ("b.jpg", &[]), ("sub/c.png", &["dog"])]);
}

#[test]
fn spreadsheets_in_utf_16_are_read() {
    let text = "\u{feff}image\ttags\r\na.jpg\tdog;cat\r\nb.jpg\t\r\nsub/c.png\tdog\r\n";
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    check("tags.csv", bytes, &ALL);
}

#[test]
fn json_is_read_as_a_list_and_as_an_object() {
    check(
        "tags.json",
        r#"[{"image": "a.jpg", "tags": ["dog", "cat"]}, {"image": "b", "tags": []}, {"file_name": "c.png", "labels": "dog"}]"#,
        &ALL,
    );
    check("tags.json", r#"{"a.jpg": ["dog", "cat"], "b.jpg": [], "sub/c.png": ["dog"]}"#, &ALL);
    check(
        "tags.jsonl",
        "\u{feff}{\"image\": \"a.jpg\", \"tags\": [\"dog\", \"cat\"]}\r\n\r\n{\"image\": \"b.jpg\", \"tags\": []}\r\n{\"image\": \"sub/c.png\", \"tags\": [\"dog\"]}",
        &ALL,
    );
}

#[test]
fn odd_file_names_are_found() {
    let folder = Folder::new();
    let names = [
        "semi;colon.jpg", "com,ma.jpg", "quo\"te.jpg", "sp ace.jpg", "ünï.jpg", "two.dots.jpg",
        "new\nline.jpg",
    ];
    folder.images(names);
    let rows = "image,tags\nsemi;colon.jpg,cat\n\"com,ma.jpg\",cat\n\"quo\"\"te.jpg\",cat\nsp ace.jpg,cat\nünï.jpg,cat\ntwo.dots,cat\n\"new\nline.jpg\",cat\n";
    folder.file("tags.csv", rows);
    let dataset = folder.open();
    assert_eq!(dataset.problems(), []);
    assert_eq!(dataset.images().len(), names.len());
    assert!(dataset.images().iter().all(|image| image.tags.as_slice() == [1]));
}

#[test]
fn a_quote_that_is_not_closed_costs_one_line() {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg", "c.jpg"]);
    folder
        .file("tags.csv", "image,tags\r\n\r\n\"a.jpg,cat\r\nb.jpg,dog\r\n\"c.jpg\",dog\r\ngone.jpg,cat\r\n");
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.csv", "line 3: a quote is opened and not closed");
    assert!(notes(&dataset).contains("1 image not in tags.csv, left out: a.jpg"), "{}", notes(&dataset));
    demand(&found, ProblemKind::TagWithoutImage, "gone.jpg", "line 6");
    assert_eq!(tags(&dataset), BTreeMap::from([("b.jpg", vec!["dog"]), ("c.jpg", vec!["dog"])]));
}

#[test]
fn rows_that_cannot_be_used_are_named_with_their_line() {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg", "x/same.jpg", "y/same.jpg"]);
    std::fs::create_dir(folder.at("folder.jpg")).unwrap();
    let rows = [
        "image,tags", "a.jpg,cat", "a.jpg,cat", "gone.jpg,cat", "../b.jpg,cat", "/etc/passwd,cat",
        "same.jpg,cat", "folder.jpg,cat", "b.jpg,cat,dog", ",cat", "x/../../out.jpg,cat",
    ];
    folder.file("tags.csv", rows.join("\n"));
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::DuplicateEntry, "a.jpg", "line 3 of tags.csv repeats");
    demand(&found, ProblemKind::TagWithoutImage, "gone.jpg", "line 4 of tags.csv");
    demand(&found, ProblemKind::OutsideRoot, "tags.csv", "line 5 names `../b.jpg`");
    demand(&found, ProblemKind::OutsideRoot, "tags.csv", "line 6 names `/etc/passwd`");
    demand(&found, ProblemKind::AmbiguousName, "tags.csv", "x/same.jpg, y/same.jpg");
    demand(&found, ProblemKind::TagWithoutImage, "folder.jpg", "which is a folder");
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.csv", "line 9: `dog` is more than the 2 cells");
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.csv", "line 10: no image");
    demand(&found, ProblemKind::OutsideRoot, "tags.csv", "line 11");
    assert_eq!(dataset.images().len(), 1);
}

#[test]
fn a_bad_json_line_is_named_and_the_others_count() {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg"]);
    folder.file("tags.jsonl", "{\"image\": \"a.jpg\", \"tags\": [\"cat\"]}\n{\"image\": \"b.jpg\", \"tags\"\n{\"image\": \"b.jpg\"}\n[]\n");
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.jsonl", "line 2: not valid JSON");
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.jsonl", "line 3: expected `tags`");
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.jsonl", "line 4: expected an object");
    assert_eq!(tags(&dataset), BTreeMap::from([("a.jpg", vec!["cat"])]));
}

#[test]
fn cells_that_are_neither_zero_nor_one_are_named() {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg"]);
    folder.file("tags.csv", "image,dog,cat\na.jpg,1,maybe\nb.jpg,1,0\n");
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    demand(
        &found,
        ProblemKind::UnreadableAnnotation,
        "tags.csv",
        "line 2: `maybe`, expected 0 or 1, in column `cat`",
    );
}

#[test]
fn class_names_that_cannot_be_used_are_named_with_file_and_row() {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg", "c.jpg"]);
    let rows = format!("image,tags\na.jpg,\u{1b}[31mred\nb.jpg,{}\nc.jpg,cat\n", "x".repeat(1_000_000));
    folder.file("tags.csv", rows);
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    let detail = "line 2: the class name `\\u{1b}[31mred` holds a control character";
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.csv", detail);
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.csv", "line 3: the class name `xxx");
    assert!(dataset.problems().iter().all(|problem| problem.detail.len() < 200));
    assert_eq!(tags(&dataset), BTreeMap::from([("c.jpg", vec!["cat"])]));

    folder.file("tags.csv", "image,cat,\"two\nlines\",dog\na.jpg,1,0,1\nb.jpg,0,1,1\nc.jpg,0,0,0\n");
    let dataset = folder.open();
    assert!(dataset.classes().names().iter().all(|name| !name.contains(char::is_control)));

    folder.file("tags.json", "{\"a.jpg\": [\"two\\nlines\"], \"b.jpg\": [\"dog\"]}");
    std::fs::remove_file(folder.at("tags.csv")).unwrap();
    let dataset = folder.open();
    let found = problems(&folder, dataset.problems());
    let detail = "`a.jpg`: the class name `two\\nlines` holds a control character or a line break; the row is left out";
    demand(&found, ProblemKind::UnreadableAnnotation, "tags.json", detail);
    assert_eq!(tags(&dataset), BTreeMap::from([("b.jpg", vec!["dog"])]));
}

#[test]
fn a_class_folder_that_cannot_be_a_class_is_left_out() {
    let folder = Folder::new();
    folder.images(["cat/a.jpg", "two\nlines/b.jpg"]);
    let dataset = folder.open();
    assert_eq!(dataset.classes().names(), ["background", "cat"]);
    assert_eq!(dataset.images().len(), 1);
    let problem = &dataset.problems()[0];
    assert!(problem.detail.contains("the class name `two\\nlines` holds"), "{problem}");
}

#[test]
fn a_class_list_beside_the_tags_fixes_the_order_and_reports_other_names() {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg"]);
    folder.file("tags.csv", "image,tags\na.jpg,dog;hat\nb.jpg,ant\n");
    folder.file("classes.txt", "dog\ncat\nant\n");
    let dataset = folder.open();
    assert_eq!(dataset.classes().names(), ["background", "dog", "cat", "ant"]);
    assert_eq!(dataset.images()[1].tags.as_slice(), [3]);
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::UnknownClass, "tags.csv", "`hat` of a.jpg is not in the class list");
    let list = folder.file("other.txt", "ant\n");
    let dataset = folder.open_with(&OpenOptions { classes: Some(list), ..OpenOptions::default() });
    assert_eq!(dataset.classes().names(), ["background", "ant"]);
}

#[test]
fn splits_come_from_columns_lists_folders_or_a_share() {
    let folder = Folder::new();
    folder.images(["train/a.jpg", "valid/b.jpg"]);
    let tag_file =
        folder.file("tags.csv", "image,tags,split\ntrain/a.jpg,cat,Validation\nvalid/b.jpg,cat,train\n");
    assert_eq!(
        splits(&folder.open()),
        BTreeMap::from([("train", vec!["valid/b.jpg"]), ("val", vec!["train/a.jpg"])])
    );

    std::fs::write(&tag_file, "image,tags\ntrain/a.jpg,cat\nvalid/b.jpg,cat\n").unwrap();
    let by_folder = BTreeMap::from([("train", vec!["train/a.jpg"]), ("val", vec!["valid/b.jpg"])]);
    assert_eq!(splits(&folder.open()), by_folder);

    folder.file("splits/test.txt", "\u{feff}a\r\nvalid/b.jpg 1\r\ngone\r\n");
    let dataset = folder.open();
    assert_eq!(splits(&dataset), BTreeMap::from([("test", vec!["train/a.jpg", "valid/b.jpg"])]));
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::TagWithoutImage, "splits/test.txt", "line 3 names `gone`");

    let split_by = SplitBy::Folder;
    assert_eq!(splits(&folder.open_with(&OpenOptions { split_by, ..OpenOptions::default() })), by_folder);
    folder.file("lists/mine.txt", "b\n");
    let split_by = SplitBy::Lists(folder.path().join("lists"));
    let dataset = folder.open_with(&OpenOptions { split_by, ..OpenOptions::default() });
    assert_eq!(splits(&dataset), BTreeMap::from([("mine", vec!["valid/b.jpg"])]));
    let split_by = SplitBy::Share { validation: 1.0, seed: 1 };
    let dataset = folder.open_with(&OpenOptions { split_by, ..OpenOptions::default() });
    assert_eq!(splits(&dataset), BTreeMap::from([("val", vec!["train/a.jpg", "valid/b.jpg"])]));
    assert!(dataset.training().indices.is_empty());
}

#[test]
fn masks_lie_beside_the_images_and_never_in_the_samples() {
    let folder = Folder::new();
    folder.images(["images/x/a.jpg", "images/b.jpg", "images/c.jpg"]);
    folder.file("tags.csv", "image,tags\nx/a.jpg,cat\nb.jpg,dog\nc.jpg,dog\n");
    folder.mask("masks/x/a.png", 2);
    folder.mask("masks/b.png", 1);
    folder.mask("masks/left.png", 1);
    let dataset = folder.open();
    let labels = |index: usize| {
        dataset
            .truth(index)
            .map(|truth| truth.read(dataset.classes(), &ImageLimits::default()).unwrap().labels()[0])
    };
    assert_eq!(tags(&dataset).into_keys().collect::<Vec<_>>(), ["b.jpg", "c.jpg", "x/a.jpg"]);
    assert_eq!([labels(0), labels(1), labels(2)], [Some(1), None, Some(2)]);
    assert_eq!(dataset.images()[2].mask_name().to_str(), Some("x/a.png"));
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::MaskMissing, "images/c.jpg", "others have one");
    demand(&found, ProblemKind::MaskWithoutImage, "masks/left.png", "no image");
    let options = OpenOptions { tag_source: vitpcm_data::TagSource::Masks, ..OpenOptions::default() };
    let tags_of_masks = folder.open_with(&options);
    assert_eq!(tags(&tags_of_masks)["x/a.jpg"], ["dog"]);
    assert_eq!(tags(&tags_of_masks)["b.jpg"], ["cat"]);
    assert_eq!(tags(&tags_of_masks)["c.jpg"], ["dog"]);
}

#[test]
fn a_tag_file_of_any_name_may_be_opened_itself() {
    let folder = Folder::new();
    folder.images(["a.jpg"]);
    let csv = folder.file("labels.csv", "image,tags\na.jpg,cat\n");
    let json = folder.file("labels.json", r#"{"a.jpg": ["cat"]}"#);
    for (path, layout) in [(csv, DatasetLayout::TagsCsv), (json, DatasetLayout::TagsJson)] {
        let dataset = Dataset::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!((dataset.layout(), dataset.images().len()), (layout, 1));
    }
}

#[test]
fn of_two_tag_files_one_is_read_and_the_other_named() {
    let folder = Folder::new();
    folder.images(["a.jpg"]);
    folder.file("tags.csv", "image,tags\na.jpg,cat\n");
    folder.file("tags.jsonl", "");
    let dataset = folder.open();
    assert_eq!(dataset.layout(), DatasetLayout::TagsCsv);
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::Ignored,
        "tags.jsonl",
        "read as table of tags (CSV)",
    );
}
