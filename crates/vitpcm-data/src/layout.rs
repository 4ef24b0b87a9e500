//! Which layout a folder has, told by looking at names and, where these do not decide, at the first bytes of a
//! file. What is in the files is left to the readers.

use crate::file_index::has_images_in_folders;
use crate::{DataError, Problem, ProblemKind};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The layouts that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// `JPEGImages`, `Annotations`, `ImageSets`.
    VocDevkit,
    /// `instances_*.json`.
    Coco,
    /// `tags.csv`.
    TagsCsv,
    /// `tags.json`.
    TagsJson,
    /// `tags.jsonl`.
    TagsJsonl,
    /// Folders named by class.
    ClassFolders,
    /// A JSON or JSON-MIN export of Label Studio.
    LabelStudio,
    /// `annotations.xml`, "CVAT for images 1.1".
    Cvat,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::VocDevkit => "VOC devkit",
            Layout::Coco => "COCO",
            Layout::TagsCsv => "tags.csv",
            Layout::TagsJson => "tags.json",
            Layout::TagsJsonl => "tags.jsonl",
            Layout::ClassFolders => "class folders",
            Layout::LabelStudio => "Label Studio export",
            Layout::Cvat => "CVAT export",
        })
    }
}

/// For the message when nothing is recognised.
pub(crate) const EXPECTED_LAYOUTS: &str = "  \
  VOC devkit      JPEGImages/ with Annotations/, ImageSets/ or SegmentationClass/
  COCO            instances_*.json, here or in annotations/, and images/
  tag file        tags.csv, tags.json or tags.jsonl beside the images
  class folders   one folder of images for each class, below train/ and val/ or not
  Label Studio    a JSON or JSON-MIN export (*.json) beside the images
  CVAT            annotations.xml (CVAT for images 1.1) beside the images";

/// What was recognised, and the files that said so.
pub(crate) struct Found {
    pub(crate) layout: Layout,
    /// The folder that names are relative to.
    pub(crate) root: PathBuf,
    /// The one file with the tags, for layouts that have one.
    pub(crate) file: Option<PathBuf>,
    /// COCO's instance files.
    pub(crate) instance_files: Vec<PathBuf>,
    pub(crate) problems: Vec<Problem>,
}

impl Found {
    /// Looks at a folder, or at a single tag file or export.
    pub(crate) fn at(path: &Path) -> Result<Found, DataError> {
        let metadata = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
        let found = if metadata.is_dir() { in_folder(path)? } else { of_file(path) };
        found.ok_or_else(|| DataError::NothingRecognised { path: path.to_path_buf() })
    }

    fn new(layout: Layout, root: &Path) -> Self {
        Found {
            layout,
            root: root.to_path_buf(),
            file: None,
            instance_files: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn with_file(layout: Layout, root: &Path, file: PathBuf) -> Self {
        Found { file: Some(file), ..Found::new(layout, root) }
    }

    fn with_instances(root: &Path, instance_files: Vec<PathBuf>) -> Self {
        Found { instance_files, ..Found::new(Layout::Coco, root) }
    }
}

fn in_folder(path: &Path) -> Result<Option<Found>, DataError> {
    let children = children_of(path).map_err(|e| DataError::io(path, e))?;
    if let Some(found) = voc_at_or_below(path, &children) {
        return Ok(Some(found));
    }
    let mut candidates = Vec::new();
    let mut instances: Vec<PathBuf> =
        children.iter().filter(|file| is_instance_file(file)).cloned().collect();
    instances.extend(
        children_of(&path.join("annotations"))
            .unwrap_or_default()
            .into_iter()
            .filter(|file| is_instance_file(file)),
    );
    if !instances.is_empty() {
        candidates.push(Found::with_instances(path, instances));
    }
    let single_files = [
        ("tags.csv", Layout::TagsCsv),
        ("tags.json", Layout::TagsJson),
        ("tags.jsonl", Layout::TagsJsonl),
        ("annotations.xml", Layout::Cvat),
    ];
    for (name, layout) in single_files {
        let file = path.join(name);
        if file.is_file() {
            candidates.push(Found::with_file(layout, path, file));
        }
    }
    if candidates.is_empty() {
        let exports = children.into_iter().filter(|file| extension_is(file, "json") && is_label_studio(file));
        candidates.extend(exports.map(|file| Found::with_file(Layout::LabelStudio, path, file)));
    }
    if candidates.is_empty() && has_images_in_folders(path) {
        candidates.push(Found::new(Layout::ClassFolders, path));
    }
    let mut candidates = candidates.into_iter();
    let Some(mut first) = candidates.next() else {
        return Ok(None);
    };
    for other in candidates {
        let file = other.file.unwrap_or(other.root);
        let detail =
            format!("also looks like a {} data set; the folder is read as {}", other.layout, first.layout);
        first.problems.push(Problem::new(ProblemKind::Ignored, file, detail));
    }
    Ok(Some(first))
}

fn of_file(path: &Path) -> Option<Found> {
    let root = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let with_file = |layout| Some(Found::with_file(layout, root, path.to_path_buf()));
    let extension = path.extension()?.to_string_lossy().to_lowercase();
    match extension.as_str() {
        "csv" | "tsv" => with_file(Layout::TagsCsv),
        "jsonl" | "ndjson" => with_file(Layout::TagsJsonl),
        "xml" => with_file(Layout::Cvat),
        "json" if is_instance_file(path) => {
            let in_annotations = root.file_name().is_some_and(|name| name == "annotations");
            let above = root.parent().filter(|_| in_annotations).unwrap_or(root);
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            Some(Found::with_instances(above, vec![path.to_path_buf()]))
        }
        "json" if is_label_studio(path) => with_file(Layout::LabelStudio),
        "json" => with_file(Layout::TagsJson),
        _ => None,
    }
}

/// The devkit may be the folder itself, a folder in it, or a folder in its `VOCdevkit`.
fn voc_at_or_below(path: &Path, children: &[PathBuf]) -> Option<Found> {
    if is_voc(path) {
        return Some(Found::new(Layout::VocDevkit, path));
    }
    let below: Vec<PathBuf> = children.iter().filter(|child| is_voc(child)).cloned().collect();
    let mut years = if below.is_empty() {
        let devkit = children_of(&path.join("VOCdevkit")).unwrap_or_default();
        devkit.into_iter().filter(|child| is_voc(child)).collect()
    } else {
        below
    };
    let newest = years.pop()?;
    let mut found = Found::new(Layout::VocDevkit, &newest);
    for other in years {
        let detail =
            format!("another VOC folder; {} is read, name this one to read it instead", newest.display());
        found.problems.push(Problem::new(ProblemKind::Ignored, other, detail));
    }
    Some(found)
}

fn is_voc(folder: &Path) -> bool {
    folder.join("JPEGImages").is_dir()
        && ["Annotations", "ImageSets", "SegmentationClass"].iter().any(|name| folder.join(name).is_dir())
}

fn is_instance_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("instances_") && name.ends_with(".json")
}

/// Whether the first part of a JSON file has the keys of a Label Studio export: a list of tasks with `data` and
/// `annotations` (`completions` before version 1), or flat objects that carry their `annotation_id`.
fn is_label_studio(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let is_list = text.trim_start_matches('\u{feff}').trim_start().starts_with('[');
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    let full = has("data") && (has("annotations") || has("completions"));
    let minimal = has("annotation_id") || has("annotator") || has("lead_time");
    read.is_ok() && is_list && (full || minimal)
}

fn extension_is(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// What lies in a folder, sorted by name, hidden items left out.
fn children_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut children = Vec::new();
    for item in std::fs::read_dir(folder)? {
        let path = item?.path();
        if !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            children.push(path);
        }
    }
    children.sort();
    Ok(children)
}
