//! `tags.json`, a list of `{"image": …, "tags": […]}` or one object from image to tags, and `tags.jsonl`, one such
//! object per line. Table headings are accepted for `image` and `tags`; `split` is optional.

use crate::file_index::FileIndex;
use crate::table_columns::{IMAGE_HEADINGS, TAG_HEADINGS};
use crate::tag_rows::{ImageName, TagRow, TagRows};
use crate::text_encoding::utf8_text;
use crate::{Problem, annotation_file};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Longest line, in bytes; longer than any in a tag file.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Reads `tags.json`. A file that is not valid to its end is ignored entirely.
pub(crate) fn read_json(path: &Path, rows: &mut TagRows<'_>) {
    let mut number = 0;
    let what = "a list, or an object from image to tags";
    let read = annotation_file::read_json_items(path, what, |image, item| {
        number += 1;
        let Some(image) = image else { return add_item(&item, format_args!("item {number}"), rows) };
        match names_of(&item, rows) {
            Some(tags) => {
                let row = TagRow { image: ImageName::Path(image.as_str().into()), tags, split: None };
                rows.add(row, format_args!("`{image}`"));
            }
            None => rows.add_unreadable(format_args!("`{image}`: the tags are not a list of names")),
        }
    });
    if let Err(reason) = read {
        rows.clear();
        rows.add_unreadable(format_args!("not valid JSON: {reason}"));
    }
}

/// Checks whether a JSON file of any name has tags for images of this folder; or what is missing.
pub(crate) fn check(path: &Path, index: &FileIndex) -> Result<(), String> {
    let size = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    if size > MAX_LINE_BYTES {
        return Err(format!("larger than {} MB; call it tags.json if it holds tags", MAX_LINE_BYTES >> 20));
    }
    let mut rows = TagRows::new(index, path, None);
    read_json(path, &mut rows);
    let listing = rows.finish();
    if listing.entries.iter().any(|entry| !entry.tags.is_empty()) {
        return Ok(());
    }
    let is_coco =
        |problem: &Problem| ["`images`", "`categories`"].iter().any(|key| problem.detail.contains(key));
    match listing.problems.first() {
        _ if listing.problems.iter().any(is_coco) => {
            Err("it looks like COCO's; call it instances_NAME.json if it is".to_string())
        }
        Some(problem) => Err(problem.detail.clone()),
        None => Err("it names no image of this folder".to_string()),
    }
}

/// Reads `tags.jsonl`; an invalid line is a problem, the others count.
pub(crate) fn read_jsonl(path: &Path, rows: &mut TagRows<'_>) {
    let mut file = match annotation_file::open(path).and_then(utf8_text) {
        Ok(file) => file,
        Err(error) => return rows.add_unreadable(error),
    };
    let mut line = Vec::new();
    let mut number = 0;
    let mut read_line = |line: &mut Vec<u8>| {
        number += 1;
        line.clear();
        let length = file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)?;
        let is_whole = (length as u64) < MAX_LINE_BYTES || line.ends_with(b"\n");
        if !is_whole {
            file.skip_until(b'\n')?;
        }
        io::Result::Ok((length > 0).then_some((number, is_whole)))
    };
    loop {
        match read_line(&mut line) {
            Ok(None) => return,
            Ok(Some((number, false))) => {
                rows.add_unreadable(format_args!(
                    "line {number}: longer than {MAX_LINE_BYTES} bytes; left out"
                ));
            }
            Ok(Some((_, true))) if line.trim_ascii().is_empty() => {}
            Ok(Some((number, true))) => match serde_json::from_str(&String::from_utf8_lossy(&line)) {
                Ok(item) => add_item(&item, format_args!("line {number}"), rows),
                Err(error) => rows.add_unreadable(format_args!("line {number}: not valid JSON: {error}")),
            },
            Err(error) => return rows.add_unreadable(error),
        }
    }
}

fn add_item(item: &Value, place: fmt::Arguments<'_>, rows: &mut TagRows<'_>) {
    let get =
        |keys: &[&str]| keys.iter().find_map(|key| item.get(key).or_else(|| item.get(key.replace(' ', "_"))));
    let Some(image) = get(&IMAGE_HEADINGS).and_then(Value::as_str).map(str::trim) else {
        return rows.add_unreadable(format_args!("{place}: expected an object with the name of an `image`"));
    };
    // A missing list is probably a mistake; a negative is written [].
    let Some(tags) = get(&TAG_HEADINGS).and_then(|tags| names_of(tags, rows)) else {
        return rows.add_unreadable(format_args!("{place}: expected `tags`, a list of names"));
    };
    let split = item.get("split").and_then(Value::as_str).map(str::trim).filter(|split| !split.is_empty());
    rows.add(TagRow { image: ImageName::Path(image.into()), tags, split: split.map(Cow::Borrowed) }, place);
}

/// Names from a list of strings or numbers, or from one string with separators.
fn names_of<'a>(tags: &'a Value, rows: &mut TagRows<'_>) -> Option<Vec<Cow<'a, str>>> {
    let name = |value: &'a Value| match value {
        Value::String(name) => Some(Cow::Borrowed(name.as_str())),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    };
    match tags {
        Value::Array(items) => items.iter().map(name).collect(),
        Value::String(names) => Some(rows.tags_of_cell(names)),
        other => name(other).map(|name| vec![name]),
    }
}
