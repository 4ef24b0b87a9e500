//! What is exported: one image's name, its mask and, where they are known, its scores and its own file.

use crate::ExportError;
use std::path::Path;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{Classes, IGNORE, LabelMap, ScoreMap};

/// An image and its mask.
#[derive(Clone, Copy, Debug)]
pub struct LabelledImage<'a> {
    /// Path of the image below its folder, with extension and `/` between the parts: `street/0001.jpg`.
    pub file_name: &'a str,
    /// The mask, of the image's own size.
    pub mask: &'a LabelMap,
    /// Scores, for the formats that use them.
    pub scores: Option<Scores<'a>>,
    /// The image itself, for the formats that want it beside its labels.
    pub photograph: Photograph<'a>,
}

/// Scores on the grid, and how grid and image lie on each other.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Probability of every class at every cell.
    pub on_grid: &'a ScoreMap,
    /// How grid and image lie on each other.
    pub alignment: Alignment,
}

/// The file of an image, and how it gets to where a format wants it.
#[derive(Clone, Copy, Debug)]
pub enum Photograph<'a> {
    /// It stays where it is; the user brings both together.
    Elsewhere,
    /// A second name for the same file (a hard link); a copy where that is not possible.
    Link(&'a Path),
    /// A copy of this file.
    Copy(&'a Path),
    /// These bytes.
    Bytes(&'a [u8]),
}

impl LabelledImage<'_> {
    /// The file name without its extension: what masks and labels are called.
    pub fn name(&self) -> &str {
        let (folder, file) = self.file_name.rsplit_once('/').map_or(("", self.file_name), |(f, n)| (f, n));
        match file.rsplit_once('.') {
            Some((stem, _)) if !stem.is_empty() => {
                &self.file_name[..folder.len() + usize::from(!folder.is_empty()) + stem.len()]
            }
            _ => self.file_name,
        }
    }

    /// Names must stay below the folder that is written, and labels must be classes.
    pub(crate) fn check(&self, classes: &Classes) -> Result<(), ExportError> {
        let is_good = |part: &str| {
            !matches!(part, "" | "." | "..") && !part.chars().any(|c| c.is_control() || c == '\\')
        };
        if !self.file_name.split('/').all(is_good) {
            return Err(ExportError::BadName { name: self.file_name.escape_debug().to_string() });
        }
        let counts = self.mask.histogram();
        match (classes.len()..usize::from(IGNORE)).find(|&label| counts[label] > 0) {
            None => Ok(()),
            Some(label) => Err(ExportError::LabelOutOfRange {
                name: self.file_name.to_string(),
                label: label as u8,
                num_classes: classes.len(),
            }),
        }
    }
}
