//! Finished masks in the formats of other tools, read back.

use super::{MEMORY, Subject, Target, said};
use std::io::Cursor;
use std::path::Path;
use vitpcm_exports::{
    CocoShape, ExportFormat, ExportOptions, Exporter, LabelledImage, MaskSet, Memory, Photograph, Zip,
};
use vitpcm_masks::{Classes, LabelMap, write_label_png};

const WORDS: &[&str] = &[
    "\"images\"", "\"annotations\"", "\"segmentation\"", "\"counts\"", "\"size\"", "\"width\"", "\"height\"",
    "\"shapes\"", "\"points\"", "\"shape_type\"", "\"polygon\"", "\"rectangle\"", "\"circle\"", "\"mask\"",
    "\"imageWidth\"", "\"imagePath\"", "\"rle\"", "\"brushlabels\"", "\"polygonlabels\"",
    "\"rectanglelabels\"", "\"ellipselabels\"", "\"original_width\"", "\"result\"", "\"predictions\"",
    "null", "[[", "]]", "1e300",
];

pub(super) const COCO: Target = Target {
    name: "export-coco",
    what: "masks from COCO files",
    dictionary: WORDS,
    seeds: || {
        [CocoShape::RunLengths, CocoShape::Polygons]
            .map(|coco_shape| {
                exported(
                    ExportFormat::Coco,
                    &ExportOptions { coco_shape, ..ExportOptions::default() },
                    "instances_default.json",
                )
            })
            .into()
    },
    subject: |scratch| reader_of(scratch, "file.json"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const LABEL_STUDIO: Target = Target {
    name: "export-label-studio",
    what: "masks from Label Studio files",
    dictionary: WORDS,
    seeds: || {
        let polygons = br#"[{"data": {"image": "a.png"}, "annotations": [{"result": [
            {"original_width": 8, "original_height": 8, "type": "polygonlabels", "value": {"points": [[10, 10], [90, 10], [50, 90]], "polygonlabels": ["disc"]}},
            {"original_width": 8, "original_height": 8, "type": "rectanglelabels", "value": {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 5, "rectanglelabels": ["square"]}},
            {"original_width": 8, "original_height": 8, "type": "ellipselabels", "value": {"x": 50, "y": 50, "radiusX": 30, "radiusY": 10, "rotation": 45, "ellipselabels": ["square"]}}]}]}]"#;
        vec![exported(ExportFormat::LabelStudio, &ExportOptions::default(), "tasks.json"), polygons.to_vec()]
    },
    subject: |scratch| reader_of(scratch, "file.json"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const LABELME: Target = Target {
    name: "export-labelme",
    what: "masks from Labelme files",
    dictionary: WORDS,
    seeds: || vec![exported(ExportFormat::Labelme, &ExportOptions::default(), "a.json")],
    subject: |scratch| reader_of(scratch, "file.json"),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const CVAT: Target = Target {
    name: "export-cvat",
    what: "masks from CVAT archives",
    dictionary: &[
        "PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "labelmap.txt", "SegmentationClass/", ".png", "../",
        "background:0,0,0::", "::",
    ],
    seeds: || {
        let zip = Zip::new(Cursor::new(Vec::new()));
        let mut export = Exporter::begin(ExportFormat::Cvat, &classes(), &ExportOptions::default(), zip)
            .expect("memory takes all");
        add(&mut export);
        vec![export.finish().expect("memory takes all").finish().expect("memory takes all").into_inner()]
    },
    subject: |scratch| reader_of(scratch, "file.zip"),
    repair: None,
    max_bytes: MEMORY,
};

/// Separates the two files of the input.
const BREAK: &[u8] = b"\n---\n";

pub(super) const YOLO: Target = Target {
    name: "export-yolo",
    what: "masks from YOLO folders: data.yaml and labels",
    dictionary: &[
        "names:", "nc:", "- ", "  0: ", "[", "]", "{", "}", "#", "'", "\"", "0 ", "0.5", "1e300", "nan",
        "\n---\n",
    ],
    seeds: || {
        let files = exported_files(ExportFormat::Yolo, &ExportOptions::default());
        let file = |name: &str| {
            files.iter().find(|(path, _)| path.ends_with(name)).expect("one of its files").1.clone()
        };
        vec![
            [file("data.yaml"), file("a.txt")].join(BREAK),
            b"names: {0: disc, 1: 'a b'}\n---\n1 0 0 1 0 1 1\n".to_vec(),
        ]
    },
    subject: |scratch| {
        for folder in ["images", "labels"] {
            std::fs::create_dir_all(scratch.join(folder)).expect("the scratch folder takes folders");
        }
        write_label_png(&scratch.join("images/a.png"), &mask()).expect("the scratch folder takes files");
        let root = scratch.to_path_buf();
        Box::new(move |bytes| {
            let at = bytes.windows(BREAK.len()).position(|window| window == BREAK);
            let (yaml, labels) =
                at.map_or((bytes, &b""[..]), |at| (&bytes[..at], &bytes[at + BREAK.len()..]));
            std::fs::write(root.join("data.yaml"), yaml).expect("the scratch folder takes files");
            std::fs::write(root.join("labels/a.txt"), labels).expect("the scratch folder takes files");
            read_all(&root)
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

fn reader_of(scratch: &Path, name: &str) -> Subject {
    let path = scratch.join(name);
    Box::new(move |bytes| {
        std::fs::write(&path, bytes).expect("the scratch folder takes files");
        read_all(&path)
    })
}

fn read_all(path: &Path) -> String {
    match MaskSet::open(path, None, None) {
        Err(error) => error.to_string().replace(&*path.to_string_lossy(), ""),
        Ok(set) => (0..set.len()).fold("ok".to_string(), |outcome, index| match said(set.read(index)) {
            said if said == "ok" => outcome,
            said => outcome + ", but " + &said.replace(&*path.to_string_lossy(), ""),
        }),
    }
}

fn classes() -> Classes {
    Classes::from_names(["disc", "square"]).expect("two names")
}

fn mask() -> LabelMap {
    let label = |at: usize| u8::from((at % 16).abs_diff(7) < 5) + u8::from(at / 16 > 9 && at % 16 > 6);
    LabelMap::new(16, 16, (0..256).map(label).collect()).expect("256 pixels")
}

fn add(export: &mut Exporter<impl vitpcm_exports::Destination>) {
    let mask = mask();
    let mut picture = Vec::new();
    vitpcm_masks::encode_label_png(&mut picture, &mask).expect("memory takes all");
    let photograph = Photograph::Bytes(&picture);
    export
        .add(&LabelledImage { file_name: "a.png", mask: &mask, scores: None, photograph })
        .expect("memory takes all");
}

fn exported_files(format: ExportFormat, options: &ExportOptions) -> Vec<(String, Vec<u8>)> {
    let mut export =
        Exporter::begin(format, &classes(), options, Memory::default()).expect("memory takes all");
    add(&mut export);
    export.finish().expect("memory takes all").files
}

fn exported(format: ExportFormat, options: &ExportOptions, file: &str) -> Vec<u8> {
    let files = exported_files(format, options);
    files.into_iter().find(|(path, _)| path.ends_with(file)).expect("one of its files").1
}
