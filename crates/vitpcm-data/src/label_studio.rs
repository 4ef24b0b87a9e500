//! Label Studio: the JSON export (tasks with `data` and `annotations`) and JSON-MIN (flat objects). Choices are tags,
//! single or multiple; labels of boxes, polygons and brushes count as tags too, since the class is in the image.

use crate::tag_rows::{ImageName, TagRow, TagRows};
use crate::{ProblemKind, annotation_file};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::path::Path;

/// Keys of a flat object that describe the annotation, not the image.
const BOOKKEEPING: [&str; 8] =
    ["id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement", "inner_id"];

/// Usual keys of choices in flat objects; without any of them, every string counts.
const CHOICE_KEYS: [&str; 8] = ["choice", "choices", "tag", "tags", "label", "labels", "class", "classes"];

/// Reads an export of either form. A file that is not valid to its end is ignored entirely.
pub(crate) fn read(path: &Path, rows: &mut TagRows<'_>) {
    let mut number = 0;
    let read = annotation_file::read_json_items(path, "a list of tasks", |_, task| {
        number += 1;
        let id = task.get("id").and_then(Value::as_i64).unwrap_or(number);
        match row_of(&task) {
            Ok(Some(row)) => rows.add(row, format_args!("task {id}")),
            Ok(None) => {
                let detail = format_args!("task {id} is not annotated; left out");
                rows.add_problem(ProblemKind::ImageWithoutTag, detail);
            }
            Err(reason) => rows.add_unreadable(format_args!("task {id}: {reason}")),
        }
    });
    if let Err(reason) = read {
        rows.clear();
        rows.add_unreadable(format_args!("not a Label Studio export: {reason}"));
    }
}

/// The row of a task; `None` if it has no annotation, which is not the same as an image without the classes.
fn row_of(task: &Value) -> Result<Option<TagRow<'_>>, String> {
    let task = task.as_object().ok_or("expected an object")?;
    let data = task.get("data").and_then(Value::as_object);
    let image = image_of(data.unwrap_or(task)).ok_or("no image in it")?;
    let tags = match data {
        Some(_) => tags_of_task(task),
        None => Some(tags_of_flat(task, image)),
    };
    let image = ImageName::Tail(spellings(image));
    let row =
        |tags: Vec<String>| TagRow { image, tags: tags.into_iter().map(Cow::Owned).collect(), split: None };
    Ok(tags.map(row))
}

/// The value of `image`, else the first string that looks like a file's address.
fn image_of(fields: &Map<String, Value>) -> Option<&str> {
    let is_address = |text: &&str| text.starts_with("/data/") || text.contains("://");
    let first_address = || fields.values().filter_map(Value::as_str).find(is_address);
    fields.get("image").and_then(Value::as_str).or_else(first_address)
}

/// All tags from annotations, except skipped ones.
fn tags_of_task(task: &Map<String, Value>) -> Option<Vec<String>> {
    let annotations = task.get("annotations").or_else(|| task.get("completions"))?.as_array()?;
    let is_skipped = |annotation: &&Value| annotation.get("was_cancelled") == Some(&Value::Bool(true));
    let mut kept = annotations.iter().filter(|annotation| !is_skipped(annotation)).peekable();
    kept.peek()?;
    let results = kept.filter_map(|annotation| annotation.get("result")?.as_array()).flatten();
    let values = results.filter_map(|result| result.get("value")?.as_object());
    Some(values.flat_map(names_in_value).collect())
}

/// `choices`, or the labels of a region: `rectanglelabels`, `polygonlabels`, `brushlabels`, …
fn names_in_value(value: &Map<String, Value>) -> Vec<String> {
    let of_classes = value.iter().filter(|(key, _)| *key == "choices" || key.ends_with("labels"));
    of_classes.flat_map(|(_, names)| names_of(names)).collect()
}

fn tags_of_flat(task: &Map<String, Value>, image: &str) -> Vec<String> {
    let is_usual = |key: &str| CHOICE_KEYS.contains(&key);
    let has_usual = task.keys().any(|key| is_usual(key));
    let fields = task.iter().filter(|(key, value)| {
        let is_wanted = if has_usual { is_usual(key) } else { !BOOKKEEPING.contains(&key.as_str()) };
        is_wanted && value.as_str() != Some(image)
    });
    fields.flat_map(|(_, value)| names_of(value)).collect()
}

/// Names from a string, a list, or an object or list of objects with `choices` or labels.
fn names_of(value: &Value) -> Vec<String> {
    match value {
        Value::String(name) => vec![name.trim().to_string()],
        Value::Array(items) => items.iter().flat_map(names_of).collect(),
        Value::Object(fields) => names_in_value(fields),
        _ => Vec::new(),
    }
}

/// Possible spellings of an image's address below the data set's folder, likeliest first.
fn spellings(address: &str) -> Vec<String> {
    // `/data/local-files/?d=folder/name.jpg` has the path in its query; other queries are signatures.
    let path = match address.split_once("?d=") {
        Some((_, path)) => path.split('&').next().unwrap_or(path),
        None if address.contains("://") => address.split(['?', '#']).next().unwrap_or(address),
        None => address,
    };
    let decoded = percent_decoded(path);
    let mut all = vec![path.to_string()];
    if decoded != path {
        all.push(decoded.clone());
    }
    // Uploads are stored as eight hexadecimal digits, a dash and the original file name.
    let name = decoded.rsplit(['/', '\\']).next().unwrap_or(&decoded);
    let is_prefix = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let uploaded = name.split_once('-').filter(|(prefix, _)| is_prefix(prefix));
    all.extend(uploaded.map(|(_, original)| original.to_string()));
    all
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = text.get(i + 1..i + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(|_| bytes[i] == b'%') {
            Some(byte) => {
                decoded.push(byte);
                i += 3;
            }
            None => {
                decoded.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
