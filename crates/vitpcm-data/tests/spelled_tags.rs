//! Tags as people write them: spellings that are one class, words for "nothing", names that look like slips, and names of
//! images that fit only in part.

mod folders;

use folders::{Folder, demand, notes, problems, tags};
use std::collections::BTreeMap;
use vitpcm_data::{Dataset, ImageFile, InspectOptions, OpenOptions, ProblemKind, find_images, inspect};

/// A folder of six images with a tag file of this content.
fn leaves(file: &str, content: &str) -> Folder {
    let folder = Folder::new();
    folder.images(["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg", "f.jpg"]);
    folder.file(file, content);
    folder
}

#[test]
fn spellings_that_differ_in_case_and_white_space_are_one_class() {
    let rows = "image,tags\na.jpg,Leaf rust\nb.jpg,leaf  rust\nc.jpg,leaf rust;Miner\nd.jpg,LEAF RUST\ne.jpg,miner\nf.jpg,leaf rust\n";
    let dataset = leaves("tags.csv", rows).open();
    // The most frequent spelling names the class; of `Miner` and `miner`, once each, the alphabetically last.
    assert_eq!(dataset.classes().names(), ["background", "leaf rust", "miner"]);
    assert_eq!(tags(&dataset)["c.jpg"], ["leaf rust", "miner"]);
    assert_eq!(tags(&dataset)["d.jpg"], ["leaf rust"]);
    assert_eq!(dataset.problems(), []);
    let said = notes(&dataset);
    let merged = "`LEAF RUST` (1 image), `Leaf rust` (1 image), `leaf  rust` (1 image), `leaf rust` (2 images) are one class, \
                  `leaf rust`";
    assert!(
        said.contains(merged) && said.contains("`Miner` (1 image), `miner` (1 image) are one class, `miner`"),
        "{said}"
    );
}

#[test]
fn every_layout_folds_spellings() {
    let json =
        leaves("tags.json", r#"{"a.jpg": ["Rust"], "b.jpg": ["rust"], "c.jpg": "rust, MINER"}"#).open();
    assert_eq!(json.classes().names(), ["background", "MINER", "rust"]);
    let one_hot = leaves("tags.csv", "image,Rust,rust,none\na.jpg,1,0,0\nb.jpg,0,1,0\nc.jpg,0,0,1\n").open();
    assert_eq!(one_hot.classes().names(), ["background", "Rust"]);
    assert_eq!(
        tags(&one_hot),
        BTreeMap::from([("a.jpg", vec!["Rust"]), ("b.jpg", vec!["Rust"]), ("c.jpg", vec![])])
    );
    let xml = r#"<annotations><image id="0" name="a.jpg"><tag label="Rust"/></image><image id="1" name="b.jpg"><tag label="rust"/></image></annotations>"#;
    assert_eq!(leaves("annotations.xml", xml).open().classes().names(), ["background", "rust"]);

    let folder = Folder::new();
    folder.images(["Rust/1.jpg", "rust/1.jpg", "rust/2.jpg", "None/3.jpg", "miner/2.jpg"]);
    let dataset = folder.open();
    assert_eq!(dataset.classes().names(), ["background", "miner", "rust"]);
    // Two folders of one class number their images each for itself; in folders of two classes a name is one image.
    assert_eq!(dataset.images().len(), 4, "{:?}", tags(&dataset));
    assert_eq!(tags(&dataset)["None/3.jpg"], [""; 0]);
}

#[test]
fn a_class_list_is_met_by_any_spelling_and_asks_about_slips() {
    let folder = leaves("tags.csv", "image,tags\na.jpg,rust\nb.jpg,\"Spot, brown\"\nc.jpg,RUSTT\n");
    folder.file("classes.txt", "Rust\nspot, brown\n");
    let dataset = folder.open();
    assert_eq!(tags(&dataset)["a.jpg"], ["Rust"]);
    assert_eq!(tags(&dataset)["b.jpg"], ["spot, brown"], "a listed name is not split");
    let found = problems(&folder, dataset.problems());
    demand(
        &found,
        ProblemKind::UnknownClass,
        "tags.csv",
        "`RUSTT` of c.jpg is not in the class list (did you mean `Rust`?)",
    );
    assert!(notes(&dataset).contains("`rust` (1 image) is read as `Rust`"), "{}", notes(&dataset));
}

#[test]
fn cells_are_split_at_the_separators_that_occur() {
    let dataset =
        leaves("tags.csv", "image,tags\na.jpg,\"rust, miner\"\nb.jpg,rust|miner\nc.jpg,rust; miner\n").open();
    assert_eq!(dataset.classes().names(), ["background", "miner", "rust"]);
    assert!(tags(&dataset).values().all(|tags| tags.len() == 2));
    assert!(
        notes(&dataset).contains("2 cells split into several tags, for example `rust, miner`"),
        "{}",
        notes(&dataset)
    );
}

#[test]
fn words_for_nothing_are_no_tag_and_healthy_is_a_class_with_a_warning() {
    let rows = "image,tags\na.jpg,rust\nb.jpg,none\nc.jpg,N/A\nd.jpg,\ne.jpg,Healthy\nf.jpg,background\n";
    let folder = leaves("tags.csv", rows);
    let dataset = folder.open();
    assert_eq!(dataset.classes().names(), ["background", "Healthy", "rust"]);
    let said = notes(&dataset);
    assert!(said.contains("`none` (1 image) is read as no tag"), "{said}");
    let inspection = inspect(&dataset, &InspectOptions::default());
    assert_eq!((inspection.untagged_images, &inspection.problems[..]), (4, &[][..]));
    let warnings: Vec<String> = inspection.warnings.iter().map(ToString::to_string).collect();
    assert!(
        warnings.iter().any(|it| it.contains("`Healthy` (1 image)")
            && it.contains("leave the tags of these images empty (class folders: move the images")),
        "{warnings:#?}"
    );
}

#[test]
fn names_that_look_like_slips_are_warned_of_and_not_merged() {
    let rows =
        "image,tags\na.jpg,cat\nb.jpg,cat\nc.jpg,catt\nd.jpg,leaf-rust;cats\ne.jpg,leaf rust\nf.jpg,\n";
    let dataset = leaves("tags.csv", rows).open();
    assert_eq!(dataset.classes().num_foreground(), 5);
    let inspection = inspect(&dataset, &InspectOptions::default());
    let warnings: Vec<String> = inspection.warnings.iter().map(ToString::to_string).collect();
    let expected = [
        "`catt` (1 image) and `cat` (2 images)",
        "`cat` for `catt`",
        "`leaf-rust` for `leaf rust`",
        "`cat` for `cats`",
    ];
    for words in expected {
        assert!(warnings[0].contains(words), "{words}: {warnings:#?}");
    }
}

#[test]
fn a_hundred_images_that_the_table_does_not_name_are_one_note() {
    let folder = Folder::new();
    (0..100).for_each(|i| _ = folder.image(format!("{i:03}.png")));
    folder.file("tags.csv", "image,tags\n000.png,rust\n001.png,\n");
    let dataset = folder.open();
    assert_eq!((dataset.images().len(), dataset.problems()), (2, &[][..]));
    assert!(
        notes(&dataset).starts_with("98 images not in tags.csv, left out: 002.png, "),
        "{}",
        notes(&dataset)
    );
}

/// The tags that a file gives to images that were found elsewhere, by path below the folder.
fn tags_for(folder: &Folder, file: &str, images: &[&str]) -> (BTreeMap<String, Vec<String>>, Dataset) {
    let images: Vec<ImageFile> = images.iter().flat_map(|path| find_images(&folder.at(path)).0).collect();
    let options = OpenOptions { images: Some(images), ..OpenOptions::default() };
    let dataset = Dataset::open(&folder.at(file), &options).unwrap();
    let below =
        |path: &std::path::Path| path.strip_prefix(folder.path()).unwrap().to_string_lossy().into_owned();
    let paths = dataset.images().iter().map(|image| below(&image.path));
    let names = tags(&dataset).into_values().map(|tags| tags.into_iter().map(str::to_string).collect());
    (paths.zip(names).collect(), dataset)
}

#[test]
fn images_are_named_relative_to_the_tag_file_to_the_folder_given_or_by_file_name() {
    let folder = Folder::new();
    folder.images(["images/a.jpg", "images/x/b.jpg", "other/c.JPG"]);
    let expected = BTreeMap::from([("images/a.jpg".to_string(), vec!["cat".to_string()])]);
    for name in [
        "images/a.jpg", "./images/a", "a.jpg", "A.JPG", "photos/a.jpg", "C:\\\\photos\\\\a.jpg",
        "/home/me/images/a.jpg",
    ] {
        folder.file("tags.csv", format!("image,tags\n{name},cat\nimages/x/b.jpg,dog\n"));
        for given in ["images/a.jpg", "images"] {
            let mut found = tags_for(&folder, "tags.csv", &[given]).0;
            found.remove("images/x/b.jpg");
            assert_eq!(found, expected, "{name} for {given}");
        }
    }
    folder.file("tables/tags.csv", "image,tags\n../other/c.jpg,dog\nx/b,cat\n");
    let found = tags_for(&folder, "tables/tags.csv", &["other", "images"]).0;
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn a_name_that_fits_two_images_is_a_clash_and_both_are_named() {
    let folder = Folder::new();
    folder.images(["a.jpg", "images/a.jpg", "images/x/s.jpg", "images/y/s.jpg"]);
    folder.file("tags.csv", "image,tags\na.jpg,cat\ns.jpg,dog\n");
    let (found, dataset) = tags_for(&folder, "tags.csv", &["images"]);
    assert!(found.is_empty(), "{found:?}");
    let details: Vec<&str> = dataset.problems().iter().map(|problem| problem.detail.as_str()).collect();
    assert!(
        details[0].contains("/a.jpg, ") && details[0].contains("/images/a.jpg; write its folder too"),
        "{details:?}"
    );
    assert!(details[1].contains("x/s.jpg, y/s.jpg"), "{details:?}");
    assert!(dataset.problems().iter().all(|problem| problem.kind == ProblemKind::AmbiguousName));
}

#[test]
fn tags_of_another_image_of_the_same_name_are_not_taken() {
    let folder = Folder::new();
    folder.images(["train/1.jpg", "val/1.jpg", "val/2.jpg"]);
    // The whole name wins, whichever row comes first; an image that is there is not looked for elsewhere.
    for rows in ["train/1.jpg,cat\nval/1.jpg,dog\n", "val/1.jpg,dog\ntrain/1.jpg,cat\n"] {
        folder.file("tags.csv", format!("image,tags\n{rows}"));
        let found = tags_for(&folder, "tags.csv", &["val"]).0;
        assert_eq!(found, BTreeMap::from([("val/1.jpg".to_string(), vec!["dog".to_string()])]));
    }
    // What is left over is a tag without an image.
    let folder = Folder::new();
    folder.images(["val/1.jpg"]);
    for rows in ["old/1.jpg,cat\nval/1.jpg,dog\n", "val/1.jpg,dog\nold/1.jpg,cat\n"] {
        folder.file("tags.csv", format!("image,tags\n{rows}"));
        let dataset = folder.open();
        assert_eq!(tags(&dataset), BTreeMap::from([("val/1.jpg", vec!["dog"])]));
        let found = problems(&folder, dataset.problems());
        demand(&found, ProblemKind::TagWithoutImage, "old/1.jpg", "a row of tags.csv names `old/1.jpg`");
    }
    // Two rows that fit only by file name: which one is meant is not known.
    let folder = Folder::new();
    folder.images(["val/1.jpg", "val/2.jpg"]);
    folder.file("tags.csv", "image,tags\nold/1.jpg,cat\nnew/1.jpg,dog\nold/2.jpg,cat\n");
    let dataset = folder.open();
    assert_eq!(tags(&dataset), BTreeMap::from([("val/2.jpg", vec!["cat"])]));
    let found = problems(&folder, dataset.problems());
    demand(&found, ProblemKind::AmbiguousName, "val/1.jpg", "`old/1.jpg` and `new/1.jpg`");
    assert!(
        notes(&dataset).contains("1 image found by file name, for example `old/2.jpg` as val/2.jpg"),
        "{}",
        notes(&dataset)
    );
}

#[test]
fn tags_that_join_others_of_the_file_are_these() {
    let rows = "image,tags\na.jpg,rust\nb.jpg,Miner\nc.jpg,rust/miner\nd.jpg,rust + miner; rust\ne.jpg,rust and miner\nf.jpg,black and white\n";
    let dataset = leaves("tags.csv", rows).open();
    assert_eq!(dataset.classes().names(), ["background", "black and white", "miner", "rust"]);
    assert!(["c.jpg", "d.jpg", "e.jpg"].iter().all(|image| tags(&dataset)[image] == ["miner", "rust"]));
    let said = notes(&dataset);
    assert!(said.contains("`rust/miner` (1 image) is read as `rust` and `miner`"), "{said}");
    // A class list decides what is one class.
    let folder = leaves("tags.csv", rows);
    folder.file("classes.txt", "rust\nminer\nrust/miner\nrust + miner\nrust and miner\nblack and white\n");
    assert_eq!(tags(&folder.open())["c.jpg"], ["rust/miner"]);
}
