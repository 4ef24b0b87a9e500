//! Detects a folder's layout by file names and, if these do not decide, by the first bytes of a file. Parsing is left
//! to the readers.

use crate::file_index::{FileIndex, IMAGES, has_image_extension, has_images_in_folders};
use crate::table_rows::TableFormat;
use crate::tags_table::num_images_named;
use crate::{DataError, Problem, ProblemKind, split, tags_json};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The supported layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatasetLayout {
    /// `JPEGImages`, `Annotations`, `ImageSets`.
    VocDevkit,
    /// `instances_*.json`.
    Coco,
    /// `tags.csv`, or another table in text.
    TagsCsv,
    /// `tags.xlsx`, or another Excel workbook.
    TagsXlsx,
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

impl fmt::Display for DatasetLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DatasetLayout::VocDevkit => "VOC devkit",
            DatasetLayout::Coco => "COCO",
            DatasetLayout::TagsCsv => "table of tags (CSV)",
            DatasetLayout::TagsXlsx => "table of tags (Excel)",
            DatasetLayout::TagsJson => "JSON tags",
            DatasetLayout::TagsJsonl => "JSON tags, one object a line",
            DatasetLayout::ClassFolders => "class folders",
            DatasetLayout::LabelStudio => "Label Studio export",
            DatasetLayout::Cvat => "CVAT export",
        })
    }
}

/// Appended to the message if nothing is detected.
pub(crate) const EXPECTED_LAYOUTS: &str = "  \
  VOC devkit      JPEGImages/ with Annotations/, ImageSets/ or SegmentationClass/
  COCO            instances_*.json, here or in annotations/, and images/
  tag file        tags.csv, tags.xlsx, tags.json or tags.jsonl beside the images; a table may have any name
  class folders   one folder of images for each class, below train/ and val/ or not
  Label Studio    a JSON or JSON-MIN export (*.json) beside the images
  CVAT            annotations.xml (CVAT for images 1.1) beside the images";

/// Start of the problem text for a file that was checked for tags in vain.
const NOT_TAGS: &str = "not read as tags";

/// Number of files named in the message if no image has a tag.
const MAX_CAUSES: usize = 3;

/// A layout with its files.
pub(crate) enum Source {
    VocDevkit,
    Coco { instance_files: Vec<PathBuf> },
    TagsCsv(PathBuf),
    TagsXlsx(PathBuf),
    TagsJson(PathBuf),
    TagsJsonl(PathBuf),
    ClassFolders,
    LabelStudio(PathBuf),
    Cvat(PathBuf),
}

impl Source {
    fn table(format: TableFormat, file: &Path) -> Self {
        match format {
            TableFormat::Csv => Source::TagsCsv(file.to_path_buf()),
            TableFormat::Xlsx => Source::TagsXlsx(file.to_path_buf()),
        }
    }

    pub(crate) fn layout(&self) -> DatasetLayout {
        match self {
            Source::VocDevkit => DatasetLayout::VocDevkit,
            Source::Coco { .. } => DatasetLayout::Coco,
            Source::TagsCsv(_) => DatasetLayout::TagsCsv,
            Source::TagsXlsx(_) => DatasetLayout::TagsXlsx,
            Source::TagsJson(_) => DatasetLayout::TagsJson,
            Source::TagsJsonl(_) => DatasetLayout::TagsJsonl,
            Source::ClassFolders => DatasetLayout::ClassFolders,
            Source::LabelStudio(_) => DatasetLayout::LabelStudio,
            Source::Cvat(_) => DatasetLayout::Cvat,
        }
    }

    /// The file with the tags, for layouts with a single one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Source::TagsCsv(file)
            | Source::TagsXlsx(file)
            | Source::TagsJson(file)
            | Source::TagsJsonl(file)
            | Source::LabelStudio(file)
            | Source::Cvat(file) => Some(file),
            Source::VocDevkit | Source::Coco { .. } | Source::ClassFolders => None,
        }
    }
}

/// A detected layout.
pub(crate) struct Found {
    pub(crate) source: Source,
    /// The folder that names are relative to.
    pub(crate) root: PathBuf,
    pub(crate) problems: Vec<Problem>,
    /// The index of images below the root, if detection needed it.
    pub(crate) index: Option<FileIndex>,
}

impl Found {
    /// Detects the layout of a folder, a tag file or an export.
    pub(crate) fn at(path: &Path) -> Result<Found, DataError> {
        let metadata = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
        let found = if metadata.is_dir() { in_folder(path)? } else { of_file(path) };
        found.ok_or_else(|| DataError::NothingRecognised { path: path.to_path_buf() })
    }

    fn new(source: Source, root: &Path) -> Self {
        Found { source, root: root.to_path_buf(), problems: Vec::new(), index: None }
    }

    /// Text and JSON files without tags are only reported if there are no tags: next to class folders they are lists
    /// and notes.
    pub(crate) fn pass_over_texts(&mut self) {
        self.problems
            .retain(|problem| !(problem.detail.starts_with(NOT_TAGS) && is_seldom_tags(&problem.path)));
    }

    /// The error if class folders turn out to be none.
    pub(crate) fn without_tags(&self, images: usize) -> DataError {
        no_tags(&self.root, images, &self.problems)
    }
}

fn in_folder(path: &Path) -> Result<Option<Found>, DataError> {
    let children = children_of(path).map_err(|e| DataError::io(path, e))?;
    if let Some(found) = voc_at_or_below(path, &children) {
        return Ok(Some(found));
    }
    let mut sources = Vec::new();
    let in_annotations = children_of(&path.join("annotations")).unwrap_or_default();
    let instance_files: Vec<PathBuf> =
        children.iter().chain(&in_annotations).filter(|file| is_instance_file(file)).cloned().collect();
    if !instance_files.is_empty() {
        sources.push(Source::Coco { instance_files });
    }
    let single_files = [
        ("tags.csv", Source::TagsCsv as fn(PathBuf) -> Source),
        ("tags.tsv", Source::TagsCsv),
        ("tags.xlsx", Source::TagsXlsx),
        ("tags.json", Source::TagsJson),
        ("tags.jsonl", Source::TagsJsonl),
        ("annotations.xml", Source::Cvat),
    ];
    let single_files = single_files.into_iter().map(|(name, source)| (path.join(name), source));
    sources.extend(single_files.filter(|(file, _)| file.is_file()).map(|(file, source)| source(file)));
    if sources.is_empty() {
        let exports = children.iter().filter(|file| extension_is(file, "json") && is_label_studio(file));
        sources.extend(exports.cloned().map(Source::LabelStudio));
    }
    let (mut index, mut problems) = (None, Vec::new());
    if sources.is_empty() {
        let mut below = Vec::new();
        if children.iter().any(|file| may_hold_tags(file)) {
            let images = index.insert(FileIndex::walk(path));
            (sources, problems) = tag_files_of(&children, images);
        }
        if sources.is_empty() && !has_class_folders(&children) {
            below = children
                .iter()
                .filter(|child| child.is_dir())
                .flat_map(|child| children_of(child).unwrap_or_default())
                .collect();
        }
        if below.iter().any(|file| may_hold_tags(file)) {
            let images = index.get_or_insert_with(|| FileIndex::walk(path));
            // Files this far down that are no tag tables are not reported.
            sources = tag_files_of(&below, images).0;
        }
    }
    if sources.is_empty() && has_images_in_folders(path) {
        sources.push(Source::ClassFolders);
    }
    if sources.is_empty() {
        let index = index.unwrap_or_else(|| FileIndex::walk(path));
        if problems.is_empty() {
            // A file whose name says nothing of tags may still be what was meant.
            problems = json_without_tags(&children, &index);
        }
        return match index.images.len() {
            0 => Ok(None),
            images => Err(no_tags(path, images, &problems)),
        };
    }
    let mut sources = sources.into_iter();
    let Some(first) = sources.next() else { return Ok(None) };
    let mut found = Found { index, problems, ..Found::new(first, path) };
    for other in sources {
        let layouts = (other.layout(), found.source.layout());
        let detail = format!("also looks like a {} data set; the folder is read as {}", layouts.0, layouts.1);
        found.problems.push(Problem::new(ProblemKind::Ignored, other.file().unwrap_or(path), detail));
    }
    Ok(Some(found))
}

fn of_file(path: &Path) -> Option<Found> {
    let root = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = path.to_path_buf();
    if let Some(format) = table_format(path) {
        return Some(Found::new(Source::table(format, path), root));
    }
    let extension = path.extension()?.to_string_lossy().to_lowercase();
    let source = match extension.as_str() {
        "jsonl" | "ndjson" => Source::TagsJsonl(file),
        "xml" => Source::Cvat(file),
        "json" if is_instance_file(path) => {
            let in_annotations = root.file_name().is_some_and(|name| name == "annotations");
            let above = root.parent().filter(|_| in_annotations).unwrap_or(root);
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            return Some(Found::new(Source::Coco { instance_files: vec![file] }, above));
        }
        "json" if is_label_studio(path) => Source::LabelStudio(file),
        "json" => Source::TagsJson(file),
        _ => return None,
    };
    Some(Found::new(source, root))
}

/// Whether images are in folders that are probably named by class: in several, or in one and next to it.
fn has_class_folders(children: &[PathBuf]) -> bool {
    let is_named_by_class = |child: &&PathBuf| {
        let name = child.file_name().unwrap_or_default().to_string_lossy();
        child.is_dir()
            && name != IMAGES
            && split::canonical(&name).is_none()
            && !FileIndex::walk(child).images.is_empty()
    };
    let num_folders = children.iter().filter(is_named_by_class).take(2).count();
    let is_image = |child: &PathBuf| child.is_file() && child.extension().is_some_and(has_image_extension);
    num_folders == 2 || num_folders == 1 && children.iter().any(is_image)
}

/// Whether a file of this name may contain tags.
fn may_hold_tags(file: &Path) -> bool {
    table_format(file).is_some() || is_other_spreadsheet(file) || extension_is(file, "json")
}

/// The files with tags, likeliest first, and what is wrong with the others.
fn tag_files_of(files: &[PathBuf], index: &FileIndex) -> (Vec<Source>, Vec<Problem>) {
    let (mut sources, mut problems) = (Vec::new(), Vec::new());
    for file in files.iter().filter(|file| file.is_file()) {
        let ignored = |reason| not_tags(file, reason);
        if is_other_spreadsheet(file) {
            problems.push(ignored("a spreadsheet of another format; save it as .xlsx or .csv".into()));
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let read = match table_format(file) {
            Some(format) => num_images_named(file, format, index).map(|_| Source::table(format, file)),
            None if extension_is(file, "json") => {
                tags_json::check(file, index).map(|()| Source::TagsJson(file.clone()))
            }
            None => continue,
        };
        let is_called_so = || ["tag", "label", "annotation"].iter().any(|word| name.contains(word));
        match read {
            // The lists that come with a benchmark's images have no tags, or invented ones.
            Ok(source) => sources.push((name.starts_with("test") || name.contains("submission"), source)),
            Err(_) if is_seldom_tags(file) && !is_called_so() => {}
            Err(reason) => problems.push(ignored(reason)),
        }
    }
    sources.sort_by_key(|(is_unlikely, _)| *is_unlikely);
    (sources.into_iter().map(|(_, source)| source).collect(), problems)
}

fn not_tags(file: &Path, reason: String) -> Problem {
    Problem::new(ProblemKind::Ignored, file, format!("{NOT_TAGS}: {reason}"))
}

/// JSON files, and why they are not tags.
fn json_without_tags(files: &[PathBuf], index: &FileIndex) -> Vec<Problem> {
    let json = files.iter().filter(|file| extension_is(file, "json"));
    json.filter_map(|file| Some(not_tags(file, tags_json::check(file, index).err()?))).collect()
}

/// Whether a file is text or JSON, which seldom hold tags unless named so.
fn is_seldom_tags(file: &Path) -> bool {
    ["txt", "json"].iter().any(|extension| extension_is(file, extension))
}

/// The table format of a file, by name.
fn table_format(file: &Path) -> Option<TableFormat> {
    let extension = file.extension()?.to_string_lossy().to_lowercase();
    match extension.as_str() {
        "csv" | "tsv" | "tab" | "txt" => Some(TableFormat::Csv),
        "xlsx" | "xlsm" => Some(TableFormat::Xlsx),
        _ => None,
    }
}

fn is_other_spreadsheet(file: &Path) -> bool {
    ["xls", "ods", "numbers"].iter().any(|extension| extension_is(file, extension))
}

/// The error for images without tags, with the probable cause.
fn no_tags(path: &Path, images: usize, problems: &[Problem]) -> DataError {
    let above = path.canonicalize().ok().and_then(|path| Some(path.parent()?.to_path_buf()));
    let tag_files = above.iter().flat_map(|above| {
        ["tags.csv", "tags.tsv", "tags.xlsx", "tags.json", "tags.jsonl"].map(|name| above.join(name))
    });
    let above = tag_files.filter(|file| file.is_file()).map(|file| {
        format!("{}: there is a tag file in the folder above; name that folder instead", file.display())
    });
    let described = |problem: &Problem| format!("{}: {}", problem.path.display(), problem.detail);
    let causes: Vec<String> = problems.iter().take(MAX_CAUSES).map(described).collect();
    let cause = if causes.is_empty() { above.into_iter().next() } else { Some(causes.join("\n  ")) };
    DataError::NoTags { path: path.to_path_buf(), images, cause }
}

/// The devkit may be the folder itself, a subfolder, or a subfolder of its `VOCdevkit`.
fn voc_at_or_below(path: &Path, children: &[PathBuf]) -> Option<Found> {
    if is_voc(path) {
        return Some(Found::new(Source::VocDevkit, path));
    }
    let below: Vec<PathBuf> = children.iter().filter(|child| is_voc(child)).cloned().collect();
    let mut years = if below.is_empty() {
        let devkit = children_of(&path.join("VOCdevkit")).unwrap_or_default();
        devkit.into_iter().filter(|child| is_voc(child)).collect()
    } else {
        below
    };
    let newest = years.pop()?;
    let mut found = Found::new(Source::VocDevkit, &newest);
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

/// Whether the start of a JSON file has the keys of a Label Studio export: a list of tasks with `data` and
/// `annotations` (`completions` before version 1), or flat objects with an `annotation_id`.
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

/// The entries of a folder, sorted by name, without hidden ones and Excel's lock files (`~$…`).
fn children_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut children = Vec::new();
    for item in std::fs::read_dir(folder)? {
        let path = item?.path();
        let is_hidden =
            |name: &OsStr| [&b"."[..], b"~$"].iter().any(|it| name.as_encoded_bytes().starts_with(it));
        if !path.file_name().is_some_and(is_hidden) {
            children.push(path);
        }
    }
    children.sort();
    Ok(children)
}
