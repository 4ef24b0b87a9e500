//! The result files of a segmented image, each written atomically: masks directly into the output folder, other formats
//! into a subfolder of their name. `mask_exports` makes exports from these files.

use crate::mask_exports;
use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use image::RgbImage;
use std::path::{Path, PathBuf};
use vitpcm_exports::ExportFormat;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{
    Classes, LabelMap, ScoreMap, StoredScores, heat_map, overlay, read_label_png_within, write_label_npy,
    write_label_png,
};

/// Opacity of the mask in overlays.
const OVERLAY_OPACITY: f32 = 0.55;

/// A format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Png,
    Overlay,
    Heatmap,
    Npy,
    Npz,
    /// Made from the masks of all images, at the end.
    Export(ExportFormat),
}

const OWN: [(Format, &str, &str); 5] = [
    (Format::Png, "png", "NAME.png: 8-bit indexed mask in the VOC palette"),
    (Format::Overlay, "overlay", "overlay/NAME.png: the mask over the image"),
    (Format::Heatmap, "heatmap", "heatmap/NAME/CLASS.png: a class's scores, with a colour bar"),
    (Format::Npy, "npy", "npy/NAME.npy: the mask as an array (height × width, 8-bit)"),
    (Format::Npz, "npz", "npz/NAME.npz: the scores on the grid, class names and image size, for `refine`"),
];

/// Parses the words of `--format`.
pub(crate) fn format_parser() -> impl TypedValueParser<Value = Format> {
    let own = OWN.map(|(_, word, help)| PossibleValue::new(word).help(help));
    let exports = ExportFormat::ALL.into_iter().filter(|&format| format != ExportFormat::Png);
    let exports = exports.map(|format| PossibleValue::new(format.name()).help(mask_exports::help(format)));
    let known = |word: String| match OWN.iter().find(|(_, own, _)| *own == word) {
        Some((format, ..)) => *format,
        None => Format::Export(ExportFormat::from_name(&word).expect("one of the words above")),
    };
    PossibleValuesParser::new(own.into_iter().chain(exports)).map(known)
}

/// The option `--format` of `segment` and `refine`.
#[derive(clap::Args)]
pub(crate) struct FormatOptions {
    /// Formats to write
    #[arg(
        long,
        value_parser = format_parser(),
        value_delimiter = ',',
        default_value = "png",
        value_name = "FORMAT,…"
    )]
    format: Vec<Format>,
}

impl FormatOptions {
    /// The formats written per image: those requested, and those that requested exports are made from.
    pub(crate) fn written_per_image(&self) -> Vec<Format> {
        let mut written: Vec<Format> = Vec::new();
        let mut add = |format: Format| {
            if !written.contains(&format) {
                written.push(format);
            }
        };
        for &format in &self.format {
            match format {
                Format::Export(_) => add(Format::Png),
                own => add(own),
            }
        }
        written
    }

    /// The exports among the formats.
    pub(crate) fn exports(&self) -> Vec<ExportFormat> {
        let export = |format: &Format| match format {
            Format::Export(export) => Some(*export),
            _ => None,
        };
        self.format.iter().filter_map(export).collect()
    }
}

/// Everything needed to write an image's results.
pub(crate) struct Results<'a> {
    pub(crate) image: &'a RgbImage,
    pub(crate) mask: &'a LabelMap,
    pub(crate) scores_on_grid: &'a ScoreMap,
    /// How the grid is aligned with the image.
    pub(crate) alignment: Alignment,
    pub(crate) classes: &'a Classes,
    /// The classes that the image may show, without background.
    pub(crate) tags: &'a [usize],
}

impl Format {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Export(export) => export.name(),
            own => OWN.iter().find(|(format, ..)| *format == own).map_or("", |(_, word, _)| word),
        }
    }

    /// The path of an image's result.
    pub(crate) fn file(self, out: &Path, name: &str) -> PathBuf {
        match self {
            Format::Png => out.join(format!("{name}.png")),
            Format::Overlay => out.join(format!("overlay/{name}.png")),
            Format::Heatmap => out.join(format!("heatmap/{name}")),
            Format::Npy => out.join(format!("npy/{name}.npy")),
            Format::Npz => out.join(format!("npz/{name}.npz")),
            Format::Export(export) => out.join(export.name()),
        }
    }

    /// The subfolder of its results; `None` for the output folder itself.
    pub(crate) fn folder(self) -> Option<&'static str> {
        match self {
            Format::Png => None,
            Format::Overlay => Some("overlay"),
            Format::Heatmap => Some("heatmap"),
            Format::Npy => Some("npy"),
            Format::Npz => Some("npz"),
            Format::Export(export) => Some(export.name()),
        }
    }

    /// All files that an image's results may consist of.
    pub(crate) fn files(self, out: &Path, name: &str, classes: &Classes) -> Vec<PathBuf> {
        let path = self.file(out, name);
        match self {
            Format::Heatmap => {
                let names = classes.names().iter().enumerate();
                names.map(|(class, name)| path.join(heat_map_name(class, name))).collect()
            }
            _ => vec![path],
        }
    }

    /// Whether the result exists and is complete; for a mask, of at most `max_pixels` pixels.
    pub(crate) fn is_done(self, out: &Path, name: &str, max_pixels: u64) -> bool {
        let path = self.file(out, name);
        match self {
            Format::Png => read_label_png_within(&path, max_pixels).is_ok(),
            Format::Npz => StoredScores::read(&path).is_ok(),
            // Files are renamed into place, so existing ones are complete; the background's heat map is written last.
            Format::Heatmap => path.join(heat_map_name(0, "background")).is_file(),
            Format::Overlay | Format::Npy | Format::Export(_) => path.is_file(),
        }
    }

    /// Writes an image's results below a folder; returns their names there.
    pub(crate) fn write(self, out: &Path, name: &str, results: &Results<'_>) -> anyhow::Result<Vec<String>> {
        let path = self.file(out, name);
        let folder = if self == Format::Heatmap { Some(path.as_path()) } else { path.parent() };
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        let image_size = (results.image.width() as usize, results.image.height() as usize);
        let mut written = vec![path.clone()];
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
                written.clear();
                for &class in results.tags.iter().chain([&0]) {
                    let file = path.join(heat_map_name(class, &results.classes.names()[class]));
                    heat_map(results.scores_on_grid, class, image_size).write_png(&file)?;
                    written.push(file);
                }
            }
            // Exports are not written per image; `written_per_image` leaves them out.
            Format::Export(_) => written.clear(),
        }
        let name_of = |path: &PathBuf| path.strip_prefix(out).unwrap_or(path).to_string_lossy().into_owned();
        Ok(written.iter().map(name_of).collect())
    }
}

/// The class's index and its name, without characters that file names cannot have.
fn heat_map_name(class: usize, name: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_ .".contains(c) { c } else { '_' };
    format!("{class:03}-{}.png", name.chars().map(safe).collect::<String>())
}
