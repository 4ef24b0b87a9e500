//! Tag files of many rows: what is held grows with the images and tags that they name, not with the rows. One test at a time,
//! because memory is counted for the whole program.

use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use vitpcm_data::{Dataset, OpenOptions, ProblemKind};
use vitpcm_fuzz::allocation::{CountingAllocator, peak_of};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static ALONE: Mutex<()> = Mutex::new(());

const NUM_ROWS: usize = 200_000;

/// Buffers, and what a hundred images and ten thousand problems take.
const OVERHEAD: usize = 8 << 20;

fn folder_of_images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let picture = image::RgbImage::new(2, 2);
    (0..100).for_each(|i| picture.save(folder.path().join(format!("{i}.png"))).unwrap());
    folder
}

/// Opens a tag file of this content, and checks that it took less than a few bytes a row.
#[track_caller]
fn open_within_bounds(folder: &Path, file: &str, content: &str) -> Dataset {
    let path = folder.join(file);
    std::fs::write(&path, content).unwrap();
    let (dataset, peak) = peak_of(|| Dataset::open(&path, &OpenOptions::default()).unwrap());
    assert!(peak < OVERHEAD, "{file}: {peak} bytes, {} a row", peak / NUM_ROWS);
    dataset
}

fn rows(row: impl Fn(usize) -> String) -> String {
    (0..NUM_ROWS).fold(String::new(), |mut text, i| {
        text.write_str(&row(i)).unwrap();
        text
    })
}

#[test]
fn rows_of_the_same_images_and_tags_take_no_memory_each() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = folder_of_images();
    let csv = rows(|i| format!("{}.png,tag {};tag {},train\n", i % 100, i % 7, i % 3));
    let json = rows(|i| format!(",{{\"image\": \"{}.png\", \"tags\": [\"tag {}\"]}}\n", i % 100, i % 7));
    let tasks = rows(|i| {
        let result = format!("[{{\"value\": {{\"choices\": [\"tag {}\"]}}}}]", i % 7);
        format!(
            ",{{\"data\": {{\"image\": \"{}.png\"}}, \"annotations\": [{{\"result\": {result}}}]}}\n",
            i % 100
        )
    });
    for (file, content) in [
        ("tags.csv", format!("image,tags,split\n{csv}")),
        ("tags.json", format!("[{}]", &json[1..])),
        ("tags.jsonl", json.replace(",{", "{")),
        ("tasks.json", format!("[{}]", &tasks[1..])),
    ] {
        let dataset = open_within_bounds(folder.path(), file, &content);
        assert_eq!((dataset.images().len(), dataset.classes().len()), (100, 8), "{file}");
        assert!(dataset.images().iter().all(|image| image.tags.len() == 7), "{file}");
        let repeated = dataset.problems().iter().filter(|it| it.kind == ProblemKind::DuplicateEntry);
        assert_eq!(repeated.count(), 100, "{file}: one problem an image, however many rows");
    }
}

#[test]
fn rows_that_name_no_image_are_listed_up_to_a_number_and_counted() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = folder_of_images();
    let long_path = "a folder of a long name/".repeat(8);
    let content = rows(|i| format!("{long_path}{i}.jpg,dog\n"));
    let path = folder.path().join("tags.csv");
    std::fs::write(&path, format!("image,tags\n0.png,dog\n{content}")).unwrap();
    let (dataset, peak) = peak_of(|| Dataset::open(&path, &OpenOptions::default()).unwrap());
    // Ten thousand problems with a path and a message that names it.
    assert!(peak < 16 << 20, "{peak} bytes");
    let missing: Vec<_> =
        dataset.problems().iter().filter(|it| it.kind == ProblemKind::TagWithoutImage).collect();
    assert_eq!(missing.len(), 10_001);
    assert!(missing.iter().any(|it| it.detail.starts_with("190000 more problems of this kind")));
}

#[test]
fn a_quote_that_is_never_closed_is_not_read_to_the_end_of_the_file() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = folder_of_images();
    let content = rows(|i| {
        format!("{}.png,a tag that is rather long so that the file is longer than is held\n", i % 100)
    });
    let content = format!("image,tags\n\"0.png,dog\n{content}");
    assert!(content.len() > OVERHEAD);
    let dataset = open_within_bounds(folder.path(), "tags.csv", &content);
    let problem = dataset.problems().iter().find(|it| it.kind == ProblemKind::UnreadableAnnotation).unwrap();
    assert_eq!(problem.detail, "line 2: a quote is opened and not closed on this line");
    assert_eq!(dataset.images().len(), 100);
}

#[test]
fn a_workbook_is_held_no_larger_than_its_texts_and_one_row() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = folder_of_images();
    // 200 000 rows of one row's texts; a sheet that would be 200 megabytes of one cell's text.
    let cell = |text: &str| format!("<c t=\"inlineStr\"><is><t>{text}</t></is></c>");
    let heading = format!("<row>{}{}</row>", cell("image"), cell("tags"));
    let many = rows(|i| format!("<row>{}{}</row>", cell(&format!("{}.png", i % 100)), cell("dog")));
    let long = format!("<row>{}{}</row>", cell("0.png"), cell(&"x".repeat(100_000)).repeat(2000));
    for (sheet, num_images) in [(many, 100), (long, 0)] {
        let path = folder.path().join("labels.xlsx");
        std::fs::write(&path, workbook(&format!("{heading}{sheet}"))).unwrap();
        let (dataset, peak) = peak_of(|| Dataset::open(&path, &OpenOptions::default()).unwrap());
        assert!(peak < 2 * OVERHEAD, "{peak} bytes");
        assert_eq!(dataset.images().len(), num_images, "{:?}", dataset.problems());
    }
}

fn workbook(rows: &str) -> Vec<u8> {
    let sheet = format!("<worksheet><sheetData>{rows}</sheetData></worksheet>");
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in [
        ("xl/workbook.xml", "<workbook><sheets><sheet r:id=\"r1\"/></sheets></workbook>"),
        (
            "xl/_rels/workbook.xml.rels",
            "<Relationships><Relationship Id=\"r1\" Target=\"sheet.xml\"/></Relationships>",
        ),
        ("xl/sheet.xml", sheet.as_str()),
    ] {
        archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut archive, text.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}
