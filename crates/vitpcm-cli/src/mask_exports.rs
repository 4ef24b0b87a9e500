//! Exports of finished masks for `segment`, `refine` and `export`: one pass over all masks per format, so that an
//! export is complete even if several runs made the masks. Images are encoded on all cores, a few ahead, and written in
//! order.

use crate::interrupt::Interrupt;
use crate::number_bounds;
use crate::outcome::{described, usage};
use crate::output::Messages;
use crate::results_folder::{ExportFolder, ResultsFolder};
use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use vitpcm_data::ImageLimits;
use vitpcm_exports::{
    CocoShape, Destination, EncodedImage, Encoder, ExportFormat, ExportOptions, Exporter, LabelledImage,
    MaskSet, Objects, Photograph, ScoresOnGrid, Zip,
};
use vitpcm_masks::atomic_file::AtomicFile;
use vitpcm_masks::{Classes, LabelMap, StoredScores, read_label_png_within};

/// Images encoded ahead of writing, per thread.
const AHEAD: usize = 4;

/// The archive that CVAT imports, within the format's folder.
pub(crate) const CVAT_FILE: &str = "segmentation-mask-1.1.zip";

#[derive(clap::Args)]
#[command(next_help_heading = "Export options")]
pub(crate) struct ExportArgs {
    /// Shape of objects in `coco`: `rle` is exact, `polygons` can be edited in most tools
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "rle")]
    coco_shape: ShapeWord,
    /// What an object is: each connected component of a class, or all of a class in an image
    #[arg(long, value_enum, value_name = "WHAT", default_value = "parts")]
    objects: ObjectsWord,
    /// Largest distance, in pixels, between a polygon and the true outline; 0 keeps every pixel corner
    #[arg(long, value_name = "PX", value_parser = number_bounds::pixel_error, default_value_t = ExportOptions::default().polygon_error)]
    polygon_error: f64,
    /// Merge connected components of fewer pixels than this into their surroundings
    #[arg(long, value_name = "PIXELS", value_parser = number_bounds::area, default_value_t = ExportOptions::default().min_area)]
    min_area: u32,
    /// Mark pixels whose class scores lower than this as unlabelled (255), in png, voc and cvat
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction)]
    min_confidence: Option<f32>,
    /// How to place images in the folders of yolo, labelme and voc: as hard links or copies
    #[arg(long, value_enum, value_name = "HOW", default_value = "link")]
    place_images: PlaceWord,
    /// Prefix of the image URLs in `label-studio`
    #[arg(long, value_name = "TEXT", default_value_t = ExportOptions::default().image_prefix)]
    image_prefix: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum ShapeWord {
    Rle,
    Polygons,
}

#[derive(Clone, Copy, ValueEnum)]
enum ObjectsWord {
    Parts,
    Classes,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlaceWord {
    /// Hard links; copies if the file system has none
    Link,
    Copy,
    /// Write labels only
    None,
}

/// The settings of `segment` and `refine`; `export` has options for them.
impl Default for ExportArgs {
    fn default() -> Self {
        let ExportOptions { polygon_error, min_area, image_prefix, .. } = ExportOptions::default();
        ExportArgs {
            coco_shape: ShapeWord::Rle,
            objects: ObjectsWord::Parts,
            polygon_error,
            min_area,
            min_confidence: None,
            place_images: PlaceWord::Link,
            image_prefix,
        }
    }
}

impl ExportArgs {
    fn options(&self) -> ExportOptions {
        ExportOptions {
            coco_shape: match self.coco_shape {
                ShapeWord::Rle => CocoShape::RunLengths,
                ShapeWord::Polygons => CocoShape::Polygons,
            },
            objects: match self.objects {
                ObjectsWord::Parts => Objects::Parts,
                ObjectsWord::Classes => Objects::Classes,
            },
            polygon_error: self.polygon_error,
            min_area: self.min_area,
            unsure_below: self.min_confidence,
            image_prefix: self.image_prefix.clone(),
            ..ExportOptions::default()
        }
    }

    /// Whether photographs are placed next to the labels.
    pub(crate) fn places_images(&self) -> bool {
        !matches!(self.place_images, PlaceWord::None)
    }

    /// Refuses options that apply to none of the formats.
    pub(crate) fn check(&self, formats: &[ExportFormat]) -> anyhow::Result<()> {
        if self.min_confidence.is_some() && !formats.iter().any(|format| format.knows_255()) {
            return Err(usage(anyhow!("--min-confidence is for png, voc and cvat")));
        }
        Ok(())
    }

    /// Whether a format needs scores.
    pub(crate) fn needs_scores(&self, format: ExportFormat) -> bool {
        format.knows_255() && self.min_confidence.is_some()
    }
}

/// Parses the words of `--format`.
pub(crate) fn format_parser() -> impl TypedValueParser<Value = ExportFormat> {
    let words = ExportFormat::ALL.map(|format| PossibleValue::new(format.name()).help(help(format)));
    let known = |word: String| ExportFormat::from_name(&word).expect("one of the words above");
    PossibleValuesParser::new(words).map(known)
}

/// One line of help about a format.
pub(crate) fn help(format: ExportFormat) -> &'static str {
    match format {
        ExportFormat::Png => "NAME.png: 8-bit indexed mask in the VOC palette",
        ExportFormat::Coco => "coco/instances_default.json: COCO instances, as run lengths or polygons",
        ExportFormat::Yolo => "yolo/: images, segmentation labels and data.yaml",
        ExportFormat::LabelStudio => "label-studio/tasks.json: predictions to correct, with labels.xml",
        ExportFormat::Cvat => "cvat/segmentation-mask-1.1.zip: to upload as annotations",
        ExportFormat::Labelme => "labelme/: images with a JSON file next to each",
        ExportFormat::Voc => "voc/: JPEGImages, SegmentationClass and ImageSets, to train on",
    }
}

/// An image whose mask is finished.
pub(crate) struct Finished<'a> {
    /// Its path below its folder, with `/` as separator.
    pub(crate) file_name: String,
    pub(crate) photograph: Option<&'a Path>,
    pub(crate) mask: MaskAt<'a>,
    /// Its score file, if any.
    pub(crate) scores: Option<PathBuf>,
}

pub(crate) enum MaskAt<'a> {
    File(PathBuf),
    InSet(&'a MaskSet, usize),
}

impl Finished<'_> {
    /// Whether the mask exists.
    pub(crate) fn is_there(&self) -> bool {
        match &self.mask {
            MaskAt::File(path) => path.is_file(),
            MaskAt::InSet(..) => true,
        }
    }
}

impl MaskAt<'_> {
    fn read(&self, limits: &ImageLimits) -> anyhow::Result<LabelMap> {
        Ok(match self {
            MaskAt::File(path) => read_label_png_within(path, limits.max_pixels)?,
            MaskAt::InSet(set, index) => set.read(*index)?,
        })
    }
}

/// Several export formats of the same masks.
pub(crate) struct MaskExports<'a> {
    pub(crate) formats: &'a [ExportFormat],
    pub(crate) args: &'a ExportArgs,
    pub(crate) classes: &'a Classes,
    /// Each format gets a subfolder of its name, except `png`, which goes directly into it.
    pub(crate) out: &'a ResultsFolder,
    /// Limits on images and masks to read.
    pub(crate) limits: ImageLimits,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Completed, with the number of images that failed.
    Whole { num_failed: usize },
    /// The user asked to stop; the previous export stays as it was.
    Stopped,
}

impl MaskExports<'_> {
    /// Exports the images that have a mask from this or an earlier run; returns the number of failures. Also runs after
    /// Ctrl-C, so that exports hold what is done; a second Ctrl-C ends it.
    pub(crate) fn write_what_is_there<'a>(
        &self,
        images: impl Iterator<Item = Finished<'a>>,
        messages: &Messages,
    ) -> anyhow::Result<usize> {
        let images: Vec<Finished<'_>> = images.filter(Finished::is_there).collect();
        match self.write(&images, messages, None)? {
            Pass::Whole { num_failed } => Ok(num_failed),
            Pass::Stopped => Ok(0),
        }
    }

    /// Writes all formats. Images that fail are reported once and left out.
    pub(crate) fn write(
        &self,
        images: &[Finished<'_>],
        messages: &Messages,
        interrupt: Option<&Interrupt>,
    ) -> anyhow::Result<Pass> {
        let mut has_failed = vec![false; images.len()];
        for &format in self.formats {
            let folder = if format == ExportFormat::Png { "" } else { format.name() };
            let pass = Images { images, has_failed: &mut has_failed, messages, interrupt };
            let is_whole = match format {
                ExportFormat::Cvat => {
                    let name = format!("{folder}/{CVAT_FILE}");
                    let file = self.out.staged(&name).and_then(|path| AtomicFile::create(&path));
                    let file = file.with_context(|| name.clone())?;
                    match self.write_to(format, Zip::new(file), pass)? {
                        Some(archive) => {
                            archive.finish()?.commit().with_context(|| name.clone())?;
                            self.out.publish(&[name])?;
                            true
                        }
                        None => false,
                    }
                }
                _ => self.write_to(format, ExportFolder::new(self.out, folder), pass)?.is_some(),
            };
            if !is_whole {
                return Ok(Pass::Stopped);
            }
        }
        Ok(Pass::Whole { num_failed: has_failed.into_iter().filter(|&failed| failed).count() })
    }

    /// Writes one format; `None` if the user asked to stop.
    fn write_to<D: Destination>(
        &self,
        format: ExportFormat,
        destination: D,
        pass: Images<'_>,
    ) -> anyhow::Result<Option<D>> {
        let Images { images, has_failed, messages, interrupt } = pass;
        let mut export = Exporter::begin(format, self.classes, &self.args.options(), destination)?;
        let encoder = export.encoder();
        let bar = messages.progress_bar(images.len(), format.name());
        let chunk = AHEAD * rayon::current_num_threads();
        for (images, has_failed) in images.chunks(chunk).zip(has_failed.chunks_mut(chunk)) {
            if interrupt.is_some_and(Interrupt::is_asked) {
                return Ok(None);
            }
            let encoded: Vec<_> =
                images.par_iter().map(|image| self.encoded(format, &encoder, image)).collect();
            for ((image, encoded), has_failed) in images.iter().zip(encoded).zip(has_failed) {
                match encoded {
                    Ok(encoded) => export.add_encoded(encoded, self.photograph(image))?,
                    // One message per image, however many formats it fails in.
                    Err(error) if !*has_failed => {
                        *has_failed = true;
                        bar.suspend(|| messages.failure(described(&error)));
                    }
                    Err(_) => {}
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(Some(export.finish()?))
    }

    fn encoded(
        &self,
        format: ExportFormat,
        encoder: &Encoder,
        image: &Finished<'_>,
    ) -> anyhow::Result<EncodedImage> {
        let mask = image.mask.read(&self.limits)?;
        let stored = match image.scores.as_deref().filter(|_| self.args.needs_scores(format)) {
            Some(path) => {
                let stored = StoredScores::read(path)?;
                if stored.classes != *self.classes {
                    bail!("{}: its classes are not those of the masks", path.display());
                }
                Some(stored)
            }
            None => None,
        };
        let scores = stored
            .as_ref()
            .map(|stored| ScoresOnGrid { on_grid: &stored.scores, alignment: stored.alignment });
        let (file_name, photograph) = (image.file_name.as_str(), Photograph::Elsewhere);
        Ok(encoder.encode(&LabelledImage { file_name, mask: &mask, scores, photograph })?)
    }

    fn photograph<'p>(&self, image: &Finished<'p>) -> Photograph<'p> {
        match (self.args.place_images, image.photograph) {
            (PlaceWord::None, _) | (_, None) => Photograph::Elsewhere,
            (PlaceWord::Link, Some(path)) => Photograph::Link(path),
            (PlaceWord::Copy, Some(path)) => Photograph::Copy(path),
        }
    }
}

/// The images of a pass.
struct Images<'a> {
    images: &'a [Finished<'a>],
    has_failed: &'a mut [bool],
    messages: &'a Messages,
    interrupt: Option<&'a Interrupt>,
}
