//! YOLO segmentation labels: `images/NAME.jpg`, `labels/NAME.txt` with one line an object (class, then corners as
//! shares of width and height), and `data.yaml`. Classes count from 0 without the background.

use crate::polygons::polygon_parts;
use std::fmt::Write;
use vitpcm_masks::{Classes, LabelMap};

pub(crate) const DATA_FILE: &str = "data.yaml";

/// Where the image goes.
pub(crate) fn image_path(file_name: &str) -> String {
    format!("images/{file_name}")
}

/// Where the trainer looks for an image's labels: the last folder `images` of its path becomes `labels`.
pub(crate) fn label_path(name: &str) -> String {
    let path = format!("/images/{name}.txt");
    let (before, after) = path.rsplit_once("/images/").expect("it begins with this folder");
    format!("{before}/labels/{after}")[1..].to_string()
}

/// No `path` key: the trainer then starts from where the file lies, so that the folder may be moved.
pub(crate) fn data_yaml(classes: &Classes) -> String {
    let mut text =
        String::from("train: images\nval: images  # no split is known; name another folder here\nnames:\n");
    for (index, name) in classes.names()[1..].iter().enumerate() {
        // A JSON string is a YAML string too, whatever is in it.
        let _ = writeln!(text, "  {index}: {}", serde_json::json!(name));
    }
    text
}

/// The lines of one image.
pub(crate) fn labels(map: &LabelMap, polygon_error: f64) -> String {
    let (width, height) = (map.width() as f64, map.height() as f64);
    let mut text = String::new();
    for part in polygon_parts(map, polygon_error) {
        let _ = write!(text, "{}", part.label - 1);
        for (x, y) in part.bridged() {
            let _ = write!(text, " {} {}", share(f64::from(x) / width), share(f64::from(y) / height));
        }
        text.push('\n');
    }
    text
}

/// Six decimals hold a thousandth of a pixel of any image up to 500 pixels, and a tenth of one up to 50,000.
fn share(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
