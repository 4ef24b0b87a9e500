//! Where a format puts its files, within its own folder. Known before anything is written, so that a caller can tell whether
//! two images would share a file.

use crate::{ExportFormat, coco, cvat, label_studio, labelme, voc, yolo};

impl ExportFormat {
    /// Files that hold all images together, or speak of all.
    pub fn shared_files(self) -> &'static [&'static str] {
        match self {
            ExportFormat::Png => &["classes.txt"],
            ExportFormat::Coco => &[coco::FILE],
            ExportFormat::Yolo => &[yolo::DATA_FILE],
            ExportFormat::LabelStudio => &[label_studio::INTERFACE_FILE, label_studio::TASKS_FILE],
            ExportFormat::Cvat => &[cvat::LABEL_MAP, cvat::LIST],
            ExportFormat::Labelme => &[labelme::LABELS_FILE],
            ExportFormat::Voc => &[voc::CLASS_LIST, voc::LIST],
        }
    }

    /// The files with the labels of an image; `name` is its path without extension, with `/` between the parts.
    pub fn label_files(self, name: &str) -> Vec<String> {
        match self {
            ExportFormat::Png => vec![format!("{name}.png")],
            ExportFormat::Coco | ExportFormat::LabelStudio => Vec::new(),
            ExportFormat::Yolo => vec![yolo::label_path(name)],
            ExportFormat::Cvat => vec![cvat::class_mask_path(name), cvat::object_mask_path(name)],
            ExportFormat::Labelme => vec![format!("{name}.json")],
            ExportFormat::Voc => vec![voc::mask_path(name)],
        }
    }

    /// Where the image itself goes, in formats that hold images; `file_name` is its path with extension.
    pub fn image_file(self, file_name: &str) -> Option<String> {
        match self {
            ExportFormat::Yolo => Some(yolo::image_path(file_name)),
            ExportFormat::Voc => Some(voc::image_path(file_name)),
            ExportFormat::Labelme => Some(file_name.to_string()),
            _ => None,
        }
    }
}
