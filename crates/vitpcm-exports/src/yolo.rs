//! YOLO segmentation labels: `images/NAME.jpg`, `labels/NAME.txt` with one line per object (class, then corners as
//! fractions of width and height), and `data.yaml`. Classes count from 0, without background.

use crate::filling::Canvas;
use crate::pixel_polygons::pixel_polygon_parts;
use std::collections::BTreeMap;
use std::fmt::Write;
use vitpcm_masks::{Classes, LabelMap};

pub(crate) const DATA_FILE: &str = "data.yaml";

/// Where the image goes.
pub(crate) fn image_path(file_name: &str) -> String {
    format!("images/{file_name}")
}

/// Where the trainer looks for an image's labels: the last `images` folder of its path becomes `labels`.
pub(crate) fn label_path(name: &str) -> String {
    let path = format!("/images/{name}.txt");
    let (before, after) = path.rsplit_once("/images/").expect("it begins with this folder");
    format!("{before}/labels/{after}")[1..].to_string()
}

/// Without a `path` key the trainer starts from the file's folder, so the folder may be moved.
pub(crate) fn data_yaml(classes: &Classes) -> String {
    let mut text =
        String::from("train: images\nval: images  # no split is known; name another folder here\nnames:\n");
    for (index, name) in classes.names()[1..].iter().enumerate() {
        // Every JSON string is a YAML string too.
        let _ = writeln!(text, "  {index}: {}", serde_json::json!(name));
    }
    text
}

/// The lines of one image.
pub(crate) fn labels(map: &LabelMap, polygon_error: f64) -> String {
    let (width, height) = (map.width() as f64, map.height() as f64);
    let mut text = String::new();
    for part in pixel_polygon_parts(map, polygon_error) {
        let _ = write!(text, "{}", part.label - 1);
        for (x, y) in part.outline_of_centres() {
            let _ = write!(text, " {} {}", share(x / width), share(y / height));
        }
        text.push('\n');
    }
    text
}

/// Six decimals keep a centre within its pixel in images of up to 500,000 pixels per side.
fn share(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Reads the class names of a `data.yaml`: `names` as a list or a map by number, on one line or several.
pub(crate) fn read_names(yaml: &str) -> Result<Vec<String>, String> {
    let none = || "no `names`; expected the classes as a list or as `0: name` lines".to_string();
    let lines: Vec<&str> = yaml.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("names:")).ok_or_else(none)?;
    let inline = without_comment(&lines[at]["names:".len()..]);
    let items: Vec<String> = if inline.is_empty() {
        let belongs = |line: &&&str| line.starts_with([' ', '\t', '-']) || without_comment(line).is_empty();
        let lines = lines[at + 1..].iter().take_while(belongs).map(|line| without_comment(line));
        lines.filter(|line| !line.is_empty()).map(str::to_string).collect()
    } else {
        let inside = inline.strip_prefix(['[', '{']).and_then(|text| text.strip_suffix([']', '}']));
        inside.ok_or_else(none)?.split(',').map(|item| item.trim().to_string()).collect()
    };
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    for item in items {
        let (index, name) = match item.strip_prefix('-') {
            Some(name) => (names.len(), name),
            None => match item.split_once(':').map(|(index, name)| (index.trim().parse(), name)) {
                Some((Ok(index), name)) => (index, name),
                _ => (names.len(), item.as_str()),
            },
        };
        names.insert(index, unquoted(name.trim())?);
    }
    if names.is_empty() || !names.keys().copied().eq(0..names.len()) {
        return Err("`names` does not number the classes from 0 without a gap".to_string());
    }
    Ok(names.into_values().collect())
}

fn without_comment(line: &str) -> &str {
    let end = if line.trim_start().starts_with('#') { Some(0) } else { line.find(" #") };
    line[..end.unwrap_or(line.len())].trim()
}

fn unquoted(text: &str) -> Result<String, String> {
    if text.starts_with('"') {
        return serde_json::from_str(text).map_err(|_| format!("the class name {text}"));
    }
    match text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        Some(inside) => Ok(inside.replace("''", "'")),
        None => Ok(text.to_string()),
    }
}

/// Paints the objects of a label file, largest first, as the trainer does where two overlap.
pub(crate) fn read_mask(
    text: &str,
    (width, height): (usize, usize),
    num_classes: usize,
    max_pixels: u64,
) -> Result<LabelMap, String> {
    let mut canvas = Canvas::new((width, height), max_pixels)?;
    let mut objects: Vec<(u8, Vec<(f64, f64)>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let expected = || {
            format!("line {number}: expected a class below {} and at least three corners", num_classes - 1)
        };
        let numbers =
            numbers.filter(|numbers| numbers.len() >= 7 && numbers.len() % 2 == 1).ok_or_else(expected)?;
        let class = numbers[0];
        if class < 0.0 || class.fract() != 0.0 || class + 1.0 >= num_classes as f64 {
            return Err(expected());
        }
        if let Some(wrong) = numbers[1..].iter().find(|share| !(-1.0..=2.0).contains(*share)) {
            return Err(format!(
                "line {number}: the coordinate {wrong}; expected shares of width and height"
            ));
        }
        let corner = |pair: &[f64]| (pair[0] * width as f64, pair[1] * height as f64);
        let outline: Vec<(f64, f64)> = numbers[1..].chunks_exact(2).map(corner).collect();
        objects.push((class as u8 + 1, outline));
    }
    objects.sort_by(|(_, a), (_, b)| area(b).total_cmp(&area(a)));
    for (label, outline) in objects {
        canvas.polygon(&outline, label);
    }
    Ok(canvas.into_map())
}

fn area(outline: &[(f64, f64)]) -> f64 {
    let next = outline.iter().cycle().skip(1);
    outline.iter().zip(next).map(|(a, b)| a.0 * b.1 - b.0 * a.1).sum::<f64>().abs() / 2.0
}
