//! Annotations of data sets: each target is one file of an otherwise valid folder. The data set is opened, and all its
//! true masks are read.

use super::{MEMORY, Subject, Target};
use std::path::{Path, PathBuf};
use vitpcm_data::{Dataset, ImageLimits, OpenOptions};
use vitpcm_masks::{LabelMap, write_label_png};

pub(super) const COCO: Target = Target {
    name: "coco",
    what: "COCO instances",
    dictionary: &[
        "\"images\"", "\"annotations\"", "\"categories\"", "\"id\"", "\"image_id\"", "\"category_id\"",
        "\"iscrowd\"", "\"segmentation\"", "\"counts\"", "\"size\"", "\"file_name\"", "\"supercategory\"",
        "[[", "]]", "null", "1e300", "-1",
    ],
    seeds: || {
        vec![
            br#"{"images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8},
                {"id": 2, "file_name": "b.png", "width": 8, "height": 8, "split": "val"}],
                "categories": [{"id": 3, "name": "dog", "supercategory": "animal"}, {"id": 9, "name": "cat"}],
                "annotations": [
                {"id": 1, "image_id": 1, "category_id": 3, "iscrowd": 0, "segmentation": [[1.5, 1, 6, 1.25, 6, 6, 1, 6], [0, 0, 2, 0, 2, 2]]},
                {"id": 2, "image_id": 1, "category_id": 9, "iscrowd": 1, "segmentation": {"size": [8, 8], "counts": [10, 4, 50]}},
                {"id": 3, "image_id": 2, "category_id": 9, "bbox": [0, 0, 2, 2], "segmentation": {"size": [8, 8], "counts": ":4b1"}}]}"#
                .to_vec(),
        ]
    },
    subject: |scratch| opened_with(scratch, "instances_default.json"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const VOC_XML: Target = Target {
    name: "voc-xml",
    what: "annotations of a VOC devkit",
    dictionary: &[
        "<object>",
        "</object>",
        "<name>",
        "</name>",
        "<difficult>",
        "</annotation>",
        "<part>",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "&amp;",
        "&#x0;",
        "&#1114112;",
        "<!DOCTYPE a [<!ENTITY b \"c\">]>",
        "&b;",
        "<?xml version=\"1.0\"?>",
    ],
    seeds: || {
        vec![
            b"<?xml version=\"1.0\"?><annotation><filename>a.png</filename><object><name>dog</name><difficult>1</difficult>\
              <part><name>head</name></part></object><object><name>cat</name></object></annotation>"
                .to_vec(),
        ]
    },
    subject: |scratch| {
        for folder in ["JPEGImages", "Annotations", "ImageSets/Segmentation", "SegmentationClass"] {
            std::fs::create_dir_all(scratch.join(folder)).expect("the scratch folder takes folders");
        }
        picture(&scratch.join("JPEGImages/a.png"));
        picture(&scratch.join("SegmentationClass/a.png"));
        write(&scratch.join("ImageSets/Segmentation/train.txt"), b"a\n");
        opened(scratch.to_path_buf(), scratch.join("Annotations/a.xml"))
    },
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const TAGS_CSV: Target = Target {
    name: "tags-csv",
    what: "tags.csv",
    dictionary: &[
        "image", "tags", "split", "file_name", "labels", ",", ";", "\t", "\"", "\"\"", "\r\n", "\u{feff}",
        "a.png", "val", "|", "sep=;", "filename", "disease", "none", "\u{fffe}",
    ],
    seeds: || {
        vec![
            b"image,tags,split\na.png,dog;cat,train\n\"b.png\",\"a \"\"cat\"\"\",val\n".to_vec(),
            b"image,dog,cat\na.png,1,0\nb.png,0,1\n".to_vec(),
            b"sep=;\r\nid;Filename;Disease\r\n1;C:\\x\\a.png;Leaf Rust|leaf rust\r\n2;b;K\xe4fer, none\r\n"
                .to_vec(),
        ]
    },
    subject: |scratch| opened_with(scratch, "tags.csv"),
    repair: None,
    max_bytes: MEMORY,
};

/// The parts of a workbook that are fuzzed as XML; the zip file around them is fuzzed as well.
const SHEET: &str = "<sst><si><t>image</t></si><si><t>tags</t></si><si><r><t>a.</t></r><r><t>png</t></r><rPh><t>x</t></rPh></si></sst>\
    <worksheet><sheetData><row r=\"1\"><c r=\"A1\" t=\"s\"><v>0</v></c><c r=\"B1\" t=\"s\"><v>1</v></c></row>\
    <row r=\"2\"><c r=\"A2\" t=\"s\"><v>2</v></c><c r=\"B2\" t=\"inlineStr\"><is><t>dog &amp; cat</t></is></c></row>\
    <row><c t=\"str\"><v>b.png</v></c><c/></row></sheetData></worksheet>";

pub(super) const TAGS_XLSX: Target = Target {
    name: "tags-xlsx",
    what: "Excel workbooks with tags, and their sheets",
    dictionary: &[
        "<row r=\"1\">", "</row>", "<c r=\"XFD9\" t=\"s\">", "</c>", "<v>", "</v>", "<is><t>", "</t></is>",
        "<si>", "</si>", "<sheetData>", "</sheetData>", "<sheet r:id=\"r1\"/>", "4294967296", "&#x0;",
        "<![CDATA[", "PK\u{1}\u{2}", "xl/workbook.xml",
    ],
    seeds: || vec![SHEET.as_bytes().to_vec(), workbook(SHEET.as_bytes())],
    subject: |scratch| {
        let mut open = opened_with(scratch, "labels.xlsx");
        Box::new(move |bytes| if bytes.starts_with(b"PK") { open(bytes) } else { open(&workbook(bytes)) })
    },
    repair: None,
    max_bytes: MEMORY,
};

/// A workbook whose shared strings and sheet are the same bytes.
fn workbook(sheet: &[u8]) -> Vec<u8> {
    let parts: [(&str, &[u8]); 4] = [
        ("xl/workbook.xml", b"<workbook><sheets><sheet r:id=\"r1\"/></sheets></workbook>"),
        (
            "xl/_rels/workbook.xml.rels",
            b"<Relationships><Relationship Id=\"r1\" Target=\"sheet.xml\"/></Relationships>",
        ),
        ("xl/sharedStrings.xml", sheet),
        ("xl/sheet.xml", sheet),
    ];
    super::zipped(&parts, zip::CompressionMethod::Stored)
}

const TAG_WORDS: &[&str] = &[
    "\"image\"", "\"tags\"", "\"split\"", "\"file_name\"", "\"labels\"", "[", "]", "{", "}", "null",
    "\"a.png\"", "\"../a.png\"", "\\u0000", "\\ud800", "1e999", "\u{feff}", "\n",
];

pub(super) const TAGS_JSON: Target = Target {
    name: "tags-json",
    what: "tags.json",
    dictionary: TAG_WORDS,
    seeds: || {
        vec![
            br#"[{"image": "a.png", "tags": ["dog", "cat"], "split": "train"}, {"file_name": "b.png", "labels": "cat;dog"}]"#.to_vec(),
            br#"{"a.png": ["dog"], "b.png": []}"#.to_vec(),
        ]
    },
    subject: |scratch| opened_with(scratch, "tags.json"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const TAGS_JSONL: Target = Target {
    name: "tags-jsonl",
    what: "tags.jsonl",
    dictionary: TAG_WORDS,
    seeds: || {
        vec![
            b"{\"image\": \"a.png\", \"tags\": [\"dog\", 7]}\n\n{\"image\": \"b.png\", \"tags\": []}\n"
                .to_vec(),
        ]
    },
    subject: |scratch| opened_with(scratch, "tags.jsonl"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const LABEL_STUDIO: Target = Target {
    name: "label-studio",
    what: "Label Studio exports, as tags",
    dictionary: &[
        "\"data\"", "\"annotations\"", "\"completions\"", "\"result\"", "\"value\"", "\"choices\"",
        "\"image\"", "\"annotation_id\"", "\"type\"", "\"rectanglelabels\"", "\"brushlabels\"",
        "\"was_cancelled\"", "true", "/data/upload/", "%2F", "%", "null",
    ],
    seeds: || {
        vec![
            br#"[{"id": 1, "data": {"image": "/data/upload/1/0a1b-a.png"}, "annotations": [{"was_cancelled": false, "result": [
                {"type": "choices", "value": {"choices": ["dog", "cat"]}},
                {"type": "rectanglelabels", "value": {"rectanglelabels": ["dog"], "x": 1}}]}]}]"#
                .to_vec(),
            br#"[{"image": "b.png", "choice": "dog", "annotation_id": 1}, {"image": "a.png", "choice": {"choices": ["cat"]}, "lead_time": 2}]"#
                .to_vec(),
        ]
    },
    subject: |scratch| opened_with(scratch, "project.json"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const CVAT: Target = Target {
    name: "cvat-xml",
    what: "CVAT exports (annotations.xml)",
    dictionary: &[
        "<image id=\"0\" name=\"a.png\">",
        "</image>",
        "<tag label=\"dog\">",
        "</tag>",
        "<labels>",
        "<label>",
        "<name>",
        "</name>",
        "subset=\"val\"",
        "<polygon label=\"cat\"/>",
        "&lt;",
        "&#0;",
        "<![CDATA[",
        "</annotations>",
        "'",
        "\"",
    ],
    seeds: || {
        vec![
            b"<annotations><version>1.1</version><meta><task><labels><label><name>dog</name></label><label><name>cat</name></label></labels>\
              </task></meta><image id=\"0\" name=\"a.png\" subset=\"train\" width=\"8\" height=\"8\"><tag label=\"dog\" source=\"manual\"></tag>\
              <box label=\"cat\" xtl=\"1\"/></image><image id=\"1\" name=\"b.png\"><polygon label=\"cat\" points=\"1,2;3,4\"></polygon></image>\
              </annotations>"
                .to_vec(),
        ]
    },
    subject: |scratch| opened_with(scratch, "annotations.xml"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const LISTS: Target = Target {
    name: "lists",
    what: "class lists and split lists",
    dictionary: &["#", "\r\n", "\u{feff}", "background", "a.png", "a", "/", "..", "\0"],
    seeds: || vec![b"dog\ncat\n".to_vec(), b"# names\na.png\nb\n".to_vec()],
    subject: |scratch| {
        write(&scratch.join("tags.csv"), b"image,tags\na.png,dog\nb.png,cat\n");
        ["a.png", "b.png"].iter().for_each(|name| picture(&scratch.join(name)));
        let (root, list, classes) =
            (scratch.to_path_buf(), scratch.join("train.txt"), scratch.join("classes.names"));
        Box::new(move |bytes| {
            write(&list, bytes);
            write(&classes, bytes);
            let as_split = outcome_of(&root, &OpenOptions::default());
            let options = OpenOptions { classes: Some(classes.clone()), ..OpenOptions::default() };
            as_split + &outcome_of(&root, &options)
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

/// A folder with two images and one fuzzed file.
fn opened_with(scratch: &Path, name: &str) -> Subject {
    ["a.png", "b.png"].iter().for_each(|name| picture(&scratch.join(name)));
    opened(scratch.to_path_buf(), scratch.join(name))
}

fn opened(root: PathBuf, file: PathBuf) -> Subject {
    Box::new(move |bytes| {
        write(&file, bytes);
        outcome_of(&root, &OpenOptions::default())
    })
}

fn outcome_of(root: &Path, options: &OpenOptions) -> String {
    let dataset = match Dataset::open(root, options) {
        Ok(dataset) => dataset,
        Err(error) => return error.to_string(),
    };
    let mut said = "ok".to_string();
    for problem in dataset.problems().iter().take(2) {
        said = format!("{said}, {problem:?}").replace(&*root.to_string_lossy(), "");
    }
    for note in dataset.notes().iter().take(3) {
        said = format!("{said}, {note}");
    }
    for index in 0..dataset.images().len() {
        match dataset.truth(index).map(|truth| truth.read(dataset.classes(), &ImageLimits::default())) {
            Some(Err(error)) => said = format!("{said}, {error}"),
            Some(Ok(_)) => said.push_str(", a mask"),
            None => {}
        }
    }
    let _ = (dataset.training(), dataset.validation());
    said
}

fn picture(path: &Path) {
    let map = LabelMap::new(8, 8, (0..64).map(|at| at / 40).collect()).expect("64 pixels");
    write_label_png(path, &map).expect("the scratch folder takes files");
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("the scratch folder takes files");
}
