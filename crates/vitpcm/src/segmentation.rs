//! What comes out of the network, and the masks that can be made of it.

use crate::SegmentError;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{LabelMap, MaskError, ScoreMap};

/// Which classes a mask may show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TagMode<'a> {
    /// These and the background: what is known about the image.
    Given(&'a [usize]),
    /// The classes whose probability reaches the threshold.
    Predicted {
        /// From 0 to 1.
        threshold: f32,
    },
    /// Any; the scores stay as the network gave them.
    Unknown,
}

/// What the network says about an image, before any tag is known.
#[derive(Clone, Debug, PartialEq)]
pub struct RawScores {
    /// Probability of every class at every grid cell.
    pub scores_on_grid: ScoreMap,
    /// Probability that each class is in the image, the background's first; calibrated where the model has a tag head.
    pub tag_probabilities: Vec<f32>,
    /// What a class must exceed at a cell, its peak being 1, where the network knows no background (CAM).
    pub background_threshold: Option<f32>,
    /// Width and height of the image.
    pub image_size: (usize, usize),
    /// How grid and image lie on each other.
    pub alignment: Alignment,
}

impl RawScores {
    /// The classes whose probability reaches the threshold, the background left out.
    pub fn predicted_tags(&self, threshold: f32) -> Vec<usize> {
        (1..self.tag_probabilities.len()).filter(|&tag| self.tag_probabilities[tag] >= threshold).collect()
    }

    /// The segmentation for these tags. Quick: the network does not run again.
    pub fn with_tags(&self, mode: TagMode<'_>) -> Result<Segmentation, SegmentError> {
        let num_classes = self.scores_on_grid.num_classes();
        let tags = match mode {
            TagMode::Given(tags) => tags.to_vec(),
            TagMode::Predicted { threshold } => self.predicted_tags(threshold),
            TagMode::Unknown => (1..num_classes).collect(),
        };
        if let Some(&tag) = tags.iter().find(|tag| !(1..num_classes).contains(*tag)) {
            return Err(SegmentError::UnknownTag { tag, num_classes });
        }
        let scores_on_grid = match mode {
            TagMode::Unknown => self.scores_on_grid.clone(),
            TagMode::Given(_) | TagMode::Predicted { .. } => match self.background_threshold {
                None => self.scores_on_grid.conditioned(&tags),
                Some(threshold) => self.scores_on_grid.with_threshold(&tags, threshold),
            },
        };
        let tag_probabilities = self.tag_probabilities.clone();
        let (image_size, alignment) = (self.image_size, self.alignment);
        Ok(Segmentation { scores_on_grid, tags, tag_probabilities, image_size, alignment })
    }
}

/// The segmentation of one image under known, predicted or no tags.
#[derive(Clone, Debug, PartialEq)]
pub struct Segmentation {
    /// Scores on the grid, conditioned on the tags.
    pub scores_on_grid: ScoreMap,
    /// The classes that the mask may show, the background left out.
    pub tags: Vec<usize>,
    /// Probability that each class is in the image, as the network gave it.
    pub tag_probabilities: Vec<f32>,
    /// Width and height of the image.
    pub image_size: (usize, usize),
    /// How grid and image lie on each other.
    pub alignment: Alignment,
}

impl Segmentation {
    /// The mask at the image's size: bilinear scores, the best class of each pixel.
    pub fn label_map(&self) -> LabelMap {
        let (width, height) = self.image_size;
        self.scores_on_grid.label_map_at(width, height, self.alignment).expect("an image's size is valid")
    }

    /// All scores at the image's size. Large: four bytes a class and pixel; [`Segmentation::label_map`] does without.
    pub fn scores_at_image_size(&self) -> Result<ScoreMap, MaskError> {
        let (width, height) = self.image_size;
        self.scores_on_grid.resized(width, height, self.alignment)
    }
}
