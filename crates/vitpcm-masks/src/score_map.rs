//! A score map: a probability per class and grid cell or pixel.

use crate::label_map::checked_num_pixels;
use crate::resampling::{Alignment, Axis, nearest_indices};
use crate::{LabelMap, MaskError};
use rayon::prelude::*;

/// Probabilities may exceed 1 by this much through rounding.
const TOLERANCE: f32 = 1e-3;

/// Probabilities of every class at every cell, as row-major planes, class 0 first.
///
/// All values are finite and lie in 0..=1 (up to rounding); at most 255 classes.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreMap {
    num_classes: usize,
    width: usize,
    height: usize,
    scores: Vec<f32>,
}

impl ScoreMap {
    /// A score map from its planes: `scores[(class * height + y) * width + x]`.
    pub fn new(num_classes: usize, width: usize, height: usize, scores: Vec<f32>) -> Result<Self, MaskError> {
        let num_cells = checked_num_pixels(width, height)?;
        if num_classes == 0 || num_classes > 255 {
            return Err(MaskError::BadClasses(format!("{num_classes} classes, expected 1 to 255")));
        }
        if num_cells.checked_mul(num_classes) != Some(scores.len()) {
            let expected = format!("{num_classes} classes × {width} × {height}");
            return Err(MaskError::WrongLength { what: "score map", found: scores.len(), expected });
        }
        let is_probability = |value: &f32| (-TOLERANCE..=1.0 + TOLERANCE).contains(value);
        if let Some(i) = scores.iter().position(|value| !is_probability(value)) {
            let (class, cell) = (i / num_cells, i % num_cells);
            let (x, y) = (cell % width, cell / width);
            return Err(MaskError::NotAProbability { value: scores[i], class, x, y });
        }
        Ok(ScoreMap { num_classes, width, height, scores })
    }

    /// Number of classes, including background.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// Cells per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Width and height.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// All planes, class after class.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// All planes themselves.
    pub fn into_scores(self) -> Vec<f32> {
        self.scores
    }

    /// The plane of one class, row-major.
    pub fn plane(&self, class: usize) -> &[f32] {
        let num_cells = self.width * self.height;
        &self.scores[class * num_cells..][..num_cells]
    }

    /// The maximum score of every class, as in global max pooling.
    pub fn peaks(&self) -> Vec<f32> {
        (0..self.num_classes).map(|class| self.plane(class).iter().copied().fold(0.0, f32::max)).collect()
    }

    /// Conditioning on known tags (docs/reference/method.md): absent classes become 0, each present class is divided by
    /// its peak, and each cell is renormalised to sum 1. Background always counts as present.
    ///
    /// A cell in which no present class scores stays 0 everywhere, which means background.
    pub fn conditioned(&self, tags: &[usize]) -> ScoreMap {
        let num_cells = self.width * self.height;
        let mut scores = vec![0.0; self.scores.len()];
        let mut sums = vec![0.0f32; num_cells];
        for class in 0..self.num_classes {
            let plane = self.plane(class);
            let peak = plane.iter().copied().fold(0.0, f32::max);
            if (class != 0 && !tags.contains(&class)) || peak <= 0.0 {
                continue;
            }
            let conditioned = &mut scores[class * num_cells..][..num_cells];
            for ((output, sum), score) in conditioned.iter_mut().zip(&mut sums).zip(plane) {
                *output = score.max(0.0) / peak;
                *sum += *output;
            }
        }
        for plane in scores.chunks_exact_mut(num_cells) {
            for (score, sum) in plane.iter_mut().zip(&sums) {
                *score = if *sum > 0.0 { *score / sum } else { 0.0 };
            }
        }
        ScoreMap { scores, ..*self }
    }

    /// Conditioning of class activation maps, which have no background score: absent classes become 0, each present
    /// class is divided by its peak, and the background is the threshold everywhere, from 0 to 1.
    pub fn with_threshold(&self, tags: &[usize], threshold: f32) -> ScoreMap {
        let num_cells = self.width * self.height;
        let mut scores = vec![0.0; self.scores.len()];
        for (class, output) in scores.chunks_exact_mut(num_cells).enumerate() {
            let plane = self.plane(class);
            let peak = plane.iter().copied().fold(0.0, f32::max);
            if class == 0 {
                output.fill(threshold.clamp(0.0, 1.0));
            } else if tags.contains(&class) && peak > 0.0 {
                output.iter_mut().zip(plane).for_each(|(output, score)| *output = score.max(0.0) / peak);
            }
        }
        ScoreMap { scores, ..*self }
    }

    /// The highest-scoring class at every cell; the lower index wins a tie.
    pub fn arg_max(&self) -> LabelMap {
        self.label_map_at(self.width, self.height, Alignment::HalfPixel).expect("a map's own size is valid")
    }

    /// All planes, bilinearly resampled.
    pub fn resized(&self, width: usize, height: usize, alignment: Alignment) -> Result<ScoreMap, MaskError> {
        let num_pixels = checked_num_pixels(width, height)?;
        let rows = Axis::bilinear(self.height, height, alignment);
        let columns = Axis::bilinear(self.width, width, alignment);
        let mut scores = vec![0.0; self.num_classes * num_pixels];
        scores.par_chunks_exact_mut(width).enumerate().for_each_init(
            || vec![0.0; self.width],
            |combined, (i, output)| {
                let (class, y) = (i / height, i % height);
                rows.combine_rows(y, self.plane(class), self.width, combined);
                columns.apply(combined, output);
            },
        );
        Ok(ScoreMap { num_classes: self.num_classes, width, height, scores })
    }

    /// Bilinear upsampling and argmax (the lower index wins a tie) without holding all planes at that size: memory is
    /// the label map plus a few rows.
    pub fn label_map_at(
        &self,
        width: usize,
        height: usize,
        alignment: Alignment,
    ) -> Result<LabelMap, MaskError> {
        let num_pixels = checked_num_pixels(width, height)?;
        let rows = Axis::bilinear(self.height, height, alignment);
        let columns = Axis::bilinear(self.width, width, alignment);
        // A class without any score cannot beat the background, which every pixel starts with.
        let scored: Vec<u8> = (1..self.num_classes)
            .filter(|&c| self.plane(c).iter().any(|&s| s > 0.0))
            .map(|c| c as u8)
            .collect();
        let mut labels = vec![0u8; num_pixels];
        labels.par_chunks_exact_mut(width).enumerate().for_each_init(
            || (vec![0.0; self.width], vec![0.0; width], vec![0.0; width]),
            |(combined, resampled, best), (y, labels)| {
                rows.combine_rows(y, self.plane(0), self.width, combined);
                columns.apply(combined, best);
                for &class in &scored {
                    rows.combine_rows(y, self.plane(usize::from(class)), self.width, combined);
                    columns.apply(combined, resampled);
                    for ((label, best), &score) in labels.iter_mut().zip(&mut *best).zip(&*resampled) {
                        *label = if score > *best { class } else { *label };
                        *best = best.max(score);
                    }
                }
            },
        );
        LabelMap::new(width, height, labels)
    }
}

impl LabelMap {
    /// The label map resized by nearest neighbour.
    pub fn resized_nearest(
        &self,
        width: usize,
        height: usize,
        alignment: Alignment,
    ) -> Result<LabelMap, MaskError> {
        let num_pixels = checked_num_pixels(width, height)?;
        let columns = nearest_indices(self.width(), width, alignment);
        let mut labels = Vec::with_capacity(num_pixels);
        for y in nearest_indices(self.height(), height, alignment) {
            let row = &self.labels()[y * self.width()..][..self.width()];
            labels.extend(columns.iter().map(|&x| row[x]));
        }
        LabelMap::new(width, height, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three classes on 2×1 cells.
    fn example() -> ScoreMap {
        ScoreMap::new(3, 2, 1, vec![0.7, 0.2, 0.1, 0.5, 0.2, 0.3]).unwrap()
    }

    #[test]
    fn only_probabilities_are_accepted() {
        for bad in [f32::NAN, f32::INFINITY, -0.1, 1.1] {
            let error = ScoreMap::new(2, 2, 1, vec![0.5, 0.5, 0.5, bad]).unwrap_err();
            assert!(matches!(error, MaskError::NotAProbability { class: 1, x: 1, y: 0, .. }), "{error}");
        }
        assert!(ScoreMap::new(2, 2, 1, vec![0.5; 3]).is_err());
        assert!(ScoreMap::new(0, 2, 1, vec![]).is_err());
        assert!(ScoreMap::new(256, 1, 1, vec![0.0; 256]).is_err());
    }

    #[test]
    fn absent_classes_get_zero_score_and_present_ones_are_scaled_to_their_peak() {
        // Class 1 present: background / 0.7, class 1 / 0.5 -> (1, 0.2/0.7) and (0.2, 1), then cells sum to 1.
        let conditioned = example().conditioned(&[1]);
        let expected = [1.0 / 1.2, (2.0 / 7.0) / (9.0 / 7.0), 0.2 / 1.2, 1.0 / (9.0 / 7.0), 0.0, 0.0];
        for (score, expected) in conditioned.scores().iter().zip(expected) {
            assert!((score - expected).abs() < 1e-6, "{:?}", conditioned.scores());
        }
        assert_eq!(conditioned.arg_max().labels(), [0, 1]);
    }

    #[test]
    fn a_cell_without_any_score_is_background() {
        let map = ScoreMap::new(2, 2, 1, vec![0.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(map.conditioned(&[]).scores(), [0.0; 4]);
        assert_eq!(map.conditioned(&[]).arg_max().labels(), [0, 0]);
        assert_eq!(map.conditioned(&[1]).arg_max().labels(), [0, 1]);
    }

    #[test]
    fn the_lower_class_wins_a_tie() {
        let map = ScoreMap::new(3, 1, 1, vec![0.2, 0.4, 0.4]).unwrap();
        assert_eq!(map.arg_max().labels(), [1]);
    }

    #[test]
    fn peaks_are_global_max_pooling() {
        assert_eq!(example().peaks(), [0.7, 0.5, 0.3]);
    }

    #[test]
    fn the_lean_label_map_equals_the_arg_max_of_the_resized_planes() {
        // Pseudo-random scores from a linear congruential generator.
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let map = ScoreMap::new(5, 7, 9, (0..5 * 7 * 9).map(|_| random()).collect()).unwrap();
        for alignment in [Alignment::HalfPixel, Alignment::AlignCorners] {
            for (width, height) in [(50, 31), (7, 9), (3, 4), (1, 1)] {
                let resized = map.resized(width, height, alignment).unwrap();
                let lean = map.label_map_at(width, height, alignment).unwrap();
                assert_eq!(resized.arg_max(), lean);
            }
        }
    }

    #[test]
    fn labels_resize_to_the_nearest() {
        let map = LabelMap::new(2, 2, vec![1, 2, 3, 255]).unwrap();
        let large = map.resized_nearest(4, 2, Alignment::HalfPixel).unwrap();
        assert_eq!(large.labels(), [1, 1, 2, 2, 3, 3, 255, 255]);
    }
}
