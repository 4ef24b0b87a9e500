//! All segmentation scores, from one confusion matrix.
//!
//! Pixels whose truth is 255 are ignored. A prediction of 255 ("unlabelled") counts as wrong: a false negative of the
//! true class, but no false positive of any other.

use crate::{Classes, IGNORE, LabelMap, MaskError};
use serde::Serialize;

/// How many pixels of each true class were predicted as each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfusionMatrix {
    num_classes: usize,
    /// Rows: truth. Columns: prediction; the last column counts unlabelled pixels.
    counts: Vec<u64>,
    num_ignored: u64,
}

impl ConfusionMatrix {
    /// An empty matrix for `num_classes` classes, including background (1 to 255).
    pub fn new(num_classes: usize) -> Self {
        assert!((1..=255).contains(&num_classes), "a label map tells 1 to 255 classes apart");
        ConfusionMatrix { num_classes, counts: vec![0; num_classes * (num_classes + 1)], num_ignored: 0 }
    }

    /// Number of classes, including background.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// Pixels of class `truth` predicted as `prediction`.
    pub fn count(&self, truth: usize, prediction: usize) -> u64 {
        assert!(prediction < self.num_classes);
        self.counts[truth * (self.num_classes + 1) + prediction]
    }

    /// Pixels of class `truth` predicted as 255.
    pub fn unlabelled(&self, truth: usize) -> u64 {
        self.counts[truth * (self.num_classes + 1) + self.num_classes]
    }

    /// Counts one image. On an error nothing is counted.
    pub fn add(&mut self, prediction: &LabelMap, truth: &LabelMap) -> Result<(), MaskError> {
        if prediction.size() != truth.size() {
            let (prediction_size, truth_size) = (prediction.size(), truth.size());
            return Err(MaskError::SizeMismatch { prediction_size, truth_size });
        }
        // Counts pairs of all labels first: one branch-free pass that also finds invalid labels.
        let mut pairs = vec![0u32; 1 << 16];
        for (&predicted, &true_label) in prediction.labels().iter().zip(truth.labels()) {
            pairs[usize::from(true_label) << 8 | usize::from(predicted)] += 1;
        }
        let found = pairs.iter().enumerate().filter(|(_, count)| **count > 0);
        let found = found.map(|(pair, &count)| ((pair >> 8) as u8, (pair & 0xff) as u8, u64::from(count)));
        for (true_label, predicted, _) in found.clone() {
            self.check_label("the truth", true_label)?;
            self.check_label("the prediction", predicted)?;
        }
        for (true_label, predicted, count) in found {
            self.add_count(true_label, predicted, count);
        }
        Ok(())
    }

    fn check_label(&self, map: &'static str, label: u8) -> Result<(), MaskError> {
        if label == IGNORE || usize::from(label) < self.num_classes {
            return Ok(());
        }
        Err(MaskError::LabelOutOfRange { map, label, num_classes: self.num_classes })
    }

    /// Adds the counts of another matrix of the same classes.
    pub fn merge(&mut self, other: &ConfusionMatrix) {
        assert_eq!(self.num_classes, other.num_classes);
        self.num_ignored += other.num_ignored;
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// Non-zero entries as (truth, prediction, pixels), with 255 for unlabelled and ignored pixels: a compact form of
    /// one image's matrix.
    pub fn entries(&self) -> Vec<(u8, u8, u64)> {
        let label = |class: usize| if class < self.num_classes { class as u8 } else { IGNORE };
        let rows = self.counts.chunks_exact(self.num_classes + 1).enumerate();
        let cells =
            rows.flat_map(|(truth, row)| row.iter().enumerate().map(move |(p, &count)| (truth, p, count)));
        let counts = cells.map(|(truth, prediction, count)| (label(truth), label(prediction), count));
        counts.chain([(IGNORE, IGNORE, self.num_ignored)]).filter(|entry| entry.2 > 0).collect()
    }

    /// Adds the result of [`ConfusionMatrix::entries`]. On an error nothing is added.
    pub fn add_entries(&mut self, entries: &[(u8, u8, u64)]) -> Result<(), MaskError> {
        for &(truth, prediction, _) in entries {
            self.check_label("the truth", truth)?;
            self.check_label("the prediction", prediction)?;
        }
        for &(truth, prediction, count) in entries {
            self.add_count(truth, prediction, count);
        }
        Ok(())
    }

    fn add_count(&mut self, truth: u8, prediction: u8, count: u64) {
        if truth == IGNORE {
            self.num_ignored += count;
        } else {
            let column = if prediction == IGNORE { self.num_classes } else { usize::from(prediction) };
            self.counts[usize::from(truth) * (self.num_classes + 1) + column] += count;
        }
    }

    /// All counts in a fixed order, for sums over processes.
    pub fn counts_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.counts.iter_mut().chain([&mut self.num_ignored])
    }

    /// The same counts without trailing classes that never occur, for masks without a class list; at least the
    /// background stays.
    pub fn trimmed(&self) -> ConfusionMatrix {
        let occurs = |class: usize| self.truth_pixels(class) + self.predicted_pixels(class) > 0;
        let num_classes = (1..self.num_classes).rev().find(|&class| occurs(class)).unwrap_or(0) + 1;
        let mut trimmed = ConfusionMatrix::new(num_classes);
        trimmed.num_ignored = self.num_ignored;
        for (row, truth) in trimmed.counts.chunks_exact_mut(num_classes + 1).zip(0..) {
            for (prediction, count) in row[..num_classes].iter_mut().enumerate() {
                *count = self.count(truth, prediction);
            }
            row[num_classes] = self.unlabelled(truth);
        }
        trimmed
    }

    fn truth_pixels(&self, class: usize) -> u64 {
        self.counts[class * (self.num_classes + 1)..][..self.num_classes + 1].iter().sum()
    }

    fn predicted_pixels(&self, class: usize) -> u64 {
        (0..self.num_classes).map(|truth| self.count(truth, class)).sum()
    }

    /// All scores, in percent.
    pub fn scores(&self, classes: &Classes) -> Scores {
        assert_eq!(self.num_classes, classes.len(), "the class list fits the matrix");
        let per_class: Vec<ClassScores> =
            (0..self.num_classes).map(|class| self.class_scores(class, &classes.names()[class])).collect();
        let num_pixels: u64 = per_class.iter().map(|class| class.truth_pixels).sum();
        let num_correct: u64 = (0..self.num_classes).map(|class| self.count(class, class)).sum();

        let in_truth = || per_class.iter().filter(|class| class.truth_pixels > 0);
        let weighted_iou: f64 =
            in_truth().map(|class| class.truth_pixels as f64 * class.iou.unwrap_or(0.0)).sum();
        let (foreground_iou, background_iou) = self.foreground_background_iou();
        Scores {
            unit: "percent",
            mean_iou: mean(in_truth().filter_map(|class| class.iou)),
            mean_iou_with_union: mean(per_class.iter().filter_map(|class| class.iou)),
            classes_only_predicted: {
                let only_predicted =
                    per_class.iter().filter(|class| class.truth_pixels == 0 && class.iou.is_some());
                only_predicted.map(|class| class.name.clone()).collect()
            },
            pixel_accuracy: percent(num_correct, num_pixels),
            mean_accuracy: mean(per_class.iter().filter_map(|class| class.accuracy)),
            frequency_weighted_iou: (num_pixels > 0).then(|| weighted_iou / num_pixels as f64),
            foreground_iou,
            background_iou,
            foreground_background_mean_iou: mean([foreground_iou, background_iou].into_iter().flatten()),
            num_pixels,
            num_ignored: self.num_ignored,
            num_unlabelled: (0..self.num_classes).map(|class| self.unlabelled(class)).sum(),
            per_class,
        }
    }

    fn class_scores(&self, class: usize, name: &str) -> ClassScores {
        let correct = self.count(class, class);
        let truth_pixels = self.truth_pixels(class);
        let predicted_pixels = self.predicted_pixels(class);
        ClassScores {
            index: class,
            name: name.to_string(),
            iou: percent(correct, truth_pixels + predicted_pixels - correct),
            accuracy: percent(correct, truth_pixels),
            precision: percent(correct, predicted_pixels),
            truth_pixels,
            predicted_pixels,
        }
    }

    /// IoU of "any class but 0" and of class 0; an unlabelled pixel is neither.
    fn foreground_background_iou(&self) -> (Option<f64>, Option<f64>) {
        let foreground = 1..self.num_classes;
        let both_foreground: u64 =
            foreground.clone().flat_map(|t| foreground.clone().map(move |p| self.count(t, p))).sum();
        let true_foreground: u64 = foreground.clone().map(|class| self.truth_pixels(class)).sum();
        let predicted_foreground: u64 = foreground.map(|class| self.predicted_pixels(class)).sum();
        let foreground_iou =
            percent(both_foreground, true_foreground + predicted_foreground - both_foreground);
        (foreground_iou, self.class_scores(0, "").iou)
    }
}

/// Scores of one class, in percent; `None` if undefined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassScores {
    /// Class index; 0 is background.
    pub index: usize,
    /// Class name.
    pub name: String,
    /// Intersection over union; `None` for a class in neither truth nor prediction.
    pub iou: Option<f64>,
    /// Fraction of the true pixels found (recall); `None` for a class not in the truth.
    pub accuracy: Option<f64>,
    /// Fraction of the predicted pixels that are right; `None` for a class never predicted.
    pub precision: Option<f64>,
    /// Pixels of this class in the truth.
    pub truth_pixels: u64,
    /// Pixels predicted as this class, where the truth is not 255.
    pub predicted_pixels: u64,
}

/// All scores of a set of masks, in percent; `None` if undefined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Always "percent".
    pub unit: &'static str,
    /// Mean IoU over the classes that occur in the truth: on benchmarks all classes, and the figure in papers.
    #[serde(rename = "miou")]
    pub mean_iou: Option<f64>,
    /// Mean IoU over the classes that occur in truth or prediction: lower if a class is predicted that never occurs in
    /// the truth, whose IoU is 0.
    #[serde(rename = "miou_with_union")]
    pub mean_iou_with_union: Option<f64>,
    /// The classes that only the second mean counts: predicted but never in the truth.
    pub classes_only_predicted: Vec<String>,
    /// Fraction of all pixels that are right.
    pub pixel_accuracy: Option<f64>,
    /// Mean recall over the classes in the truth.
    pub mean_accuracy: Option<f64>,
    /// IoU weighted by the number of true pixels of each class.
    pub frequency_weighted_iou: Option<f64>,
    /// IoU of all foreground classes merged into one.
    pub foreground_iou: Option<f64>,
    /// IoU of the background.
    pub background_iou: Option<f64>,
    /// Mean of the two above (the paper's foreground table).
    #[serde(rename = "foreground_background_miou")]
    pub foreground_background_mean_iou: Option<f64>,
    /// Pixels that counted.
    pub num_pixels: u64,
    /// Pixels ignored because their truth is 255.
    pub num_ignored: u64,
    /// Pixels that counted as wrong because their prediction is 255.
    pub num_unlabelled: u64,
    /// The same by class.
    pub per_class: Vec<ClassScores>,
}

pub(crate) fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * (part as f64 / whole as f64))
}

pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(labels: &[u8]) -> LabelMap {
        LabelMap::new(3, labels.len() / 3, labels.to_vec()).unwrap()
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        (value.unwrap() - expected).abs() < 1e-12
    }

    #[test]
    fn a_matrix_is_the_sum_of_its_entries() {
        let mut matrix = ConfusionMatrix::new(3);
        matrix.add(&map(&[0, 1, 255, 2, 0, 1]), &map(&[0, 1, 1, 0, 255, 255])).unwrap();
        let entries = matrix.entries();
        assert_eq!(entries, [(0, 0, 1), (0, 2, 1), (1, 1, 1), (1, 255, 1), (255, 255, 2)]);
        let mut sum = ConfusionMatrix::new(3);
        sum.add_entries(&entries).unwrap();
        assert_eq!(sum, matrix);
        assert!(sum.add_entries(&[(0, 0, 1), (3, 0, 1)]).is_err());
        assert_eq!(sum, matrix);
    }

    #[test]
    fn three_by_three_worked_by_hand() {
        let truth = map(&[0, 0, 0, 1, 1, 2, 2, 255, 0]);
        let prediction = map(&[0, 0, 1, 1, 2, 2, 2, 1, 3]);
        // Without the ignored pixel, rows = truth, columns = prediction 0 1 2 3:
        //   0: 2 1 0 1   (4 pixels)      1: 0 1 1 0   (2)      2: 0 0 2 0   (2)      3: none
        // IoU: 0: 2/(4+2-2) = 1/2.  1: 1/(2+2-1) = 1/3.  2: 2/(2+3-2) = 2/3.  3: 0/(0+1-0) = 0.
        let mut matrix = ConfusionMatrix::new(4);
        matrix.add(&prediction, &truth).unwrap();
        let scores = matrix.scores(&Classes::numbered(3).unwrap());
        assert!(close(scores.mean_iou, 100.0 * (1.0 / 2.0 + 1.0 / 3.0 + 2.0 / 3.0) / 3.0)); // 0, 1, 2
        assert!(close(scores.mean_iou_with_union, 100.0 * (1.0 / 2.0 + 1.0 / 3.0 + 2.0 / 3.0) / 4.0)); // and 3
        assert!(close(scores.pixel_accuracy, 100.0 * 5.0 / 8.0));
        assert!(close(scores.mean_accuracy, 100.0 * (2.0 / 4.0 + 1.0 / 2.0 + 2.0 / 2.0) / 3.0));
        // (4 · 1/2 + 2 · 1/3 + 2 · 2/3) / 8 = 4/8
        assert!(close(scores.frequency_weighted_iou, 50.0));
        // Foreground: truth 4 pixels, predicted 6, both 4 -> 4/6. Background as above.
        assert!(close(scores.foreground_iou, 100.0 * 4.0 / 6.0));
        assert!(close(scores.background_iou, 50.0));
        assert!(close(scores.foreground_background_mean_iou, 100.0 * (4.0 / 6.0 + 0.5) / 2.0));
        assert!(close(scores.per_class[2].precision, 100.0 * 2.0 / 3.0));
        assert_eq!(scores.per_class[3].accuracy, None);
        assert_eq!((scores.num_pixels, scores.num_ignored, scores.num_unlabelled), (8, 1, 0));
    }

    #[test]
    fn an_unlabelled_prediction_is_wrong_and_accuses_no_class() {
        let mut matrix = ConfusionMatrix::new(2);
        matrix.add(&map(&[1, 255, 0]), &map(&[1, 1, 0])).unwrap();
        let scores = matrix.scores(&Classes::numbered(1).unwrap());
        assert_eq!(scores.per_class[1].iou, Some(50.0));
        assert_eq!(scores.per_class[0].iou, Some(100.0));
        assert_eq!(scores.num_unlabelled, 1);
        assert!(close(scores.pixel_accuracy, 100.0 * 2.0 / 3.0));
    }

    #[test]
    fn nothing_to_count_gives_no_score() {
        let mut matrix = ConfusionMatrix::new(2);
        matrix.add(&map(&[1, 1, 1]), &map(&[255, 255, 255])).unwrap();
        let scores = matrix.scores(&Classes::numbered(1).unwrap());
        assert_eq!((scores.mean_iou, scores.pixel_accuracy), (None, None));
    }

    #[test]
    fn bad_labels_and_sizes_are_errors_that_count_nothing() {
        let mut matrix = ConfusionMatrix::new(2);
        let message = matrix.add(&map(&[0, 90, 0]), &map(&[0, 0, 0])).unwrap_err().to_string();
        assert_eq!(message, "the prediction holds class index 90, expected 0 to 1 or 255 (ignore)");
        let message = matrix.add(&map(&[0, 0, 0]), &map(&[0, 2, 0])).unwrap_err().to_string();
        assert_eq!(message, "the truth holds class index 2, expected 0 to 1 or 255 (ignore)");
        let tall = LabelMap::filled(1, 3, 0).unwrap();
        assert!(matches!(matrix.add(&map(&[0, 0, 0]), &tall), Err(MaskError::SizeMismatch { .. })));
        assert_eq!(matrix, ConfusionMatrix::new(2));
    }

    #[test]
    fn merging_equals_counting_together_and_trimming_loses_nothing() {
        let (a, b) = ((map(&[0, 1, 2]), map(&[0, 1, 1])), (map(&[2, 255, 0]), map(&[2, 0, 255])));
        let mut together = ConfusionMatrix::new(200);
        together.add(&a.0, &a.1).unwrap();
        together.add(&b.0, &b.1).unwrap();
        let mut merged = ConfusionMatrix::new(200);
        merged.add(&b.0, &b.1).unwrap();
        let mut other = ConfusionMatrix::new(200);
        other.add(&a.0, &a.1).unwrap();
        merged.merge(&other);
        assert_eq!(together, merged);
        let trimmed = merged.trimmed();
        assert_eq!(trimmed.num_classes(), 3);
        let mut small = ConfusionMatrix::new(3);
        small.add(&a.0, &a.1).unwrap();
        small.add(&b.0, &b.1).unwrap();
        assert_eq!(trimmed, small);
    }
}
