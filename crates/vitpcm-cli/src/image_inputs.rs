//! The images that a command works on, the names of their results, and their known tags.

use crate::outcome::usage;
use crate::output::Messages;
use anyhow::{Context, anyhow, bail};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::ops::Not;
use std::path::{Path, PathBuf};
use vitpcm_data::{
    ClassLookup, Dataset, Difficult, IMAGE_FORMATS, ImageFile, OpenOptions, Problem, ProblemKind,
    ReadingNote, TaggedImage, find_images,
};
use vitpcm_masks::Classes;

/// An image and the name of its results.
pub struct Input {
    /// The file.
    pub path: PathBuf,
    /// Path of its results below the output folder, without extension.
    pub name: String,
}

impl Input {
    /// The image with its name below the given folder.
    fn image_file(&self) -> ImageFile {
        let file_name = self.path.file_name().unwrap_or_default();
        let name = Path::new(&self.name).with_file_name(file_name).to_string_lossy().into_owned();
        ImageFile { path: self.path.clone(), name }
    }
}

/// Images to work on, in the order of the given paths, and the number of failures.
pub struct Inputs {
    /// The images.
    pub images: Vec<Input>,
    /// Paths that are no image or cannot be listed; each was reported.
    pub num_failed: usize,
}

/// All images below the given paths, except `results` of an earlier run. Unreadable folders are reported; two images
/// whose results would share a name are an error.
pub fn collect(
    paths: &[PathBuf],
    is_result: impl Fn(&Path) -> bool,
    messages: &Messages,
) -> anyhow::Result<Inputs> {
    let mut inputs = Inputs { images: Vec::new(), num_failed: 0 };
    let mut names: HashMap<String, usize> = HashMap::new();
    for path in paths {
        if !path.exists() {
            messages.failure(format!("{}: there is no such file or folder", path.display()));
            inputs.num_failed += 1;
            continue;
        }
        let (images, problems) = find_images(path);
        for problem in problems {
            messages.failure(problem);
            inputs.num_failed += 1;
        }
        for ImageFile { path, name } in images.into_iter().filter(|image| !is_result(&image.path)) {
            let name = Path::new(&name).with_extension("").to_string_lossy().into_owned();
            if let Some(first) = names.insert(name.clone(), inputs.images.len()) {
                return Err(usage(anyhow!(
                    "{} and {}: the results of both would be called {name}; rename one of them, or use two output \
                     folders",
                    inputs.images[first].path.display(),
                    path.display()
                )));
            }
            inputs.images.push(Input { path, name });
        }
    }
    if inputs.images.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        bail!("no image found in {}; {IMAGE_FORMATS} are read", paths.join(", "));
    }
    Ok(inputs)
}

/// Tags of images, read from a tag file or a data set, as indices of the model's classes.
pub(crate) struct TagTable {
    by_path: HashMap<PathBuf, Vec<usize>>,
    /// For copies of a data set's images in other folders; `None` if several images share the name.
    by_file_name: HashMap<OsString, Option<Vec<usize>>>,
    /// The folder of a data set; `None` for a tag file, which is read for the given images.
    data_set: Option<PathBuf>,
    /// The files it was read from.
    pub(crate) files: Vec<PathBuf>,
    /// How it was interpreted, and what failed.
    pub(crate) remarks: Vec<String>,
}

impl TagTable {
    /// Reads tags for these images, from all splits or one. Tags that the model does not know are an error that lists
    /// them.
    pub(crate) fn read(
        file: &Path,
        inputs: &[Input],
        classes: &Classes,
        split: Option<&str>,
        difficult: Difficult,
    ) -> anyhow::Result<TagTable> {
        // A data set lists its own images; a tag file may lie anywhere.
        let images = (!file.is_dir()).then(|| inputs.iter().map(Input::image_file).collect());
        let options = OpenOptions { images, difficult, ..OpenOptions::default() };
        let dataset = Dataset::open(file, &options)?;
        let mut table = TagTable {
            by_path: HashMap::new(),
            by_file_name: HashMap::new(),
            data_set: file.is_dir().then(|| key(file)),
            files: dataset.sources().map(Path::to_path_buf).collect(),
            remarks: remarks_on(&dataset),
        };
        let lookup = ClassLookup::new(classes);
        let mut unknown: BTreeSet<&str> = BTreeSet::new();
        for image in images_of(&dataset, split).with_context(|| format!("{}", file.display()))? {
            let mut tags = Vec::with_capacity(image.tags.len());
            for tag in image.tags.iter() {
                let name = dataset.classes().name(usize::from(tag)).unwrap_or_default();
                match lookup.index_of(name) {
                    Some(index) => tags.push(index),
                    None => _ = unknown.insert(name),
                }
            }
            let is_new = table.by_path.insert(key(&image.path), tags.clone()).is_none();
            if let (true, Some(name)) = (is_new, image.path.file_name()) {
                let once = table.by_file_name.contains_key(name).not().then_some(tags);
                table.by_file_name.insert(name.to_os_string(), once);
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> =
                unknown.iter().map(|name| format!("`{name}`{}", lookup.question(name))).collect();
            let known = classes.names()[1..].join(", ");
            bail!("{}: the model does not know {}; it knows {known}", file.display(), names.join(", "));
        }
        if split.is_none() && !inputs.iter().any(|input| table.tags_of(&input.path).is_some()) {
            let first = inputs.first().map(|input| input.path.display().to_string()).unwrap_or_default();
            let more = if inputs.len() > 1 { ", …" } else { "" };
            let cause =
                dataset.problems().first().map_or_else(String::new, |problem| format!("\n  {problem}"));
            bail!("{}: it names none of the images ({first}{more}){cause}", file.display());
        }
        Ok(table)
    }

    /// Whether the file lists this very image, not one of the same name elsewhere.
    pub(crate) fn lists(&self, image: &Path) -> bool {
        self.by_path.contains_key(&key(image))
    }

    /// The tags of an image, if the file lists it.
    pub(crate) fn tags_of(&self, image: &Path) -> Option<&[usize]> {
        let path = key(image);
        let is_elsewhere = self.data_set.as_ref().is_some_and(|folder| !path.starts_with(folder));
        let by_name = || self.by_file_name.get(image.file_name().filter(|_| is_elsewhere)?)?.as_ref();
        self.by_path.get(&path).or_else(by_name).map(Vec::as_slice)
    }
}

/// Remarks about tags read for some images, without those about other images.
fn remarks_on(dataset: &Dataset) -> Vec<String> {
    const MAX_PROBLEMS: usize = 10;
    let notes = dataset.notes().iter().filter(|note| !matches!(note, ReadingNote::Unlisted { .. }));
    let is_serious = |problem: &&Problem| {
        matches!(problem.kind, ProblemKind::UnreadableAnnotation | ProblemKind::AmbiguousName)
    };
    let problems = dataset.problems().iter().filter(is_serious).take(MAX_PROBLEMS);
    notes.map(ToString::to_string).chain(problems.map(|problem| format!("warning: {problem}"))).collect()
}

/// The images of a split, or all.
fn images_of<'a>(dataset: &'a Dataset, split: Option<&str>) -> anyhow::Result<Vec<&'a TaggedImage>> {
    let Some(name) = split else { return Ok(dataset.images().iter().collect()) };
    let training = || (name == "training").then(|| dataset.training());
    let Some(split) = dataset.split(name).cloned().or_else(training) else {
        let known: Vec<&str> = dataset.splits().iter().map(|split| split.name.as_str()).collect();
        bail!("no split `{name}`; expected `training` or one of: {}", known.join(", "));
    };
    Ok(split.indices.iter().map(|&index| &dataset.images()[index]).collect())
}

/// A canonical path for lookups.
fn key(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}
