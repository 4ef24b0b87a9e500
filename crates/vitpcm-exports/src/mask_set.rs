//! Finished masks in any supported format: detects the format of a folder or file and reads masks. Which images there
//! are is left to `mask_listing`, parsing to the formats' own files.

use crate::mask_listing::{
    CLASS_LIST, Found, Item, Place, coco_file, cvat_archive, is_labelme_folder, label_studio_tasks,
    labelme_files, png_folder, read, size_of_image, voc_folder, yolo_folder,
};
use crate::{ExportError, cvat, label_studio, labelme, yolo};
use serde::de::IgnoredAny;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use vitpcm_data::ImageLimits;
use vitpcm_masks::{Classes, LabelMap, mask_files, read_label_png_within};

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
