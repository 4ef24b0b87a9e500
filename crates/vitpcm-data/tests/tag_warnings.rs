//! Every warning about tags on a data set made to deserve it, silence on one that does not, thresholds at their edges.

mod folders;

use folders::Folder;
use vitpcm_data::{
    ClassPair, ImageDescription, InputGrid, InspectDepth, InspectOptions, TagWarning, Tags, describe_images,
    inspect, tag_warnings,
};
use vitpcm_masks::Classes;

/// So many images with these tags.
type Rows<'a> = &'a [(usize, &'a [&'a str])];

fn warnings_of_sizes(classes: &[&str], rows: Rows<'_>, sizes: &[(u32, u32)]) -> Vec<TagWarning> {
    let classes = Classes::from_names(classes.iter().copied()).unwrap();
    let index = |name: &&str| u8::try_from(classes.index_of(name).unwrap()).unwrap();
    let tags: Vec<Tags> = rows
        .iter()
        .flat_map(|&(count, names)| vec![names.iter().map(index).collect::<Tags>(); count])
        .collect();
    let describe =
        |(i, tags)| ImageDescription { name: "", tags, size: sizes.get(i).copied(), content: None };
    let images: Vec<_> = tags.iter().enumerate().map(describe).collect();
    tag_warnings(&classes, &images, InputGrid::default())
}

fn warnings(classes: &[&str], rows: Rows<'_>) -> Vec<TagWarning> {
    warnings_of_sizes(classes, rows, &[])
}

/// Demands one warning with these words in it.
#[track_caller]
fn demand(found: &[TagWarning], words: &[&str]) {
    let [warning] = found else { panic!("one warning expected, not {found:#?}") };
    let text = warning.to_string();
    words.iter().for_each(|words| assert!(text.contains(words), "`{words}` is not in: {text}"));
}

#[test]
fn sound_tags_give_no_warning() {
    let classes = ["cat", "dog"];
    assert_eq!(warnings(&classes, &[(20, &["cat"]), (20, &["dog"]), (5, &["cat", "dog"])]), []);
    // With several classes, each is a negative example of the others.
    assert_eq!(warnings(&classes, &[(15, &["cat"]), (15, &["dog"])]), []);
    assert_eq!(warnings(&["water"], &[(15, &["water"]), (15, &[])]), []);
    assert_eq!(warnings(&["water"], &[]), []);
}

#[test]
fn images_without_any_tag_teach_nothing() {
    let found = warnings(&["cat"], &[(7, &[])]);
    assert_eq!(found, [TagWarning::NoTags { images: 7 }]);
    demand(&found, &["none of the 7 images has a tag"]);
}

#[test]
fn the_only_class_in_every_image_leaves_the_background_unknown() {
    let found = warnings(&["water"], &[(300, &["water"])]);
    assert_eq!(found, [TagWarning::OnlyClassEverywhere { class: "water".into(), images: 300 }]);
    demand(&found, &["`water` is the only class", "300 of 300", "background", "leave their tags empty"]);
    // Said of few images as well, and with one counterexample it is another matter.
    let kinds = warnings(&["water"], &[(3, &["water"])]);
    assert!(
        matches!(&kinds[..], [TagWarning::OnlyClassEverywhere { .. }, TagWarning::FewImages { .. }]),
        "{kinds:?}"
    );
    assert!(matches!(
        &warnings(&["water"], &[(300, &["water"]), (1, &[])])[..],
        [TagWarning::FewNegatives { .. }]
    ));
}

#[test]
fn a_class_needs_images_without_it() {
    let classes = ["leaf", "rust"];
    let found = warnings(&classes, &[(20, &["leaf"]), (20, &["leaf", "rust"])]);
    demand(&found, &["`leaf` is in 40 of 40 images", "add images without it"]);
    // Fourteen are a handful, fifteen are enough.
    let with_negatives = |count| warnings(&["leaf"], &[(60, &["leaf"]), (count, &[])]);
    demand(&with_negatives(14), &["`leaf` is in 60 of 74 images"]);
    assert_eq!(with_negatives(15), []);
    // In a large data set it is the share that counts: 5 % and less are too few.
    let with_negatives = |count| warnings(&["leaf"], &[(1900, &["leaf"]), (count, &[])]);
    demand(&with_negatives(100), &["`leaf` is in 1900 of 2000 images", "at least 5 %"]);
    assert_eq!(with_negatives(101), []);
}

#[test]
fn classes_that_always_come_together_are_named() {
    let classes = ["rust", "miner"];
    let together = |both, alone| {
        warnings(&classes, &[(both, &["rust", "miner"]), (alone, &["rust"]), (40, &["miner"]), (40, &[])])
    };
    // 95 % of the images with rust, and just below.
    let pair = ClassPair {
        class: "rust".into(),
        other: "miner".into(),
        class_images: 20,
        other_images: 59,
        together: 19,
    };
    let found = together(19, 1);
    assert_eq!(found, [TagWarning::AlwaysTogether { pairs: vec![pair] }]);
    demand(&found, &["19 of 20 images with `rust` also have `miner`", "one without the other"]);
    assert_eq!(together(18, 2), []);
    // Equal sets, whatever their order in the class list.
    demand(
        &warnings(&["miner", "rust"], &[(30, &["rust", "miner"]), (30, &[])]),
        &["30 of 30 images with `miner` also have `rust`"],
    );
}

#[test]
fn few_images_together_may_be_chance() {
    let together =
        |count| warnings(&["rust", "miner"], &[(count, &["rust", "miner"]), (40, &["miner"]), (40, &[])]);
    assert!(matches!(&together(4)[..], [TagWarning::FewImages { .. }]));
    assert!(matches!(&together(5)[..], [TagWarning::AlwaysTogether { .. }, TagWarning::FewImages { .. }]));
}

#[test]
fn what_is_in_every_image_is_not_also_named_as_a_companion() {
    let found = warnings(&["leaf", "rust"], &[(40, &["leaf"]), (40, &["leaf", "rust"])]);
    assert!(matches!(&found[..], [TagWarning::FewNegatives { .. }]), "{found:?}");
}

#[test]
fn fourteen_images_of_a_class_are_few() {
    let with_dogs = |count| warnings(&["cat", "dog"], &[(20, &["cat"]), (count, &["dog"]), (20, &[])]);
    demand(&with_dogs(14), &["`dog` has 14 images", "fewer than 15"]);
    assert_eq!(with_dogs(15), []);
    demand(&with_dogs(1), &["`dog` has 1 image:"]);
}

#[test]
fn classes_that_are_numbers_are_named() {
    let found = warnings(&["0", "1"], &[(20, &["0"]), (20, &["1"])]);
    demand(&found, &["`0` (20 images), `1` (20 images)", "the classes are numbers", "use class names"]);
    assert_eq!(warnings(&["type 1", "2"], &[(20, &["type 1"]), (20, &["2"])]), []);
}

#[test]
fn classes_without_images_are_named_apart_from_rare_ones() {
    let found = warnings(&["cat", "dog", "eel"], &[(20, &["cat"]), (20, &["dog"])]);
    assert_eq!(found, [TagWarning::UnusedClasses { classes: vec!["eel".into()] }]);
}

#[test]
fn long_lists_are_cut_in_sentences_and_whole_in_fields() {
    let names: Vec<String> = (0..20).map(|i| format!("c{i}")).collect();
    let classes: Vec<&str> = names.iter().map(String::as_str).collect();
    let tags: Vec<[&str; 1]> = classes.iter().map(|&class| [class]).collect();
    let rows: Vec<(usize, &[&str])> = tags.iter().map(|tags| (3, &tags[..])).collect();
    let found = warnings(&classes, &rows);
    demand(&found, &["`c7` has 3 images and 12 more"]);
    assert!(matches!(&found[..], [TagWarning::FewImages { classes }] if classes.len() == 20));
}

#[test]
fn large_images_hide_small_things() {
    let found = |sizes: &[(u32, u32)]| warnings_of_sizes(&["cat"], &[(20, &["cat"]), (20, &[])], sizes);
    demand(
        &found(&[(4000, 3000); 40]),
        &["40 of 40 images", "4000 pixels", "reduced to 448", "smaller than about 125 pixels", "tiles"],
    );
    // Four times the input, in either direction, and one pixel more.
    assert_eq!(found(&[(1792, 1792); 40]), []);
    demand(&found(&[(300, 1793); 40]), &["smaller than about 57 pixels"]);
    // One image in ten, and fewer; images of unknown size do not count.
    let mixed = |large: usize| [vec![(4000, 3000); large], vec![(500, 400); 20 - large]].concat();
    demand(&found(&mixed(2)), &["2 of 20 images"]);
    assert_eq!(found(&mixed(1)), []);
}

#[test]
fn a_finer_grid_shows_smaller_things() {
    let (classes, tags) = (Classes::from_names(["cat"]).unwrap(), [Tags::default(), Tags::from_iter([1])]);
    let image =
        |i: usize| ImageDescription { name: "", tags: &tags[i % 2], size: Some((2000, 2000)), content: None };
    let images: Vec<_> = (0..40).map(image).collect();
    let found = |patches| tag_warnings(&classes, &images, InputGrid { patches, patch: 14 });
    assert_eq!(found(28).len(), 1);
    assert_eq!(found(48), []);
}

/// A folder of cats and negatives, enough of both.
fn sound_folder(more_rows: &str) -> Folder {
    let folder = Folder::new();
    let mut rows = "image,tags\n".to_string();
    for i in 0..30 {
        folder.image(format!("images/{i:02}.png"));
        rows += &format!("{i:02}.png,{}\n", if i % 2 == 0 { "cat" } else { "" });
    }
    folder.file("tags.csv", rows + more_rows);
    folder
}

#[test]
fn a_sound_folder_has_neither_problems_nor_warnings() {
    let folder = sound_folder("");
    let inspection = inspect(&folder.open(), &InspectOptions::default());
    assert_eq!((inspection.images, inspection.untagged_images), (30, 15));
    assert_eq!(inspection.problems, [], "an empty tag cell is a statement, not a problem");
    assert_eq!(inspection.warnings, []);
}

#[test]
fn equal_pictures_under_different_tags_contradict_each_other() {
    let folder = sound_folder("copy.png,\ntwin.png,cat\n");
    let original = std::fs::read(folder.at("images/00.png")).unwrap();
    folder.file("images/copy.png", &original);
    folder.file("images/twin.png", std::fs::read(folder.at("images/02.png")).unwrap());
    let dataset = folder.open();
    let inspection = inspect(&dataset, &InspectOptions::default());
    demand(&inspection.warnings, &["1 picture is", "00.png (cat) = copy.png (no tags)"]);
    let described = describe_images(dataset.images(), &Default::default());
    let found = tag_warnings(dataset.classes(), &described, InputGrid::default());
    assert_eq!(found, inspection.warnings, "what `train` says is what `data inspect` says");
    let json = serde_json::to_value(&inspection).unwrap();
    assert_eq!(json["warnings"][0]["kind"], "contradictory-duplicates");
    assert_eq!(json["warnings"][0]["groups"][0][1]["image"], "copy.png");
    let quick = InspectOptions { depth: InspectDepth::Headers, ..InspectOptions::default() };
    assert_eq!(inspect(&dataset, &quick).warnings, [], "contents are not compared by headers");
}

#[test]
fn warnings_are_about_the_training_images() {
    let folder = Folder::new();
    let mut rows = "image,tags,split\n".to_string();
    for i in 0..60 {
        folder.image(format!("{i:02}.png"));
        let split = if i < 20 { "train" } else { "val" };
        rows += &format!("{i:02}.png,{},{split}\n", if i % 2 == 0 { "cat" } else { "" });
    }
    folder.file("tags.csv", rows);
    let inspection = inspect(&folder.open(), &InspectOptions::default());
    assert_eq!((inspection.images, inspection.training_images), (60, 20));
    demand(&inspection.warnings, &["`cat` has 10 images"]);
}

#[test]
fn an_image_that_lost_its_tags_is_a_problem() {
    let folder = sound_folder("odd.png,unicorn\n");
    folder.image("images/odd.png");
    folder.file("classes.txt", "cat\n");
    let dataset = folder.open();
    let found = folders::problems(&folder, dataset.problems());
    folders::demand(
        &found,
        vitpcm_data::ProblemKind::ImageWithoutTag,
        "images/odd.png",
        "none of its tags is in the class list",
    );
    assert_eq!(found.len(), 2, "and the unknown class: {found:#?}");
}
