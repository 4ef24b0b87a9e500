//! Tables of tags as spreadsheets, benchmarks and scripts write them, under any name: found, understood, or named with what is
//! missing.

mod folders;

use folders::{Folder, notes, splits, tags};
use std::collections::BTreeMap;
use std::io::Write;
use vitpcm_data::{Dataset, DatasetLayout, InspectOptions, OpenOptions, inspect};
use zip::write::SimpleFileOptions;

const ALL: [(&str, &[&str]); 3] = [("a.jpg", &["miner", "rust"]), ("b.jpg", &[]), ("c.jpg", &["rust"])];

/// A folder of three leaves and this file.
fn leaves(file: &str, content: impl AsRef<[u8]>) -> Folder {
    let folder = Folder::new();
    folder.images(["images/a.jpg", "images/b.jpg", "images/c.jpg"]);
    folder.file(file, content);
    folder
}

#[track_caller]
fn check(file: &str, content: impl AsRef<[u8]>) -> Dataset {
    let dataset = leaves(file, content).open();
    assert_eq!(
        tags(&dataset),
        ALL.map(|(image, tags)| (image, tags.to_vec())).into(),
        "{:#?}",
        dataset.problems()
    );
    assert_eq!(dataset.problems(), []);
    dataset
}

/// What opening says about a folder without usable tags.
fn refusal(folder: &Folder) -> String {
    Dataset::open(folder.path(), &OpenOptions::default()).unwrap_err().to_string()
}

#[test]
fn a_table_is_found_under_any_name_and_by_any_usual_heading() {
    let dataset = check("labels.csv", "id,filename,disease\n1,a.jpg,rust;miner\n2,b.jpg,\n3,c.jpg,rust\n");
    assert_eq!(dataset.layout(), DatasetLayout::TagsCsv);
    assert_eq!(notes(&dataset), "labels.csv: images from `filename`, tags from `disease`; not used: `id`\n");
    check("train.csv", "image_id,label,label_id\na,\"rust, miner\",3\nb,,0\nc,rust,1\n");
    check("annotations.tsv", "File Name\tClass\na.jpg\trust|miner\nb.jpg\t\nc.jpg\trust\n");
    check(
        "Leaves 2024.csv",
        "\u{feff}Photo;What is on it;Height\r\na.jpg;rust,miner;12\r\nb.jpg;;7\r\nc.jpg;rust;9\r\n",
    );
    check("meta.csv", "sep=;\r\nfile;labels\r\na.jpg;rust,miner\r\nb.jpg;\r\nc.jpg;rust\r\n");
    check("list.txt", "image|tags\na.jpg|rust;miner\nb.jpg|\nc.jpg|rust\n");
    check("labels.csv", "image,label1,label2\na.jpg,rust,miner\nb.jpg,,\nc.jpg,,rust\n");
    check("plain.csv", "a.jpg;rust, miner\nb.jpg;\nc.jpg;rust\n");
    check(
        "labels.csv",
        "path,rust,miner,height\n/home/me/a.jpg,1,1,12\nimages/b.jpg,0,0,7\nc.jpg,1,0,3\n"
            .replace("rust,miner", "miner,rust")
            .replace("c.jpg,1,0", "c.jpg,0,1"),
    );
}

#[test]
fn a_heading_with_a_word_for_tags_is_preferred_to_columns_of_numbers() {
    let dataset = check(
        "labels.csv",
        "Image Name,Severity,Disease name,Farm\na.jpg,2,rust;miner,A\nb.jpg,0,,B\nc.jpg,1,rust,B\n",
    );
    assert!(
        notes(&dataset).contains("tags from `Disease name`; not used: `Severity`, `Farm`"),
        "{}",
        notes(&dataset)
    );
    // Columns of 0 and 1 stay one for each class, whatever word is in their headings.
    let rows = "image,disease_rust,disease_miner\na.jpg,1,1\nb.jpg,0,0\nc.jpg,1,0\n";
    assert_eq!(
        leaves("labels.csv", rows).open().classes().names(),
        ["background", "disease_rust", "disease_miner"]
    );
    // One such column beside words: either may be meant.
    let said = refusal(&leaves("labels.csv", "image,night,what\na.jpg,1,rust\nb.jpg,0,\nc.jpg,1,miner\n"));
    assert!(said.contains("which column holds the tags? It may be `what`, `night`"), "{said}");
}

#[test]
fn numbers_of_classes_are_classes_and_warned_of() {
    for rows in ["image,class_id\na.jpg,0\nb.jpg,1\nc.jpg,0\n", "image,label\na.jpg,0\nb.jpg,1\nc.jpg,0\n"] {
        let dataset = leaves("labels.csv", rows).open();
        assert_eq!(dataset.classes().names(), ["background", "0", "1"]);
        let warnings = inspect(&dataset, &InspectOptions::default()).warnings;
        let found =
            warnings.iter().map(ToString::to_string).find(|it| it.contains("the classes are numbers"));
        assert!(found.is_some_and(|it| it.contains("`0` (2 images)")), "{warnings:?}");
    }
}

#[test]
fn a_table_of_boxes_repeats_tags_without_a_problem() {
    let rows = "filename,class,xmin,ymin\na.jpg,rust,1,2\na.jpg,rust,5,6\na.jpg,miner,1,1\nc.jpg,rust,1,2\n";
    let dataset = leaves("labels.csv", rows).open();
    assert_eq!(tags(&dataset)["a.jpg"], ["miner", "rust"]);
    assert_eq!(dataset.problems(), []);
    let dataset = leaves("labels.csv", "image,class\na.jpg,rust\na.jpg,rust\n").open();
    assert!(dataset.problems()[0].detail.contains("repeats an earlier row"), "{:?}", dataset.problems());
}

#[test]
fn a_list_with_white_space_between_image_and_tags_is_read() {
    check("labels.txt", "a.jpg rust, miner\nb.jpg\nc.jpg rust\n");
    let said = refusal(&leaves("labels.txt", "a.jpg is the best\nThese are my leaves.\nThey are green.\n"));
    assert!(said.contains("labels.txt: not read as tags: too few of its lines name an image"), "{said}");
    let said = refusal(&leaves("notes.txt", "These are my leaves.\n"));
    assert!(!said.contains("notes.txt"), "{said}");
}

#[test]
fn json_of_any_name_is_read_or_named() {
    check("labels.json", r#"{"a.jpg": "rust, miner", "b.jpg": [], "c.jpg": ["rust"]}"#);
    check(
        "leaves.json",
        r#"[{"file": "a.jpg", "labels": ["rust", "miner"]}, {"file": "b.jpg", "labels": []}, {"file": "c.jpg", "label": "rust"}]"#,
    );
    let coco = r#"{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [], "categories": []}"#;
    for (content, part) in [
        (coco, "it looks like COCO's; call it instances_NAME.json"),
        (r#"{"x.jpg": ["rust"]}"#, "there is no such image"),
        ("{", "not valid JSON"),
    ] {
        let said = refusal(&leaves("annotations.json", content));
        assert!(said.contains("annotations.json: not read as tags: ") && said.contains(part), "{said}");
    }
    let said = refusal(&leaves("package.json", r#"{"name": "x"}"#));
    assert!(!said.contains("package.json"), "{said}");
}

#[test]
fn a_table_one_level_down_is_read_where_folders_are_not_named_by_class() {
    let rows = "image,tags\na.jpg,rust;miner\nb.jpg,\nc.jpg,rust\n";
    check("images/tags.csv", rows);
    let dataset = check("labels/my leaves.csv", rows);
    let inspection = inspect(&dataset, &InspectOptions::default());
    assert_eq!(inspection.tag_file.as_deref(), Some("labels/my leaves.csv"));

    let folder = Folder::new();
    folder.images(["rust/a.jpg", "miner/b.jpg"]);
    folder.file("rust/notes.csv", "image,tags\na.jpg,brown\n");
    folder.file("labels.txt", "rust\nminer\n");
    let dataset = folder.open();
    assert_eq!((dataset.layout(), dataset.problems()), (DatasetLayout::ClassFolders, &[][..]));
}

#[test]
fn what_excel_leaves_beside_an_open_workbook_is_passed_over() {
    let folder = leaves("labels.csv", "image,tags\na.jpg,rust\n");
    folder.file("~$labels.xlsx", b"me");
    assert_eq!(folder.open().problems(), []);
}

#[test]
fn every_file_that_is_not_understood_is_named() {
    let folder = leaves("labels.csv", "day,rain\n1,2\n");
    folder.file("more.csv", "image,height\na.jpg,1.5\n");
    let said = refusal(&folder);
    assert!(
        said.contains("labels.csv: not read as tags") && said.contains("more.csv: not read as tags"),
        "{said}"
    );
}

#[test]
fn a_set_column_is_a_split_and_excel_encodings_are_read() {
    let dataset =
        check("labels.csv", "image,class,set\na.jpg,rust;miner,train\nb.jpg,,Train\nc.jpg,rust,valid\n");
    assert_eq!(splits(&dataset), BTreeMap::from([("train", vec!["a.jpg", "b.jpg"]), ("val", vec!["c.jpg"])]));
    let text = "image\tclass\r\na.jpg\trust;miner\r\nb.jpg\t\r\nc.jpg\trust\r\n";
    check("labels.txt", text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());

    let dataset = leaves("labels.csv", b"image;class\r\na.jpg;K\xe4fer\r\n").open();
    assert_eq!(dataset.classes().names(), ["background", "Käfer"]);
    assert!(
        notes(&dataset).contains("labels.csv is not UTF-8 and was read as Windows-1252"),
        "{}",
        notes(&dataset)
    );
}

#[test]
fn a_table_that_is_not_understood_is_named_with_what_is_missing() {
    for (content, part) in [
        ("day,rain\n1,2\n", "no column names the images; its columns are `day`, `rain`"),
        ("image,height\na.jpg,1.5\nb.jpg,2.5\n", "no column with tags; its columns are `image`, `height`"),
        (
            "image,place,weather\na.jpg,field,sun\nb.jpg,wood,rain\n",
            "which column holds the tags? It may be `place`, `weather`",
        ),
        ("image,tags\n", "a heading, and no row below it"),
        ("image,tags\nx.jpg,rust\n", "it names no image of this folder; it names `x.jpg`"),
        ("", "no row in it"),
    ] {
        let said = refusal(&leaves("labels.csv", content));
        assert!(said.contains("labels.csv: not read as tags: ") && said.contains(part), "{part}: {said}");
        assert!(
            said.contains("3 images, and none of them has a tag") && said.contains("image,tags"),
            "{said}"
        );
    }
    let said = refusal(&leaves("labels.xls", b"\xd0\xcf\x11\xe0"));
    assert!(
        said.contains(
            "labels.xls: not read as tags: a spreadsheet of another format; save it as .xlsx or .csv"
        ),
        "{said}"
    );
    let said = refusal(&leaves("labels.xlsx", b"\xd0\xcf\x11\xe0"));
    assert!(said.contains("labels.xlsx") && said.contains("not an .xlsx workbook"), "{said}");
    // A tag file of the documented name that cannot be used is read, and says why there are no tags.
    let dataset = leaves("tags.csv", "id,place,weather\n1,field,sun\n2,wood,rain\n").open();
    let said = dataset.check_tagged().unwrap_err().to_string();
    assert!(said.contains("tags.csv") && said.contains("which column holds the tags?"), "{said}");
}

#[test]
fn images_without_any_tags_are_refused_with_how_to_write_them() {
    for image in ["a.jpg", "images/a.jpg", "train/a.jpg"] {
        let folder = Folder::new();
        folder.image(image);
        let said = refusal(&folder);
        assert!(said.contains("1 image, and it has no tag") && said.contains("tags.csv"), "{image}: {said}");
    }
    let folder = leaves("tags.csv", "image,tags\na.jpg,rust\n");
    let said = Dataset::open(&folder.path().join("images"), &OpenOptions::default()).unwrap_err().to_string();
    assert!(said.contains("tags.csv: there is a tag file in the folder above"), "{said}");
}

#[test]
fn a_stray_table_does_not_stand_in_for_class_folders() {
    let folder = Folder::new();
    folder.images(["rust/a.jpg", "miner/b.jpg"]);
    folder.file("weather.csv", "day,rain\n1,0.5\n");
    let dataset = folder.open();
    assert_eq!(dataset.layout(), DatasetLayout::ClassFolders);
    assert_eq!(dataset.problems().len(), 1, "{:?}", dataset.problems());
    assert!(dataset.problems()[0].detail.contains("not read as tags: no column names the images"));
}

#[test]
fn of_several_tables_the_likeliest_is_read_and_the_others_are_named() {
    let folder = leaves("train.csv", "id,label\na,rust\nb,miner\n");
    folder.file("sample_submission.csv", "id,label\nc,rust\n");
    let dataset = folder.open();
    assert_eq!(dataset.images().len(), 2);
    assert!(dataset.problems()[0].path.ends_with("sample_submission.csv"), "{:?}", dataset.problems());
}

/// A workbook whose second sheet is the visible one, with shared texts as Excel writes them.
fn workbook(shared: &str, rows: &str) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let sheet = format!("<worksheet><sheetData>{rows}</sheetData></worksheet>");
    let texts = format!("<sst>{shared}</sst>");
    for (name, text) in [
        (
            "xl/workbook.xml",
            r#"<workbook><sheets><sheet name="old" state="hidden" r:id="r1"/><sheet name="leaves" r:id="r2"/></sheets></workbook>"#,
        ),
        (
            "xl/_rels/workbook.xml.rels",
            r#"<Relationships><Relationship Id="r1" Target="worksheets/sheet1.xml"/><Relationship Id="r2" Target="/xl/worksheets/sheet2.xml"/></Relationships>"#,
        ),
        ("xl/sharedStrings.xml", texts.as_str()),
        ("xl/worksheets/sheet1.xml", "<worksheet/>"),
        ("xl/worksheets/sheet2.xml", sheet.as_str()),
    ] {
        archive.start_file(name, SimpleFileOptions::default()).unwrap();
        archive.write_all(text.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

const SHARED: &str = "<si><t>filename</t></si><si><t>disease</t></si><si><r><t>rust; </t></r><r><t>miner</t></r></si>\
    <si><t>rust</t><rPh><t>ra-su-to</t></rPh></si>";

#[test]
fn an_excel_workbook_is_read() {
    let rows = r#"<row r="1"><c r="A1" t="inlineStr"><is><t>nr</t></is></c><c r="B1" t="s"><v>0</v></c><c r="C1" t="s"><v>1</v></c></row>
        <row r="2"><c r="A2"><v>1</v></c><c r="B2" t="str"><f>x</f><v>a.jpg</v></c><c r="C2" t="s"><v>2</v></c></row>
        <row r="4"><c r="A4"><v>2</v></c><c r="B4" t="inlineStr"><is><t>b.jpg</t></is></c><c r="C4"/></row>
        <row r="5"><c><v>3</v></c><c t="inlineStr"><is><t>c.jpg</t></is></c><c t="s"><v>3</v></c></row>"#;
    let dataset = check("labels.xlsx", workbook(SHARED, rows));
    assert_eq!(dataset.layout(), DatasetLayout::TagsXlsx);
    let rows = r#"<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c></row><row><c t="s"><v>9</v></c></row>"#;
    let said = refusal(&leaves("labels.xlsx", workbook(SHARED, rows)));
    assert!(said.contains("row 2: no text `9`"), "{said}");
}

#[test]
fn a_workbook_that_inflates_without_end_is_given_up() {
    let bombs = [
        (SHARED.to_string(), format!("<row><c><v>{}</v></c></row>", "9".repeat(8 << 20))),
        (format!("<si><t>{}</t></si>", "x".repeat(8 << 20)), String::new()),
        (format!("<si>{}</si>", format!("<t>{}</t>", "x".repeat(100_000)).repeat(1000)), String::new()),
        (SHARED.to_string(), format!("<row>{}</row>", "<c><v>1</v></c>".repeat(20_000))),
    ];
    for (shared, rows) in bombs {
        let bytes = workbook(&shared, &rows);
        assert!(bytes.len() < 400_000, "{}", bytes.len());
        let said = refusal(&leaves("labels.xlsx", bytes));
        assert!(
            ["longer than Excel allows", "more text in its cells", "more than 16384 columns"]
                .iter()
                .any(|it| said.contains(it)),
            "{said}"
        );
    }
}
