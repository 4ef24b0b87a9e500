//! The paths of a format's files within its folder, known before anything is written, so that callers can detect two
//! images that would share a file.

use crate::{ExportFormat, coco, cvat, label_studio, labelme, voc, yolo};

impl ExportFormat {
    /// Files for all images together.
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

    /// The label files of an image; `name` is its path without extension, with `/` as separator.
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

    /// Where the image itself goes, in formats that include images; `file_name` is its path with extension.
    pub fn image_file(self, file_name: &str) -> Option<String> {
        match self {
            ExportFormat::Yolo => Some(yolo::image_path(file_name)),
            ExportFormat::Voc => Some(voc::image_path(file_name)),
            ExportFormat::Labelme => Some(file_name.to_string()),
            _ => None,
        }
    }
}
