//! The export formats and their options.

/// A format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// Indexed PNG masks, as vitpcm itself writes them.
    Png,
    /// COCO instances: one JSON file.
    Coco,
    /// YOLO segmentation labels with `data.yaml`.
    Yolo,
    /// Label Studio tasks with predictions.
    LabelStudio,
    /// CVAT's "Segmentation mask 1.1"; CVAT takes it as a zip archive.
    Cvat,
    /// One Labelme JSON file per image.
    Labelme,
    /// The layout of PASCAL VOC's segmentation task, to train on.
    Voc,
}

impl ExportFormat {
    /// All of them.
    pub const ALL: [ExportFormat; 7] = [
        ExportFormat::Png,
        ExportFormat::Coco,
        ExportFormat::Yolo,
        ExportFormat::LabelStudio,
        ExportFormat::Cvat,
        ExportFormat::Labelme,
        ExportFormat::Voc,
    ];

    /// Its name on the command line and in URLs.
    pub fn name(self) -> &'static str {
        match self {
            ExportFormat::Png => "png",
            ExportFormat::Coco => "coco",
            ExportFormat::Yolo => "yolo",
            ExportFormat::LabelStudio => "label-studio",
            ExportFormat::Cvat => "cvat",
            ExportFormat::Labelme => "labelme",
            ExportFormat::Voc => "voc",
        }
    }

    /// The format with this name.
    pub fn from_name(name: &str) -> Option<ExportFormat> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Whether 255 (unknown class) is kept. In other formats it becomes background.
    pub fn knows_255(self) -> bool {
        matches!(self, ExportFormat::Png | ExportFormat::Voc | ExportFormat::Cvat)
    }

    /// Whether the tool needs the image next to its labels.
    pub fn holds_images(self) -> bool {
        matches!(self, ExportFormat::Yolo | ExportFormat::Labelme | ExportFormat::Voc)
    }
}

/// Shape of objects in COCO files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CocoShape {
    /// Run lengths: exactly the mask.
    #[default]
    RunLengths,
    /// Polygons: what most editors can edit.
    Polygons,
}

/// What an object is, in formats with objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objects {
    /// Each connected component of a class.
    #[default]
    Parts,
    /// All of a class in the image.
    Classes,
}

/// Export options; each format uses those that apply to it.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// Shape of objects in COCO files.
    pub coco_shape: CocoShape,
    /// What an object is, for COCO and Label Studio; in Labelme such objects share a group number. YOLO's objects are
    /// always connected components.
    pub objects: Objects,
    /// Largest distance, in pixels, between outline and polygon; smaller where a small component's IoU would fall below
    /// 0.98. 0 keeps every corner; 1, the default, is the least that smooths staircases.
    pub polygon_error: f64,
    /// Connected components of fewer pixels are merged into their neighbours first; 0 and 1 keep all.
    pub min_area: u32,
    /// Pixels whose label scores below this become 255, in formats that know 255 (PNG, VOC, CVAT). Needs scores.
    pub unsure_below: Option<f32>,
    /// Prefix of Label Studio's `image` fields, before the file name.
    pub image_prefix: String,
    /// Name of the labels' creator, in formats that have such a field.
    pub made_by: String,
}

impl Default for ExportOptions {
    fn default() -> Self {
        ExportOptions {
            coco_shape: CocoShape::RunLengths,
            objects: Objects::Parts,
            polygon_error: 1.0,
            min_area: 0,
            unsure_below: None,
            image_prefix: "/data/local-files/?d=".to_string(),
            made_by: concat!("vitpcm ", env!("CARGO_PKG_VERSION")).to_string(),
        }
    }
}
