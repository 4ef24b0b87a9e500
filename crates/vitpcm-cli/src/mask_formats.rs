//! The files that a segmented image becomes. Each is written whole or not at all; masks straight into the output
//! folder, the other formats into a folder of their own name.

use anyhow::Context;
use clap::ValueEnum;
use image::RgbImage;
use std::path::{Path, PathBuf};
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{
    Classes, LabelMap, ScoreMap, StoredScores, heat_map, overlay, read_label_png, write_label_npy,
    write_label_png,
};

/// How strongly an overlay shows the mask.
const OVERLAY_OPACITY: f32 = 0.55;

/// A format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// NAME.png: 8-bit indexed mask in the VOC palette
    Png,
    /// overlay/NAME.png: the mask over the image
    Overlay,
    /// heatmap/NAME/CLASS.png: a class's scores, with a colour bar
    Heatmap,
    /// npy/NAME.npy: the mask as an array (height × width, 8-bit)
    Npy,
    /// npz/NAME.npz: the scores on the grid, class names and image size; what `refine` reads
    Npz,
}

/// Everything known about one image when its results are written.
pub(crate) struct Results<'a> {
    pub(crate) image: &'a RgbImage,
    pub(crate) mask: &'a LabelMap,
    pub(crate) scores_on_grid: &'a ScoreMap,
    /// How grid and image lie on each other.
    pub(crate) alignment: Alignment,
    pub(crate) classes: &'a Classes,
    /// The classes the image may show, the background left out.
    pub(crate) tags: &'a [usize],
}

impl Format {
    fn file(self, out: &Path, name: &str) -> PathBuf {
        match self {
            Format::Png => out.join(format!("{name}.png")),
            Format::Overlay => out.join(format!("overlay/{name}.png")),
            Format::Heatmap => out.join(format!("heatmap/{name}")),
            Format::Npy => out.join(format!("npy/{name}.npy")),
            Format::Npz => out.join(format!("npz/{name}.npz")),
        }
    }

    /// Whether the result is there and whole.
    pub(crate) fn is_done(self, out: &Path, name: &str) -> bool {
        let path = self.file(out, name);
        match self {
            Format::Png => read_label_png(&path).is_ok(),
            Format::Npz => StoredScores::read(&path).is_ok(),
            // Written by renaming, so that what is there is whole; the background's heat map is the last one.
            Format::Heatmap => path.join(heat_map_name(0, "background")).is_file(),
            Format::Overlay | Format::Npy => path.is_file(),
        }
    }

    pub(crate) fn write(self, out: &Path, name: &str, results: &Results<'_>) -> anyhow::Result<()> {
        let path = self.file(out, name);
        let folder = if self == Format::Heatmap { Some(path.as_path()) } else { path.parent() };
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        let image_size = (results.image.width() as usize, results.image.height() as usize);
        match self {
            Format::Png => write_label_png(&path, results.mask)?,
            Format::Overlay => {
                overlay(results.image.as_raw(), results.mask, OVERLAY_OPACITY).write_png(&path)?
            }
            Format::Npy => write_label_npy(&path, results.mask)?,
            Format::Npz => {
                let scores = results.scores_on_grid.clone();
                let (classes, alignment) = (results.classes.clone(), results.alignment);
                StoredScores { scores, classes, image_size, alignment }.write(&path)?;
            }
            Format::Heatmap => {
                for &class in results.tags.iter().chain([&0]) {
                    let file = path.join(heat_map_name(class, &results.classes.names()[class]));
                    heat_map(results.scores_on_grid, class, image_size).write_png(&file)?;
                }
            }
        }
        Ok(())
    }
}

/// The class's number and its name, without what a file name cannot have.
fn heat_map_name(class: usize, name: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_ .".contains(c) { c } else { '_' };
    format!("{class:03}-{}.png", name.chars().map(safe).collect::<String>())
}
