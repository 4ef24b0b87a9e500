//! Finished masks in any supported format: detects the format of a folder or file, its classes, its images and their
//! masks. Parsing is left to the formats' own files.

use crate::{ExportError, cvat, label_studio, labelme, voc, yolo};
use serde::de::IgnoredAny;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use vitpcm_data::{ImageFile, ImageLimits, MaskSource, find_images, read_coco_masks, read_image_header};
use vitpcm_masks::{Classes, LabelMap, NameMatch, mask_files, read_label_png_within};
use zip::ZipArchive;

/// The class list next to masks.
const CLASS_LIST: &str = "classes.txt";
/// Largest archive entry that is read; no label map is larger.
const MAX_ENTRY_BYTES: u64 = 1 << 30;

/// The detected format of a set of masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskSetFormat {
    /// A folder of indexed PNG masks.
    Png,
    /// A COCO instance file.
    Coco,
    /// A folder with `data.yaml` and `labels`.
    Yolo,
    /// A list of Label Studio tasks.
    LabelStudio,
    /// CVAT's "Segmentation mask 1.1", packed or not.
    Cvat,
    /// A folder of Labelme files.
    Labelme,
    /// A folder with `SegmentationClass`.
    Voc,
}

/// Finished masks of many images, read on demand.
#[derive(Debug)]
pub struct MaskSet {
    path: PathBuf,
    format: MaskSetFormat,
    classes: Classes,
    images: Vec<Item>,
    limits: ImageLimits,
    remark: Option<String>,
}

#[derive(Debug)]
struct Item {
    file_name: String,
    photograph: Option<PathBuf>,
    place: Place,
}

/// Where one mask is.
#[derive(Debug)]
enum Place {
    Png(PathBuf),
    Coco(MaskSource),
    Labelme(PathBuf),
    Yolo(PathBuf),
    LabelStudio { tasks: PathBuf, image: label_studio::ReadImage },
    Cvat { store: std::sync::Arc<CvatStore>, entry: String },
}

impl MaskSetFormat {
    /// Detects the format of a path.
    pub fn recognise(path: &Path) -> Result<MaskSetFormat, ExportError> {
        let unknown = || {
            let known = "a folder of PNG masks, a VOC folder (SegmentationClass), a YOLO folder (data.yaml), a folder of \
                         Labelme files, COCO or Label Studio JSON, or a CVAT zip";
            ExportError::bad_file(path, format!("no masks recognised here; expected {known}"))
        };
        if path.is_dir() {
            let has = |name: &str| path.join(name).exists();
            return Ok(if has(cvat::LABEL_MAP) && has("SegmentationClass") {
                MaskSetFormat::Cvat
            } else if has("SegmentationClass") {
                MaskSetFormat::Voc
            } else if has(yolo::DATA_FILE) {
                MaskSetFormat::Yolo
            } else if has(crate::coco::FILE) {
                MaskSetFormat::Coco
            } else if has(label_studio::TASKS_FILE) {
                MaskSetFormat::LabelStudio
            } else if is_labelme_folder(path)? {
                MaskSetFormat::Labelme
            } else if !mask_files(path)?.is_empty() {
                MaskSetFormat::Png
            } else {
                return Err(unknown());
            });
        }
        let mut start = Vec::new();
        let file = File::open(path).map_err(|e| ExportError::io(path, e))?;
        file.take(4096).read_to_end(&mut start).map_err(|e| ExportError::io(path, e))?;
        let first = start.iter().find(|byte| !byte.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(byte));
        match first {
            _ if start.starts_with(b"PK") => Ok(MaskSetFormat::Cvat),
            Some(b'[') => Ok(MaskSetFormat::LabelStudio),
            Some(b'{') => {
                let file = File::open(path).map_err(|e| ExportError::io(path, e))?;
                let keys: HashMap<String, IgnoredAny> = serde_json::from_reader(BufReader::new(file))
                    .map_err(|error| ExportError::bad_file(path, format!("incomplete JSON: {error}")))?;
                match keys.contains_key("images") {
                    true => Ok(MaskSetFormat::Coco),
                    false if keys.contains_key("shapes") => Ok(MaskSetFormat::Labelme),
                    false => Err(unknown()),
                }
            }
            _ => Err(unknown()),
        }
    }
}

impl MaskSet {
    /// Opens the masks at `path`. Class names come from `classes` if given, else from the files; names and sizes of
    /// images from the folder `images` if given. For an image that is not in that folder, the set's own data counts.
    pub fn open(
        path: &Path,
        classes: Option<&Classes>,
        images: Option<&Path>,
    ) -> Result<MaskSet, ExportError> {
        let format = MaskSetFormat::recognise(path)?;
        let mut found = match format {
            MaskSetFormat::Png => png_folder(path)?,
            MaskSetFormat::Voc => voc_folder(path)?,
            MaskSetFormat::Coco => coco_file(path)?,
            MaskSetFormat::Labelme => labelme_files(path)?,
            MaskSetFormat::Yolo => yolo_folder(path)?,
            MaskSetFormat::LabelStudio => label_studio_tasks(path)?,
            MaskSetFormat::Cvat => cvat_archive(path)?,
        };
        if let Some(folder) = images {
            found.take_images_from(folder, path)?;
        }
        let classes = match (classes, found.names.take()) {
            (Some(classes), _) => classes.clone(),
            (None, Some(names)) => Classes::from_names(names)?,
            (None, None) => return Err(ExportError::NoClassNames { path: path.to_path_buf() }),
        };
        let mut names = HashSet::new();
        for Item { file_name, .. } in &found.images {
            if !names.insert(Path::new(file_name).with_extension("")) {
                return Err(ExportError::bad_file(
                    path,
                    format!("two images are called {file_name}, except for the extension"),
                ));
            }
        }
        let path = path.to_path_buf();
        let Found { images, remark, .. } = found;
        Ok(MaskSet { path, format, classes, images, limits: ImageLimits::default(), remark })
    }

    /// The same masks with other read limits.
    pub fn with_limits(self, limits: ImageLimits) -> MaskSet {
        MaskSet { limits, ..self }
    }

    /// The detected format.
    pub fn format(&self) -> MaskSetFormat {
        self.format
    }

    /// The classes of the masks.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// One line on where the images were found, if not in the obvious place.
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Number of masks.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Whether there are no masks.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// File name of an image, with `/` as separator.
    pub fn file_name(&self, index: usize) -> &str {
        &self.images[index].file_name
    }

    /// The image's own file, if found.
    pub fn photograph(&self, index: usize) -> Option<&Path> {
        self.images[index].photograph.as_deref()
    }

    /// The files of the set: masks, images if found, and their lists.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::with_capacity(self.images.len());
        for Item { photograph, place, .. } in &self.images {
            files.extend(photograph.clone());
            match place {
                Place::Png(path) | Place::Labelme(path) | Place::Yolo(path) => files.push(path.clone()),
                Place::Cvat { store, entry } if store.archive.is_none() => {
                    files.push(store.path.join(entry));
                }
                // One file with all masks.
                Place::Coco(_) | Place::LabelStudio { .. } | Place::Cvat { .. } => {}
            }
        }
        let names = [
            CLASS_LIST,
            crate::coco::FILE,
            cvat::LABEL_MAP,
            label_studio::INTERFACE_FILE,
            label_studio::TASKS_FILE,
            labelme::LABELS_FILE,
            yolo::DATA_FILE,
        ];
        match self.path.is_dir() {
            true => files.extend(names.map(|name| self.path.join(name))),
            false => {
                files.extend([self.path.clone(), self.path.with_file_name(label_studio::INTERFACE_FILE)])
            }
        }
        files
    }

    /// Reads the mask of an image.
    pub fn read(&self, index: usize) -> Result<LabelMap, ExportError> {
        let Item { file_name, photograph, place } = &self.images[index];
        let (classes, max_pixels) = (&self.classes, self.limits.max_pixels);
        let size_of_image = |path: &Path| size_of_image(path, &self.limits);
        let bad = |path: &Path| {
            let path = path.to_path_buf();
            move |reason: String| ExportError::BadFile { path, reason }
        };
        match place {
            Place::Png(path) => Ok(read_label_png_within(path, max_pixels)?),
            Place::Coco(source) => Ok(source.read(classes, &self.limits)?),
            Place::Labelme(path) => labelme::ReadFile::parse(&read(path)?)
                .and_then(|file| file.mask(classes, max_pixels))
                .map_err(bad(path)),
            Place::Yolo(path) => {
                let photograph = photograph.as_deref();
                let size = photograph.map(size_of_image).transpose()?.ok_or_else(|| {
                    let reason = format!("the size of {file_name} is needed, and the image was not found");
                    ExportError::bad_file(path, reason)
                })?;
                // An image without objects need not have a file.
                let text = if path.exists() { read(path)? } else { Vec::new() };
                yolo::read_mask(&String::from_utf8_lossy(&text), size, classes.len(), max_pixels)
                    .map_err(bad(path))
            }
            Place::LabelStudio { tasks, image } => {
                let size = photograph.as_deref().map(size_of_image).transpose()?;
                let in_task = |reason: String| format!("{file_name}: {reason}");
                image.mask(classes, size, max_pixels).map_err(in_task).map_err(bad(tasks))
            }
            Place::Cvat { store, entry } => {
                let bytes = store.read(entry)?;
                store.labels.mask(&bytes, max_pixels).map_err(bad(&store.path.join(entry)))
            }
        }
    }
}

/// What a format's files contain.
struct Found {
    /// Foreground classes, if they are named.
    names: Option<Vec<String>>,
    images: Vec<Item>,
    /// Where the images were found, if not in the obvious place.
    remark: Option<String>,
}

impl Found {
    fn new(names: Option<Vec<String>>, images: Vec<Item>) -> Found {
        Found { names, images, remark: None }
    }

    /// Matches each image of `masks` with a file in `folder` ([`NameMatch`]).
    fn take_images_from(&mut self, folder: &Path, masks: &Path) -> Result<(), ExportError> {
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

fn read(path: &Path) -> Result<Vec<u8>, ExportError> {
    fs::read(path).map_err(|e| ExportError::io(path, e))
}

fn size_of_image(path: &Path, limits: &ImageLimits) -> Result<(usize, usize), ExportError> {
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

fn png_folder(folder: &Path) -> Result<Found, ExportError> {
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

fn voc_folder(root: &Path) -> Result<Found, ExportError> {
    let mut found = png_folder(&root.join("SegmentationClass"))?;
    let own = Classes::voc().names()[1..].to_vec();
    found.names = Some(class_list(&root.join(voc::CLASS_LIST))?.unwrap_or(own));
    if root.join("JPEGImages").is_dir() {
        found.take_images_from(&root.join("JPEGImages"), &root.join("SegmentationClass"))?;
    }
    Ok(found)
}

fn coco_file(path: &Path) -> Result<Found, ExportError> {
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
fn is_labelme_folder(folder: &Path) -> Result<bool, ExportError> {
    match json_files(folder)?.first() {
        Some(path) => Ok(labelme::ReadFile::parse(&read(path)?).is_ok()),
        None => Ok(false),
    }
}

fn labelme_files(path: &Path) -> Result<Found, ExportError> {
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

fn yolo_folder(root: &Path) -> Result<Found, ExportError> {
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

fn label_studio_tasks(path: &Path) -> Result<Found, ExportError> {
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
struct CvatStore {
    path: PathBuf,
    /// `None`: a folder.
    archive: Option<Mutex<ZipArchive<BufReader<File>>>>,
    labels: cvat::ReadLabelMap,
}

impl CvatStore {
    fn read(&self, entry: &str) -> Result<Vec<u8>, ExportError> {
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

fn cvat_archive(path: &Path) -> Result<Found, ExportError> {
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
