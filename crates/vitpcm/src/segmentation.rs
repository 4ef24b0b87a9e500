//! The network's output for one image, and the masks that follow from it.

use crate::SegmentError;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{LabelMap, MaskError, ScoreMap};

/// Which classes a mask may show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TagMode<'a> {
    /// The given classes and background.
    Given(&'a [usize]),
    /// The classes whose probability reaches a threshold.
    Predicted {
        /// From 0 to 1.
        threshold: f32,
    },
    /// All classes; scores are not conditioned.
    Unknown,
}

/// The network's output for an image, before conditioning on tags.
#[derive(Clone, Debug, PartialEq)]
pub struct RawScores {
    /// Probability of every class at every grid cell.
    pub scores_on_grid: ScoreMap,
    /// Probability that each class is in the image, background first; calibrated if the model has a tag head.
    pub tag_probabilities: Vec<f32>,
    /// For networks without a background class (CAM): the score a class must exceed, relative to its peak of 1.
    pub background_threshold: Option<f32>,
    /// Width and height of the image.
    pub image_size: (usize, usize),
    /// How the grid is aligned with the image.
    pub alignment: Alignment,
}

impl RawScores {
    /// The classes whose probability reaches the threshold, without background.
    pub fn predicted_tags(&self, threshold: f32) -> Vec<usize> {
        (1..self.tag_probabilities.len()).filter(|&tag| self.tag_probabilities[tag] >= threshold).collect()
    }

    /// Conditions the scores on tags. Fast: the network does not run again.
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

/// The segmentation of one image, conditioned on given, predicted or no tags.
#[derive(Clone, Debug, PartialEq)]
pub struct Segmentation {
    /// Scores on the grid, conditioned on the tags.
    pub scores_on_grid: ScoreMap,
    /// The classes that the mask may show, without background.
    pub tags: Vec<usize>,
    /// Predicted probability that each class is in the image.
    pub tag_probabilities: Vec<f32>,
    /// Width and height of the image.
    pub image_size: (usize, usize),
    /// How the grid is aligned with the image.
    pub alignment: Alignment,
}

impl Segmentation {
    /// The mask at the image's size: bilinear upsampling of the scores, then argmax.
    pub fn label_map(&self) -> LabelMap {
        let (width, height) = self.image_size;
        self.scores_on_grid.label_map_at(width, height, self.alignment).expect("an image's size is valid")
    }

    /// All scores at the image's size. Needs four bytes per class and pixel; [`Segmentation::label_map`] avoids that.
    pub fn scores_at_image_size(&self) -> Result<ScoreMap, MaskError> {
        let (width, height) = self.image_size;
        self.scores_on_grid.resized(width, height, self.alignment)
    }
}
