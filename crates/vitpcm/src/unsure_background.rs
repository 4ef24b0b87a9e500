//! Uncertain background: regions that the mask labels background although the network's background score is low. They
//! often are parts of objects that do not tell their class.

use crate::SegmentError;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{IGNORE, LabelMap, ScoreMap};

/// What counts as uncertain background, and what replaces it. Object parts that the network takes for background
/// (clothes, table tops) seldom score near 1. Seams around objects score low too, but they are thin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnsureBackground {
    /// Background whose score, before any CRF, is below this is uncertain.
    pub sure_from: f32,
    /// Only regions that a disc of this radius fits into (morphological opening), as a fraction of the mask's longer
    /// side; 0: all.
    pub disc_radius: f64,
    /// Whether to fill it with the next most likely class; otherwise it becomes [`IGNORE`].
    pub is_filled: bool,
}

impl UnsureBackground {
    /// The settings with the best masks on VOC's training images.
    pub const FILLED: UnsureBackground =
        UnsureBackground { sure_from: 0.9, disc_radius: 0.05, is_filled: true };

    /// The mask with its uncertain background filled or ignored.
    pub fn apply(
        &self,
        mask: LabelMap,
        scores_on_grid: &ScoreMap,
        alignment: Alignment,
    ) -> Result<LabelMap, SegmentError> {
        let (width, height) = mask.size();
        let areas = self.areas(&mask, scores_on_grid, alignment)?;
        let things = match self.is_filled {
            true => Some(likeliest_things(scores_on_grid, width, height, alignment)?),
            false => None,
        };
        let mut labels = mask.into_labels();
        for (pixel, label) in labels.iter_mut().enumerate().filter(|(pixel, _)| areas[*pixel]) {
            *label = things.as_ref().map_or(IGNORE, |things| things.labels()[pixel]);
        }
        Ok(LabelMap::new(width, height, labels)?)
    }

    /// Marks the pixels of large uncertain background regions.
    fn areas(
        &self,
        mask: &LabelMap,
        scores_on_grid: &ScoreMap,
        alignment: Alignment,
    ) -> Result<Vec<bool>, SegmentError> {
        let ((width, height), (columns, rows)) = (mask.size(), scores_on_grid.size());
        // Pixels where the background scores below `sure_from`. No score plane is ever as large as the mask.
        let limit = vec![self.sure_from; columns * rows];
        let contest = ScoreMap::new(2, columns, rows, [scores_on_grid.plane(0), &limit].concat())?;
        let is_unsure = contest.label_map_at(width, height, alignment)?.into_labels();
        let unsure =
            mask.labels().iter().zip(is_unsure).map(|(&label, unsure)| unsure * u8::from(label == 0));
        let unsure = LabelMap::new(width, height, unsure.collect())?;
        Ok(unsure.wide_areas(1, self.disc_radius * width.max(height) as f64))
    }
}

/// The highest-scoring class besides background; background if no other class scores above zero.
fn likeliest_things(
    scores_on_grid: &ScoreMap,
    width: usize,
    height: usize,
    alignment: Alignment,
) -> Result<LabelMap, SegmentError> {
    let (columns, rows) = scores_on_grid.size();
    let mut planes = scores_on_grid.scores().to_vec();
    planes[..columns * rows].fill(0.0);
    let things = ScoreMap::new(scores_on_grid.num_classes(), columns, rows, planes)?;
    Ok(things.label_map_at(width, height, alignment)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8×8 cells: class 2 on the left, certain background on the right, uncertain background (0.7, else class 1) one
    /// cell wide between them and four cells high below both.
    fn example() -> (LabelMap, ScoreMap) {
        let (columns, rows) = (8, 8);
        let mut scores = vec![0.0; 3 * columns * rows];
        for cell in 0..columns * rows {
            let (x, y) = (cell % columns, cell / columns);
            let [background, first, second] = match (x, y) {
                (_, 4..) | (3, _) => [0.7, 0.2, 0.1],
                (..3, _) => [0.1, 0.1, 0.8],
                _ => [0.99, 0.005, 0.005],
            };
            for (class, score) in [background, first, second].into_iter().enumerate() {
                scores[class * columns * rows + cell] = score;
            }
        }
        let scores = ScoreMap::new(3, columns, rows, scores).unwrap();
        (scores.arg_max(), scores)
    }

    /// The first row and the seventh.
    fn rows_of(sure_from: f32, disc_radius: f64, is_filled: bool) -> [Vec<u8>; 2] {
        let (mask, scores) = example();
        let changed = UnsureBackground { sure_from, disc_radius, is_filled };
        let changed = changed.apply(mask, &scores, Alignment::HalfPixel).unwrap();
        [0, 6].map(|y| changed.labels()[y * 8..][..8].to_vec())
    }

    #[test]
    fn unsure_background_is_left_open_or_goes_to_the_likeliest_thing() {
        let o = IGNORE;
        assert_eq!(rows_of(0.8, 0.0, false), [vec![2, 2, 2, o, 0, 0, 0, 0], vec![o; 8]]);
        assert_eq!(rows_of(0.8, 0.0, true), [vec![2, 2, 2, 1, 0, 0, 0, 0], vec![1; 8]]);
        assert_eq!(rows_of(0.6, 0.0, true), [vec![2, 2, 2, 0, 0, 0, 0, 0], vec![0; 8]]);
    }

    #[test]
    fn background_that_the_network_is_not_sure_of_is_left_open() {
        // Two cells side by side, certain and uncertain background, above two of class 1.
        let scores = ScoreMap::new(2, 2, 2, vec![0.99, 0.6, 0.1, 0.1, 0.01, 0.4, 0.9, 0.9]).unwrap();
        let mask = scores.label_map_at(2, 2, Alignment::HalfPixel).unwrap();
        assert_eq!(mask.labels(), [0, 0, 1, 1]);
        let open = |sure_from| {
            let unsure = UnsureBackground { sure_from, disc_radius: 0.0, is_filled: false };
            unsure.apply(mask.clone(), &scores, Alignment::HalfPixel).unwrap()
        };
        assert_eq!(open(0.97).labels(), [0, IGNORE, 1, 1]);
        assert_eq!(open(0.0), mask);
    }

    #[test]
    fn seams_narrower_than_the_disc_stay_background() {
        assert_eq!(rows_of(0.8, 0.15, true), [vec![2, 2, 2, 0, 0, 0, 0, 0], vec![1; 8]]);
        assert_eq!(rows_of(0.8, 0.7, true), [vec![2, 2, 2, 0, 0, 0, 0, 0], vec![0; 8]]);
    }

    #[test]
    fn an_image_in_which_nothing_else_has_a_score_stays_background() {
        let scores = ScoreMap::new(2, 1, 1, vec![0.3, 0.0]).unwrap();
        let unsure = UnsureBackground { sure_from: 0.9, disc_radius: 0.0, is_filled: true };
        let mask = scores.arg_max();
        assert_eq!(unsure.apply(mask.clone(), &scores, Alignment::HalfPixel).unwrap(), mask);
    }
}
