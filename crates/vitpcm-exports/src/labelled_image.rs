//! What is exported: an image's name and mask, its scores if known, and its file.

use crate::ExportError;
use std::path::Path;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{Classes, IGNORE, LabelMap, ScoreMap};

/// An image and its mask.
#[derive(Clone, Copy, Debug)]
pub struct LabelledImage<'a> {
    /// Path of the image below its folder, with extension and `/` as separator: `street/0001.jpg`.
    pub file_name: &'a str,
    /// The mask, at the image's size.
    pub mask: &'a LabelMap,
    /// Scores, for the formats that use them.
    pub scores: Option<ScoresOnGrid<'a>>,
    /// The image, for the formats that include it.
    pub photograph: Photograph<'a>,
}

/// Scores on the grid and their alignment with the image.
#[derive(Clone, Copy, Debug)]
pub struct ScoresOnGrid<'a> {
    /// Probability of every class at every cell.
    pub on_grid: &'a ScoreMap,
    /// How the grid is aligned with the image.
    pub alignment: Alignment,
}

/// An image's file, and how it gets to its place in the export.
#[derive(Clone, Copy, Debug)]
pub enum Photograph<'a> {
    /// It stays where it is; the user brings both together.
    Elsewhere,
    /// A hard link to this file, or a copy if that is not possible.
    Link(&'a Path),
    /// A copy of this file.
    Copy(&'a Path),
    /// These bytes.
    Bytes(&'a [u8]),
}

impl LabelledImage<'_> {
    /// The file name without extension, which names masks and labels.
    pub fn name(&self) -> &str {
        let start = self.file_name.rfind('/').map_or(0, |slash| slash + 1);
        match self.file_name[start..].rfind('.') {
            None | Some(0) => self.file_name,
            Some(dot) => &self.file_name[..start + dot],
        }
    }

    /// Checks that names stay below the output folder and that labels are classes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file_name: &str, name: Option<&str>) {
        let mask = LabelMap::filled(2, 2, 0).unwrap();
        let image = LabelledImage { file_name, mask: &mask, scores: None, photograph: Photograph::Elsewhere };
        let checked = image.check(&Classes::voc());
        assert_eq!(checked.is_ok().then(|| image.name()), name, "{file_name:?}: {checked:?}");
    }

    #[test]
    fn names_lose_their_extension_and_nothing_else() {
        check("a.jpg", Some("a"));
        check("deep/er/a.b.jpg", Some("deep/er/a.b"));
        check("deep.er/a", Some("deep.er/a"));
        check(".hidden", Some(".hidden"));
        check("wide ö.png", Some("wide ö"));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in
            ["", "/etc/passwd", "../a.jpg", "a/../../b.jpg", "a//b.jpg", "a/.", "a\\b.jpg", "a\0.jpg", "a\n"]
        {
            check(name, None);
        }
    }

    #[test]
    fn labels_that_are_no_class_are_refused() {
        let mask = LabelMap::new(3, 1, vec![0, 21, 255]).unwrap();
        let image =
            LabelledImage { file_name: "a", mask: &mask, scores: None, photograph: Photograph::Elsewhere };
        let message = image.check(&Classes::voc()).unwrap_err().to_string();
        assert_eq!(message, "a: class index 21; the class list has 0 to 20 (and 255)");
    }
}
