//! Masks as files: the formats that the page offers, for one image as it is or for several in a zip archive.

use crate::answer::Refusal;
use crate::kept_image::{KeptImage, MaskWish};
use crate::names;
use serde::Deserialize;
use std::io::{Cursor, Write};
use std::sync::Arc;
use vitpcm_masks::{Classes, StoredScores, label_png, overlay};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// How strongly an overlay shows the mask; as `vitpcm segment` does.
const OVERLAY_OPACITY: f32 = 0.55;

/// Most bytes of a download, so that it fits in memory.
const MAX_BYTES: usize = 512 << 20;

/// A format of downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    Png,
    Overlay,
    Npz,
}

impl Format {
    pub(crate) const ALL: [Format; 3] = [Format::Png, Format::Overlay, Format::Npz];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Png => "png",
            Format::Overlay => "overlay",
            Format::Npz => "npz",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Format::Png => "Mask (PNG)",
            Format::Overlay => "Overlay (PNG)",
            Format::Npz => "Scores (NPZ)",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Format::Png => "class index a pixel, VOC palette",
            Format::Overlay => "the mask over the image",
            Format::Npz => "class scores on the grid, for NumPy and vitpcm refine",
        }
    }
}

/// A download that a client wants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DownloadWish {
    format: Format,
    pub(crate) images: Vec<ImageWish>,
}

/// An image of a download, with the mask that is wanted of it.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageWish {
    pub(crate) id: String,
    #[serde(flatten)]
    mask: MaskWish,
}

/// A file to be saved.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) content_type: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// Makes a download of `images`, which are those of the wish, in its order.
pub(crate) fn make(
    wish: &DownloadWish,
    images: &[Arc<KeptImage>],
    classes: &Classes,
) -> Result<File, Refusal> {
    let stems = names::distinct(images.iter().map(|image| names::stem(&image.name)).collect());
    let mut files = Vec::with_capacity(images.len());
    let mut num_bytes = 0;
    for ((one, image), stem) in wish.images.iter().zip(images).zip(&stems) {
        let file = file_of(wish.format, one, image, stem, classes)?;
        num_bytes += file.bytes.len();
        if num_bytes > MAX_BYTES {
            let text = format!("more than {} MiB in one download; choose fewer images", MAX_BYTES >> 20);
            return Err(Refusal::unprocessable(text));
        }
        files.push(file);
    }
    if let [_] = files[..] {
        return Ok(files.remove(0));
    }
    let bytes = zipped(&files).map_err(|_| Refusal::bug())?;
    Ok(File { name: format!("vitpcm-{}.zip", wish.format.name()), content_type: "application/zip", bytes })
}

fn file_of(
    format: Format,
    wish: &ImageWish,
    image: &KeptImage,
    stem: &str,
    classes: &Classes,
) -> Result<File, Refusal> {
    let made = image.mask(&wish.mask, classes)?;
    let file = |extension: &str, content_type, bytes| File {
        name: format!("{stem}{extension}"),
        content_type,
        bytes,
    };
    Ok(match format {
        Format::Png => file(".png", "image/png", label_png(&made.mask).map_err(vitpcm::SegmentError::from)?),
        Format::Overlay => {
            let picture = overlay(image.pixels.as_raw(), &made.mask, OVERLAY_OPACITY);
            file("-overlay.png", "image/png", picture.png())
        }
        Format::Npz => {
            let stored = StoredScores {
                scores: made.segmentation.scores_on_grid.clone(),
                classes: classes.clone(),
                image_size: image.size(),
                alignment: made.segmentation.alignment,
            };
            file(".npz", "application/octet-stream", stored.npz())
        }
    })
}

fn zipped(files: &[File]) -> zip::result::ZipResult<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for file in files {
        archive.start_file(file.name.as_str(), SimpleFileOptions::default())?;
        archive.write_all(&file.bytes)?;
    }
    Ok(archive.finish()?.into_inner())
}
