//! Which images a command works on, what their results are called, and which tags are known of them.

use crate::outcome::usage;
use crate::output::Messages;
use anyhow::{Context, anyhow, bail};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::ops::Not;
use std::path::{Path, PathBuf};
use vitpcm_data::{Dataset, Difficult, IMAGE_FORMATS, ImageFile, OpenOptions, TaggedImage, find_images};
use vitpcm_masks::Classes;

/// An image and the name of its results.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    /// Path of its results below the output folder, without extension.
    pub(crate) name: String,
}

/// Images to work on, in the order of the paths given, and how many cannot be.
pub(crate) struct Inputs {
    pub(crate) images: Vec<Input>,
    pub(crate) num_failed: usize,
}

/// All images of the paths given but those that are `results` of an earlier run. What cannot be listed is named; two images
/// whose results would have one name are refused.
pub(crate) fn collect(
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
    /// For copies of a data set's images that lie elsewhere; `None` where a name stands for several images.
    by_file_name: HashMap<OsString, Option<Vec<usize>>>,
    /// What it was read from.
    pub(crate) files: Vec<PathBuf>,
}

impl TagTable {
    /// Tags of `file` for the images of `paths`, of all or of one split. Tags that the model does not know are an error
    /// that lists them.
    pub(crate) fn read(
        file: &Path,
        paths: &[PathBuf],
        classes: &Classes,
        split: Option<&str>,
        difficult: Difficult,
    ) -> anyhow::Result<TagTable> {
        let mut table = TagTable { by_path: HashMap::new(), by_file_name: HashMap::new(), files: Vec::new() };
        let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
        for path in paths {
            let folder = if path.is_dir() { path.as_path() } else { path.parent().unwrap_or(Path::new(".")) };
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            // A data set knows its own images; a tag file may lie anywhere.
            let images = (!file.is_dir()).then(|| folder.to_path_buf());
            let options = OpenOptions { images, difficult, ..OpenOptions::default() };
            let dataset = Dataset::open(file, &options)?;
            table.files.extend(dataset.sources().map(Path::to_path_buf));
            for image in images_of(&dataset, split).with_context(|| format!("{}", file.display()))? {
                let mut tags = Vec::with_capacity(image.tags.len());
                for tag in image.tags.iter() {
                    let name = dataset.classes().name(usize::from(tag)).unwrap_or_default();
                    match classes.index_of(name) {
                        Some(index) => tags.push(index),
                        None => *unknown.entry(name.to_string()).or_default() += 1,
                    }
                }
                let is_new = table.by_path.insert(key(&image.path), tags.clone()).is_none();
                if let (true, Some(name)) = (is_new, image.path.file_name()) {
                    let once = table.by_file_name.contains_key(name).not().then_some(tags);
                    table.by_file_name.insert(name.to_os_string(), once);
                }
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.keys().map(|name| format!("`{name}`")).collect();
            let known = classes.names()[1..].join(", ");
            bail!("{}: the model does not know {}; it knows {known}", file.display(), names.join(", "));
        }
        Ok(table)
    }

    /// Whether the file names this very image, not one of the same name elsewhere.
    pub(crate) fn lists(&self, image: &Path) -> bool {
        self.by_path.contains_key(&key(image))
    }

    /// The tags of an image, if the file says anything about it.
    pub(crate) fn tags_of(&self, image: &Path) -> Option<&[usize]> {
        let by_name = || self.by_file_name.get(image.file_name()?)?.as_ref();
        self.by_path.get(&key(image)).or_else(by_name).map(Vec::as_slice)
    }
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

/// One path for one file, however it was reached.
fn key(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}
