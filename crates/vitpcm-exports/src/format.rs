//! Which formats there are, and what can be chosen about them.

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
    /// One Labelme JSON file an image.
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

    /// The word for it, on the command line and in addresses.
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

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<ExportFormat> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Whether 255 is kept as what it is: a pixel of unknown class. Elsewhere it becomes background.
    pub fn knows_255(self) -> bool {
        matches!(self, ExportFormat::Png | ExportFormat::Voc | ExportFormat::Cvat)
    }

    /// Whether the tool wants the image itself beside its labels.
    pub fn holds_images(self) -> bool {
        matches!(self, ExportFormat::Yolo | ExportFormat::Labelme | ExportFormat::Voc)
    }
}

/// How COCO files say where an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CocoShape {
    /// Run lengths: exactly the mask.
    #[default]
    RunLengths,
    /// Polygons: what most editors can edit.
    Polygons,
}

/// What an object is, in formats that list objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objects {
    /// Each connected part of a class.
    #[default]
    Parts,
    /// Everything of a class in the image.
    Classes,
}

/// Choices about an export; each format uses those that concern it.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// How COCO files say where an object is.
    pub coco_shape: CocoShape,
    /// What an object is, for COCO and Label Studio; in Labelme such objects share a group number. YOLO's objects
    /// are always parts.
    pub objects: Objects,
    /// How far, in pixels, an outline may be from its polygon; less where a small part's IoU would fall under 0.98.
    /// 0 keeps every turn of the outline; 1, the default, is the least that smooths staircases away.
    pub polygon_error: f64,
    /// Parts of fewer pixels are given to their neighbours first; 0 and 1 leave all.
    pub min_area: u32,
    /// Pixels whose label has a score below this become 255, in formats that know 255 (PNG, VOC, CVAT). Needs scores.
    pub unsure_below: Option<f32>,
    /// What Label Studio's `image` fields begin with; the file name follows.
    pub image_prefix: String,
    /// Said to have made the labels, where a format has a place for that.
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
