//! `tags.json`, a list of `{"image": …, "tags": […]}` or one object from image to tags, and `tags.jsonl`, one such
//! object a line. `file_name` and `labels` are understood for `image` and `tags`; `split` is optional.

use crate::tag_rows::{ImageName, TagFile, TagRow};
use crate::{Problem, ProblemKind, annotation_file};
use serde_json::Value;
use std::path::Path;

/// Reads `tags.json`.
pub(crate) fn read_json(path: &Path) -> TagFile {
    let mut file = TagFile::default();
    let parsed = annotation_file::read(path).map_err(|e| e.to_string()).and_then(|bytes| {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        serde_json::from_slice(bytes).map_err(|e| format!("not valid JSON: {e}"))
    });
    match parsed {
        Ok(Value::Array(items)) => {
            for (number, item) in (1..).zip(items) {
                add_item(path, item, format!("item {number}"), &mut file);
            }
        }
        Ok(Value::Object(tags_by_image)) => {
            for (image, tags) in tags_by_image {
                let place = format!("`{image}`");
                match names_of(&tags) {
                    Some(tags) => {
                        file.rows.push(TagRow { image: ImageName::Below(image), tags, split: None, place })
                    }
                    None => file.problems.push(bad(path, &place, "the tags are not a list of names")),
                }
            }
        }
        Ok(_) => {
            file.problems.push(bad(path, "the file", "expected a list, or an object from image to tags"))
        }
        Err(reason) => file.problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, reason)),
    }
    file
}

/// Reads `tags.jsonl`; a bad line is a problem, the others count.
pub(crate) fn read_jsonl(path: &Path) -> TagFile {
    let mut file = TagFile::default();
    let bytes = match annotation_file::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            file.problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, error.to_string()));
            return file;
        }
    };
    let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes));
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("line {number}");
        match serde_json::from_str(line) {
            Ok(item) => add_item(path, item, place, &mut file),
            Err(error) => file.problems.push(bad(path, &place, &format!("not valid JSON: {error}"))),
        }
    }
    file
}

fn add_item(path: &Path, item: Value, place: String, file: &mut TagFile) {
    let get = |keys: [&str; 2]| keys.iter().find_map(|key| item.get(key));
    let Some(image) = get(["image", "file_name"]).and_then(Value::as_str).map(str::trim) else {
        return file.problems.push(bad(path, &place, "expected an object with the name of an `image`"));
    };
    // A missing list is a slip rather than a negative, which is written [].
    let Some(tags) = get(["tags", "labels"]).and_then(names_of) else {
        return file.problems.push(bad(path, &place, "expected `tags`, a list of names"));
    };
    let split = item.get("split").and_then(Value::as_str).map(|split| split.trim().to_string());
    let image = ImageName::Below(image.to_string());
    file.rows.push(TagRow { image, tags, split: split.filter(|split| !split.is_empty()), place });
}

/// Names from a list of strings or numbers, or from one string with `;` between names.
fn names_of(tags: &Value) -> Option<Vec<String>> {
    let name = |value: &Value| match value {
        Value::String(name) => Some(name.trim().to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match tags {
        Value::Array(items) => items.iter().map(name).collect(),
        Value::String(names) => Some(names.split(';').map(|name| name.trim().to_string()).collect()),
        Value::Number(number) => Some(vec![number.to_string()]),
        _ => None,
    }
}

fn bad(path: &Path, place: &str, reason: &str) -> Problem {
    Problem::new(ProblemKind::UnreadableAnnotation, path, format!("{place}: {reason}"))
}
