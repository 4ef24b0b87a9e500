//! Averages an image's scores over scales and symmetries.

use crate::SegmentError;
use vitpcm_masks::ScoreMap;
use vitpcm_masks::resampling::Alignment;

/// Running mean over scales and symmetries, on the grid of the first one added.
pub(crate) struct Average {
    size: (usize, usize),
    scores: Vec<f32>,
    tag_probabilities: Vec<f32>,
    count: f32,
}

impl Average {
    pub(crate) fn of((scores, tag_probabilities): (ScoreMap, Vec<f32>)) -> Self {
        Average { size: scores.size(), scores: scores.into_scores(), tag_probabilities, count: 1.0 }
    }

    pub(crate) fn add(
        &mut self,
        (scores, tag_probabilities): &(ScoreMap, Vec<f32>),
        alignment: Alignment,
    ) -> Result<(), SegmentError> {
        let resized;
        let scores = if scores.size() == self.size {
            scores
        } else {
            resized = scores.resized(self.size.0, self.size.1, alignment)?;
            &resized
        };
        let add =
            |sums: &mut [f32], values: &[f32]| sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += v);
        add(&mut self.scores, scores.scores());
        add(&mut self.tag_probabilities, tag_probabilities);
        self.count += 1.0;
        Ok(())
    }

    pub(crate) fn mean(mut self) -> Result<(ScoreMap, Vec<f32>), SegmentError> {
        self.scores.iter_mut().chain(&mut self.tag_probabilities).for_each(|sum| *sum /= self.count);
        let num_classes = self.tag_probabilities.len();
        Ok((ScoreMap::new(num_classes, self.size.0, self.size.1, self.scores)?, self.tag_probabilities))
    }
}
