//! Files that would take a reader for ever, or nearly so: time must grow with the length of a file, not with its square. Sizes
//! are such that the square would be hours.

mod folders;

use folders::{Folder, demand, problems};
use vitpcm_data::ProblemKind;

/// Each line closes the quote of the line before and opens another: found by reading the reader while it was fuzzed.
#[test]
fn quotes_that_never_close_are_given_up_after_a_hundred() {
    let folder = Folder::new();
    folder.image("a.png");
    folder.file("tags.csv", format!("image,tags\na.png,dog\n{}", "x\",\"\n".repeat(100_000)));
    let dataset = folder.open();
    assert_eq!(dataset.images().len(), 1);
    demand(
        &problems(&folder, dataset.problems()),
        ProblemKind::UnreadableAnnotation,
        "tags.csv",
        "the rest is not read",
    );
}

#[test]
fn one_image_may_have_any_number_of_rows() {
    let folder = Folder::new();
    folder.image("a.png");
    let rows: String = (0..300_000).map(|i| format!("a.png,t{}\n", i)).collect();
    folder.file("tags.csv", format!("image,tags\n{rows}"));
    folder.file("classes.txt", "t7\nt299999\n");
    assert_eq!(folder.open().images()[0].tags.len(), 2);
}

#[test]
fn an_address_of_a_million_folders_is_one_name() {
    let folder = Folder::new();
    folder.image("a.png");
    let address = format!("/data/{}a.png", "x/".repeat(1_000_000));
    let task = |address: &str| {
        let annotations = r#"[{"result": [{"value": {"choices": ["dog"]}}]}]"#;
        format!(r#"{{"annotations": {annotations}, "data": {{"image": "{address}"}}}}"#)
    };
    folder.file("export.json", format!("[{}]", task(&address)));
    assert_eq!(folder.open().images().len(), 1);
}
