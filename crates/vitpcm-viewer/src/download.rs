//! Downloads: masks in our own formats and, through `vitpcm-exports`, in those of other tools. A single file is sent as
//! it is, several as a zip archive built in memory.

use crate::answer::Refusal;
use crate::bundle::{Bundle, File};
use crate::hints::HintWish;
use crate::kept_image::{KeptImage, MadeMask, MaskWish};
use crate::names;
use crate::object::Object;
use serde::{Deserialize, Deserializer};
use std::sync::Arc;
use vitpcm_exports::{
    Destination, ExportError, ExportFormat, ExportOptions, Exporter, LabelledImage, Photograph, ScoresOnGrid,
};
use vitpcm_masks::{Classes, StoredScores, heat_map, overlay};

/// Opacity of the mask in overlays, as in `vitpcm segment`.
const OVERLAY_OPACITY: f32 = 0.55;

/// The name that PNG exports use.
const CLASS_LIST: &str = "classes.txt";

/// A download format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Overlay,
    Heatmap,
    Npz,
    Export(ExportFormat),
}

impl Format {
    pub(crate) fn all() -> impl Iterator<Item = Format> {
        let exports = ExportFormat::ALL.into_iter().map(Format::Export);
        let (png, others): (Vec<_>, Vec<_>) = exports.partition(|&f| f == Format::Export(ExportFormat::Png));
        png.into_iter().chain([Format::Overlay]).chain(others).chain([Format::Heatmap, Format::Npz])
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Overlay => "overlay",
            Format::Heatmap => "heatmap",
            Format::Npz => "npz",
            Format::Export(format) => format.name(),
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Format::Overlay => "Overlay (PNG)",
            Format::Heatmap => "Heat maps (PNG)",
            Format::Npz => "Scores (NPZ)",
            Format::Export(ExportFormat::Png) => "Mask (PNG)",
            Format::Export(ExportFormat::Coco) => "COCO (JSON)",
            Format::Export(ExportFormat::Yolo) => "YOLO segmentation",
            Format::Export(ExportFormat::LabelStudio) => "Label Studio",
            Format::Export(ExportFormat::Cvat) => "CVAT segmentation mask",
            Format::Export(ExportFormat::Labelme) => "Labelme",
            Format::Export(ExportFormat::Voc) => "PASCAL VOC folder",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Format::Overlay => "The mask over the image, to look at.",
            Format::Heatmap => "Scores of each tag and the background, with a colour bar.",
            Format::Npz => "Scores on the grid, for NumPy and vitpcm refine.",
            Format::Export(ExportFormat::Png) => "One class index per pixel, in the VOC palette.",
            Format::Export(ExportFormat::Coco) => "Instances with RLE masks, as pycocotools reads them.",
            Format::Export(ExportFormat::Yolo) => "Images, polygon labels and data.yaml.",
            Format::Export(ExportFormat::LabelStudio) => {
                "Tasks with brush predictions, and the interface for them."
            }
            Format::Export(ExportFormat::Cvat) => "“Segmentation mask 1.1”, to upload to CVAT as it is.",
            Format::Export(ExportFormat::Labelme) => "A JSON file with polygons for each image.",
            Format::Export(ExportFormat::Voc) => "Images, masks and lists, ready to train on.",
        }
    }
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Format, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = || Format::all().map(Format::name).collect::<Vec<_>>().join(", ");
        let unknown = || serde::de::Error::custom(format!("unknown format; expected one of {}", known()));
        Format::all().find(|format| format.name() == name).ok_or_else(unknown)
    }
}

/// A request for a download.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DownloadWish {
    format: Format,
    pub(crate) images: Vec<ImageWish>,
}

/// One image of a download and the mask to make for it, always at the image's own size.
#[derive(Debug, Deserialize)]
#[serde(from = "Object<ImageWishFields>")]
pub(crate) struct ImageWish {
    pub(crate) id: String,
    mask: MaskWish,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageWishFields {
    id: String,
    #[serde(default)]
    tags: crate::kept_image::TagsWanted,
    #[serde(default)]
    crf: Option<f32>,
    #[serde(default)]
    fill: bool,
    #[serde(default)]
    hints: Vec<HintWish>,
}

impl From<Object<ImageWishFields>> for ImageWish {
    fn from(Object(fields): Object<ImageWishFields>) -> ImageWish {
        let ImageWishFields { id, tags, crf, fill, hints } = fields;
        ImageWish { id, mask: MaskWish { tags, crf, fill, hints, ..MaskWish::default() } }
    }
}

/// Builds a download from `images`, which match the request's in number and order.
pub(crate) fn make(
    wish: &DownloadWish,
    images: &[Arc<KeptImage>],
    classes: &Classes,
    mut files: Bundle,
) -> Result<File, Refusal> {
    let names = names::distinct(images.iter().map(|image| image.name.as_str()));
    let wanted = wish.images.iter().zip(images).zip(&names);
    let files = match wish.format {
        Format::Export(format) => {
            // A single mask needs no class list.
            if images.len() == 1 && format == ExportFormat::Png {
                files.leave_out(CLASS_LIST);
            }
            let mut export = Exporter::begin(format, classes, &ExportOptions::default(), files)?;
            for ((one, image), name) in wanted {
                let made = image.mask(&one.mask, classes)?;
                let segmentation = &made.segmentation;
                let labelled = LabelledImage {
                    file_name: name,
                    mask: &made.mask,
                    scores: Some(ScoresOnGrid {
                        on_grid: &segmentation.scores_on_grid,
                        alignment: segmentation.alignment,
                    }),
                    photograph: Photograph::Bytes(&image.file),
                };
                export.add(&labelled)?;
            }
            export.finish()?
        }
        Format::Overlay | Format::Heatmap | Format::Npz => {
            for ((one, image), name) in wanted {
                let made = image.mask(&one.mask, classes)?;
                write_own(wish.format, image, &made, names::stem(name), classes, &mut files)?;
            }
            files
        }
    };
    Ok(files.finish(&format!("vitpcm-{}.zip", wish.format.name()))?)
}

/// Writes an image's files in one of our own formats.
fn write_own(
    format: Format,
    image: &KeptImage,
    made: &MadeMask,
    stem: &str,
    classes: &Classes,
    files: &mut Bundle,
) -> Result<(), ExportError> {
    let segmentation = &made.segmentation;
    match format {
        Format::Heatmap => {
            for &class in segmentation.tags.iter().chain([&0]) {
                let name = names::clean(&classes.names()[class]);
                let picture = heat_map(&segmentation.scores_on_grid, class, image.view_size());
                files.file(&format!("{stem}/{class:03}-{name}.png"), &picture.png())?;
            }
            Ok(())
        }
        Format::Npz => {
            let stored = StoredScores {
                scores: segmentation.scores_on_grid.clone(),
                classes: classes.clone(),
                image_size: image.size(),
                alignment: segmentation.alignment,
            };
            files.file(&format!("{stem}.npz"), &stored.npz())
        }
        Format::Overlay | Format::Export(_) => {
            let picture = overlay(image.pixels.as_raw(), &made.mask, OVERLAY_OPACITY);
            files.file(&format!("{stem}-overlay.png"), &picture.png())
        }
    }
}
