//! Which images a set of finished masks has, in every format: their names, their photographs and where each mask is.

use crate::{ExportError, cvat, label_studio, labelme, voc, yolo};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use vitpcm_data::{ImageFile, ImageLimits, MaskSource, find_images, read_coco_masks, read_image_header};
use vitpcm_masks::{Classes, NameMatch, mask_files};
use zip::ZipArchive;

/// The class list next to masks.
pub(crate) const CLASS_LIST: &str = "classes.txt";
/// Largest archive entry that is read; no label map is larger.
const MAX_ENTRY_BYTES: u64 = 1 << 30;

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) file_name: String,
    pub(crate) photograph: Option<PathBuf>,
    pub(crate) place: Place,
}

/// Where one mask is.
#[derive(Debug)]
pub(crate) enum Place {
    Png(PathBuf),
    Coco(MaskSource),
    Labelme(PathBuf),
    Yolo(PathBuf),
    LabelStudio { tasks: PathBuf, image: label_studio::ReadImage },
    Cvat { store: std::sync::Arc<CvatStore>, entry: String },
}

/// What a format's files contain.
pub(crate) struct Found {
    /// Foreground classes, if they are named.
    pub(crate) names: Option<Vec<String>>,
    pub(crate) images: Vec<Item>,
    /// Where the images were found, if not in the obvious place.
    pub(crate) remark: Option<String>,
}

impl Found {
    fn new(names: Option<Vec<String>>, images: Vec<Item>) -> Found {
        Found { names, images, remark: None }
    }

    /// Matches each image of `masks` with a file in `folder` ([`NameMatch`]).
    pub(crate) fn take_images_from(&mut self, folder: &Path, masks: &Path) -> Result<(), ExportError> {
        if !folder.is_dir() {
            return Err(ExportError::bad_file(folder, "there is no such folder"));
        }
        let (files, _) = find_images(folder);
        let stem = |name: &str| Path::new(name).with_extension("");
        let images: Vec<(PathBuf, ImageFile)> =
            files.into_iter().map(|file| (stem(&file.name), file)).collect();
        let names: Vec<PathBuf> = self.images.iter().map(|item| stem(&item.file_name)).collect();
        let way = NameMatch::of(
            (masks, names.iter().map(PathBuf::as_path)),
            (folder, images.iter().map(|(name, _)| name.as_path())),
        )?;
        let by_key: HashMap<PathBuf, &ImageFile> =
            images.iter().filter_map(|(name, file)| Some((way.second_key(name)?, file))).collect();
        for (item, name) in self.images.iter_mut().zip(&names) {
            if let Some(file) = way.first_key(name).and_then(|key| by_key.get(&key)) {
                item.file_name = slashed(Path::new(&file.name));
                item.photograph = Some(file.path.clone());
            }
        }
        self.remark = way.remark(masks, folder);
        Ok(())
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ExportError> {
    fs::read(path).map_err(|e| ExportError::io(path, e))
}

pub(crate) fn size_of_image(path: &Path, limits: &ImageLimits) -> Result<(usize, usize), ExportError> {
    let header = read_image_header(path, limits)?;
    Ok((header.width as usize, header.height as usize))
}

fn slashed(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

/// A mask does not tell its image's extension; this is the most common one.
fn assumed_file_name(name: &Path) -> String {
    slashed(name) + ".jpg"
}

fn class_list(path: &Path) -> Result<Option<Vec<String>>, ExportError> {
    if !path.is_file() {
        return Ok(None);
    }
    Ok(Some(Classes::from_file(path)?.names()[1..].to_vec()))
}

pub(crate) fn png_folder(folder: &Path) -> Result<Found, ExportError> {
    let item = |(name, path): (PathBuf, PathBuf)| Item {
        file_name: assumed_file_name(&name),
        photograph: None,
        place: Place::Png(path),
    };
    let files = mask_files(folder)?;
    let mut folders = files.keys().map(|name| name.parent().unwrap_or(Path::new("")));
    // Masks that all lie one level down may have their class list there.
    let below = folders.next().filter(|first| folders.all(|other| other == *first)).unwrap_or(Path::new(""));
    let names = match class_list(&folder.join(CLASS_LIST))? {
        None => class_list(&folder.join(below).join(CLASS_LIST))?,
        names => names,
    };
    Ok(Found::new(names, files.into_iter().map(item).collect()))
}

pub(crate) fn voc_folder(root: &Path) -> Result<Found, ExportError> {
    let mut found = png_folder(&root.join("SegmentationClass"))?;
    let own = Classes::voc().names()[1..].to_vec();
    found.names = Some(class_list(&root.join(voc::CLASS_LIST))?.unwrap_or(own));
    if root.join("JPEGImages").is_dir() {
        found.take_images_from(&root.join("JPEGImages"), &root.join("SegmentationClass"))?;
    }
    Ok(found)
}

pub(crate) fn coco_file(path: &Path) -> Result<Found, ExportError> {
    let path = if path.is_dir() { path.join(crate::coco::FILE) } else { path.to_path_buf() };
    let masks = read_coco_masks(&path)?;
    if let Some(problem) = masks.problems.first() {
        return Err(ExportError::bad_file(&path, problem.to_string()));
    }
    let item = |(file_name, source)| Item { file_name, photograph: None, place: Place::Coco(source) };
    Ok(Found::new(Some(masks.categories), masks.images.into_iter().map(item).collect()))
}

/// All JSON files below a folder, except in hidden folders.
fn json_files(folder: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let mut files = Vec::new();
    let is_shown = |entry: &walkdir::DirEntry| {
        entry.depth() == 0 || !entry.file_name().as_encoded_bytes().starts_with(b".")
    };
    let walk = walkdir::WalkDir::new(folder).follow_links(true).sort_by_file_name();
    for entry in walk.into_iter().filter_entry(is_shown) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(folder).to_path_buf();
            ExportError::io(path, std::io::Error::other(error.to_string()))
        })?;
        if entry.file_type().is_file()
            && entry.path().extension().is_some_and(|extension| extension == "json")
        {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// Labelme's files lie next to images, which may be PNG; the first JSON file decides.
pub(crate) fn is_labelme_folder(folder: &Path) -> Result<bool, ExportError> {
    match json_files(folder)?.first() {
        Some(path) => Ok(labelme::ReadFile::parse(&read(path)?).is_ok()),
        None => Ok(false),
    }
}

pub(crate) fn labelme_files(path: &Path) -> Result<Found, ExportError> {
    let (folder, files) = match path.is_dir() {
        true => (path, json_files(path)?),
        false => (path.parent().unwrap_or(Path::new("")), vec![path.to_path_buf()]),
    };
    let labels = folder.join(labelme::LABELS_FILE);
    let listed = match labels.is_file() {
        true => Some(labelme::read_labels_file(&String::from_utf8_lossy(&read(&labels)?))),
        false => None,
    };
    let mut names = BTreeSet::new();
    let mut images = Vec::new();
    for path in files {
        let bad = |reason| ExportError::bad_file(&path, reason);
        let file = labelme::ReadFile::parse(&read(&path)?).map_err(bad)?;
        names.extend(file.labels().map(str::to_string));
        let image = Path::new(file.image_path.rsplit(['/', '\\']).next().unwrap_or_default());
        let extension = image.extension().unwrap_or("jpg".as_ref());
        let name = path.strip_prefix(folder).unwrap_or(&path).with_extension(extension);
        let beside = path.parent().unwrap_or(folder).join(&file.image_path);
        let photograph = beside.is_file().then_some(beside);
        images.push(Item { file_name: slashed(&name), photograph, place: Place::Labelme(path) });
    }
    Ok(Found::new(Some(listed.unwrap_or_else(|| names.into_iter().collect())), images))
}

pub(crate) fn yolo_folder(root: &Path) -> Result<Found, ExportError> {
    let data = root.join(yolo::DATA_FILE);
    let names = yolo::read_names(&String::from_utf8_lossy(&read(&data)?));
    let names = names.map_err(|reason| ExportError::bad_file(&data, reason))?;
    let labels = root.join("labels");
    if !labels.is_dir() {
        return Err(ExportError::bad_file(
            labels,
            "there is no such folder; expected a text file for each image",
        ));
    }
    let mut images = Vec::new();
    for entry in walkdir::WalkDir::new(&labels).follow_links(true).sort_by_file_name().into_iter().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "txt") {
            let name = entry.path().strip_prefix(&labels).unwrap_or(entry.path()).with_extension("");
            let place = Place::Yolo(entry.path().to_path_buf());
            images.push(Item { file_name: assumed_file_name(&name), photograph: None, place });
        }
    }
    let mut found = Found::new(Some(names), images);
    if root.join("images").is_dir() {
        found.take_images_from(&root.join("images"), &labels)?;
    }
    Ok(found)
}

pub(crate) fn label_studio_tasks(path: &Path) -> Result<Found, ExportError> {
    let path = if path.is_dir() { path.join(label_studio::TASKS_FILE) } else { path.to_path_buf() };
    let bad = |path: &Path, reason: String| ExportError::bad_file(path, reason);
    let file = File::open(&path).map_err(|e| ExportError::io(&path, e))?;
    let tasks = label_studio::read_tasks(BufReader::new(file)).map_err(|reason| bad(&path, reason))?;
    let interface = path.with_file_name(label_studio::INTERFACE_FILE);
    let names = match interface.is_file() {
        true => {
            let text = String::from_utf8_lossy(&read(&interface)?).into_owned();
            label_studio::read_interface(&text).map_err(|reason| bad(&interface, reason))?
        }
        false => {
            let used: BTreeSet<&str> = tasks.iter().flat_map(label_studio::ReadImage::labels).collect();
            used.into_iter().map(str::to_string).collect()
        }
    };
    let item = |image: label_studio::ReadImage| {
        let file_name = image.file_name.clone();
        Item { file_name, photograph: None, place: Place::LabelStudio { tasks: path.clone(), image } }
    };
    Ok(Found::new(Some(names), tasks.into_iter().map(item).collect()))
}

/// An archive, or the folder it was unpacked to.
#[derive(Debug)]
pub(crate) struct CvatStore {
    pub(crate) path: PathBuf,
    /// `None`: a folder.
    pub(crate) archive: Option<Mutex<ZipArchive<BufReader<File>>>>,
    pub(crate) labels: cvat::ReadLabelMap,
}

impl CvatStore {
    pub(crate) fn read(&self, entry: &str) -> Result<Vec<u8>, ExportError> {
        match &self.archive {
            None => read(&self.path.join(entry)),
            Some(archive) => {
                // A thread that panicked while reading has changed nothing.
                let mut archive = archive.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                read_entry(&self.path, &mut archive, entry)
            }
        }
    }
}

fn read_entry(
    path: &Path,
    archive: &mut ZipArchive<BufReader<File>>,
    entry: &str,
) -> Result<Vec<u8>, ExportError> {
    let bad = |reason: String| ExportError::bad_file(path.join(entry), reason);
    let file = archive.by_name(entry).map_err(|error| bad(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MAX_ENTRY_BYTES).read_to_end(&mut bytes).map_err(|error| bad(error.to_string()))?;
    Ok(bytes)
}

pub(crate) fn cvat_archive(path: &Path) -> Result<Found, ExportError> {
    let bad = |reason: String| ExportError::bad_file(path, reason);
    let (archive, entries, labels) = if path.is_dir() {
        let masks = mask_files(&path.join("SegmentationClass"))?;
        let entries = masks.into_keys().map(|name| cvat::class_mask_path(&slashed(&name))).collect();
        (None, entries, read(&path.join(cvat::LABEL_MAP))?)
    } else {
        let file = File::open(path).map_err(|e| ExportError::io(path, e))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| bad(error.to_string()))?;
        let names = archive.file_names().flatten();
        let mut entries: Vec<String> = names.map(std::borrow::Cow::into_owned).collect();
        entries.retain(|entry| entry.starts_with("SegmentationClass/") && entry.ends_with(".png"));
        entries.sort_unstable();
        let labels = read_entry(path, &mut archive, cvat::LABEL_MAP)?;
        (Some(Mutex::new(archive)), entries, labels)
    };
    let labels = cvat::ReadLabelMap::parse(&String::from_utf8_lossy(&labels))
        .map_err(|reason| bad(format!("{}: {reason}", cvat::LABEL_MAP)))?;
    let names = labels.names.clone();
    let store = std::sync::Arc::new(CvatStore { path: path.to_path_buf(), archive, labels });
    let item = |entry: String| {
        let name =
            Path::new(&entry).strip_prefix("SegmentationClass").unwrap_or(Path::new("")).with_extension("");
        let place = Place::Cvat { store: store.clone(), entry };
        Item { file_name: assumed_file_name(&name), photograph: None, place }
    };
    Ok(Found::new(Some(names), entries.into_iter().map(item).collect()))
}
