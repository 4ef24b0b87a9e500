//! The PASCAL VOC devkit and data sets laid out like it: images in `JPEGImages`, tags in `Annotations/*.xml`, lists in
//! `ImageSets`, masks in `SegmentationClassAug` or `SegmentationClass`.

use crate::file_index::{FileIndex, file_name, without_extension};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::tag_rows::problem_of_unresolved;
use crate::xml_text::text_of_reference;
use crate::{Difficult, MaskSource, Problem, ProblemKind, ReadingNote, annotation_file, split};
use quick_xml::Reader;
use quick_xml::events::Event;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of images.
pub(crate) const IMAGE_FOLDER: &str = "JPEGImages";

/// Reads a devkit; `images` indexes its `JPEGImages`.
pub(crate) fn read(root: &Path, images: &FileIndex, difficult: Difficult) -> Listing {
    let mut problems = Vec::new();
    let mask_folder = MaskFolder::of(root);
    let (listed, mask_coverage) = listed_images(root, images, &mask_folder, &mut problems);
    let annotations = root.join("Annotations");
    let annotations = annotations.is_dir().then_some(annotations);
    if annotations.is_none() {
        let detail =
            "no folder Annotations, so no image has a tag (--tags-from-masks takes them from the masks)";
        problems.push(Problem::new(ProblemKind::ImageWithoutTag, root.join("Annotations"), detail));
    }
    let listed: Vec<(usize, Vec<String>)> = listed.into_iter().collect();
    let read: Vec<Result<(Entry, Annotated), Problem>> = listed
        .into_par_iter()
        .map(|(image, splits)| {
            let id = without_extension(&images.images[image].relative);
            let source = annotations.as_ref().map(|folder| folder.join(format!("{id}.xml")));
            let (tags, annotated) = match &source {
                None => (Vec::new(), Annotated::Yes),
                // Half of the objects would pass for all of them; no image is better than wrong tags.
                Some(path) => match read_objects(path)? {
                    Some(objects) => (tags_of(objects, difficult), Annotated::Yes),
                    None => (Vec::new(), Annotated::No),
                },
            };
            let source = source.unwrap_or_else(|| root.to_path_buf());
            let splits = splits.into_iter().map(Arc::from).collect();
            let mut entry = Entry::of_indexed(images, image, source.into(), tags, splits);
            entry.truth = mask_folder.mask_of(id).map(MaskSource::Png);
            Ok((entry, annotated))
        })
        .collect();
    let mut entries = Vec::with_capacity(read.len());
    let mut names = Vec::new();
    for image in read {
        match image {
            Ok((entry, annotated)) => {
                if annotated == Annotated::No {
                    names.push(entry.name.clone());
                }
                entries.push(entry);
            }
            Err(problem) => problems.push(problem),
        }
    }
    let notes = if names.is_empty() { Vec::new() } else { vec![ReadingNote::NoAnnotation { names }] };
    Listing { entries, class_names: class_names(root), mask_coverage, problems, notes }
}

/// Whether an image has an annotation file, if there is a folder of such files.
#[derive(PartialEq, Eq)]
enum Annotated {
    Yes,
    No,
}

/// The masks, by image id.
struct MaskFolder {
    path_of_id: HashMap<String, PathBuf>,
    is_augmented: bool,
}

impl MaskFolder {
    fn of(root: &Path) -> Self {
        let augmented = root.join("SegmentationClassAug");
        let is_augmented = augmented.is_dir();
        let folder = if is_augmented { augmented } else { root.join("SegmentationClass") };
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|item| item.path());
        let masks = files.filter(|path| path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("png")));
        let id_of = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        MaskFolder { path_of_id: masks.map(|path| (id_of(&path), path)).collect(), is_augmented }
    }

    fn mask_of(&self, id: &str) -> Option<PathBuf> {
        self.path_of_id.get(id).cloned()
    }
}

/// The listed images with their splits; without lists, all images.
fn listed_images(
    root: &Path,
    images: &FileIndex,
    masks: &MaskFolder,
    problems: &mut Vec<Problem>,
) -> (BTreeMap<usize, Vec<String>>, MaskCoverage) {
    let mut listed: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let segmentation = split::list_files(&root.join("ImageSets/Segmentation")).unwrap_or_default();
    if segmentation.is_empty() {
        let main = split::usual_list_files(&root.join("ImageSets/Main"));
        add_lists(main, images, &mut listed, problems);
        if listed.is_empty() {
            listed = (0..images.images.len()).map(|image| (image, Vec::new())).collect();
        }
        return (listed, MaskCoverage::Partial);
    }
    let has_trainaug = segmentation.iter().any(|(name, _)| name == "trainaug");
    add_lists(segmentation, images, &mut listed, problems);
    if masks.is_augmented && !has_trainaug {
        let ids: BTreeSet<&str> = masks.path_of_id.keys().map(String::as_str).collect();
        for image in ids.into_iter().filter_map(|id| images.resolve(id, &[]).ok()) {
            let splits = listed.entry(image).or_default();
            if !splits.iter().any(|name| name == "val") {
                splits.push("trainaug".to_string());
            }
        }
    }
    (listed, MaskCoverage::Whole)
}

fn add_lists(
    lists: Vec<(String, PathBuf)>,
    images: &FileIndex,
    listed: &mut BTreeMap<usize, Vec<String>>,
    problems: &mut Vec<Problem>,
) {
    for (split, path) in lists {
        let lines = match split::read_list(&path) {
            Ok(lines) => lines,
            Err(error) => {
                problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, error.to_string()));
                continue;
            }
        };
        for (number, line) in lines {
            let id = id_of_line(images, &line);
            let place = format!("line {number}");
            match images.resolve(&id, &[]) {
                Err(why) => problems.push(problem_of_unresolved(images, &path, &place, &id, &why)),
                Ok(image) => {
                    let splits = listed.entry(image).or_default();
                    if splits.contains(&split) {
                        let detail = format!("{place} of {} names it a second time", path.display());
                        problems.push(Problem::new(
                            ProblemKind::DuplicateEntry,
                            &images.images[image].path,
                            detail,
                        ));
                    } else {
                        splits.push(split.clone());
                    }
                }
            }
        }
    }
}

/// A line is an id, an id and a number (`Main`), or the paths of an image and its mask (`trainaug`). An id may contain
/// spaces.
fn id_of_line(images: &FileIndex, line: &str) -> String {
    if images.resolve(line, &[]).is_ok() {
        return line.to_string();
    }
    let first = line.split_whitespace().next().unwrap_or(line);
    let id = first.trim_start_matches('/').strip_prefix(&format!("{IMAGE_FOLDER}/")).unwrap_or(first);
    if images.resolve(id, &[]).is_ok() { id.to_string() } else { file_name(id).to_string() }
}

/// Names from `labelmap.txt` (CVAT writes `name:colour:parts:actions`, background first), if there is one.
fn class_names(root: &Path) -> ClassNames {
    let Ok(text) = std::fs::read_to_string(root.join("labelmap.txt")) else {
        return ClassNames::VocIfMet;
    };
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let named = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let names: Vec<String> = named.filter_map(|line| line.split(':').next()).map(str::to_string).collect();
    if names.is_empty() { ClassNames::VocIfMet } else { ClassNames::Given(names) }
}

#[derive(Default)]
struct Object {
    name: String,
    is_difficult: bool,
}

fn tags_of(objects: Vec<Object>, difficult: Difficult) -> Vec<Arc<str>> {
    let counts = |object: &Object| difficult == Difficult::Include || !object.is_difficult;
    objects.into_iter().filter(counts).map(|object| object.name.into()).collect()
}

/// The objects of an annotation; `None` if the file is missing.
fn read_objects(path: &Path) -> Result<Option<Vec<Object>>, Problem> {
    let unreadable = |detail: String| Problem::new(ProblemKind::UnreadableAnnotation, path, detail);
    match annotation_file::read(path) {
        Ok(bytes) => {
            let objects = parse_objects(&String::from_utf8_lossy(&bytes));
            objects.map(Some).map_err(|reason| unreadable(format!("{reason}; the image is left out")))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// The objects' names and flags. Parts of objects (`object/part/name`) do not count.
fn parse_objects(text: &str) -> Result<Vec<Object>, String> {
    let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
    let mut path: Vec<String> = Vec::new();
    let mut objects: Vec<Object> = Vec::new();
    let mut has_root = false;
    loop {
        let at = reader.buffer_position();
        match reader.read_event().map_err(|e| format!("byte {at}: {e}"))? {
            Event::Start(element) => {
                has_root = true;
                path.push(element.local_name().as_ref().to_string());
                if path.len() == 2 && path[1] == "object" {
                    objects.push(Object::default());
                }
            }
            Event::End(_) => _ = path.pop(),
            Event::Text(text) => add_text(&path, &text.xml10_content(), &mut objects),
            Event::CData(text) => add_text(&path, &text.xml10_content(), &mut objects),
            Event::GeneralRef(reference) => add_text(&path, &text_of_reference(&reference), &mut objects),
            Event::Eof if !has_root => return Err("no XML element in it".to_string()),
            Event::Eof if path.is_empty() => break,
            Event::Eof => return Err(format!("the file ends within <{}>: truncated", path.join("><"))),
            _ => {}
        }
    }
    for object in &mut objects {
        object.name = object.name.trim().to_string();
    }
    match objects.iter().any(|object| object.name.is_empty()) {
        true => Err("an object without a name".to_string()),
        false => Ok(objects),
    }
}

fn add_text(path: &[String], text: &str, objects: &mut [Object]) {
    let [_, object, field] = path else { return };
    let Some(last) = objects.last_mut().filter(|_| object == "object") else {
        return;
    };
    match field.as_str() {
        "name" => last.name.push_str(text),
        "difficult" => last.is_difficult |= matches!(text.trim(), "1" | "true" | "True"),
        _ => {}
    }
}
