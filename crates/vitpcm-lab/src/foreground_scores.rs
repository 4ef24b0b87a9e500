//! Foreground against background, whatever the classes: by the measure of the ViT-PCM paper, over all pixels, and by
//! DINO's, image by image.

use rayon::prelude::*;
use serde::Serialize;
use std::path::PathBuf;
use vitpcm_masks::{IGNORE, LabelMap, MaskError, read_label_png_within};

/// Predicted masks of one image, of which the best counts, and the true one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MaskCandidates {
    /// One mask, or one of each attention head.
    pub(crate) predictions: Vec<PathBuf>,
    /// The true mask.
    pub(crate) truth: PathBuf,
}

/// Scores of foreground masks, in percent; `None` if undefined. Pixels of truth 255 are ignored; a prediction of 255 is
/// neither foreground nor background.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ForegroundScores {
    /// Always "percent".
    pub(crate) unit: &'static str,
    /// IoU of the foreground over the pixels of all images; of several masks of an image, the one with the best Jaccard
    /// index counts.
    pub(crate) foreground_iou: Option<f64>,
    /// IoU of the background, over the same pixels.
    pub(crate) background_iou: Option<f64>,
    /// Mean of the two above: the ViT-PCM paper's measure.
    #[serde(rename = "foreground_background_miou")]
    pub(crate) foreground_background_mean_iou: Option<f64>,
    /// Mean over images of the Jaccard index (IoU) of the foreground, of the best mask.
    pub(crate) jaccard: Option<f64>,
    /// DINO's measure: the Jaccard index with each class of an image, each with its best mask; mean over the classes of
    /// an image, then over images.
    pub(crate) jaccard_by_class: Option<f64>,
    /// Images with foreground in their truth, over which both Jaccard means are taken.
    pub(crate) num_images_with_foreground: usize,
    /// Pixels that counted.
    pub(crate) num_pixels: u64,
    /// Pixels ignored because their truth is 255.
    pub(crate) num_ignored: u64,
}

/// Result of scoring a folder of foreground masks.
#[derive(Debug)]
pub(crate) struct ForegroundEvaluation {
    /// The scores of all images that could be compared.
    pub(crate) scores: ForegroundScores,
    /// Number of those images.
    pub(crate) num_images: usize,
    /// Failures by their first prediction, in order.
    pub(crate) failures: Vec<(PathBuf, MaskError)>,
}

/// Scores all images, on all cores; the result does not depend on the number of cores. Masks of more than `max_pixels`
/// pixels are refused.
pub(crate) fn evaluate_foreground(images: &[MaskCandidates], max_pixels: u64) -> ForegroundEvaluation {
    let compare = |image| compare_files(image, max_pixels);
    let compared: Vec<Result<ImageScores, MaskError>> = images.par_iter().map(compare).collect();
    let mut scores = Vec::with_capacity(images.len());
    let mut failures = Vec::new();
    for (image, result) in images.iter().zip(compared) {
        match result {
            Ok(found) => scores.push(found),
            Err(error) => failures.push((image.predictions.first().unwrap_or(&image.truth).clone(), error)),
        }
    }
    ForegroundEvaluation { num_images: scores.len(), scores: summed(&scores), failures }
}

fn compare_files(image: &MaskCandidates, max_pixels: u64) -> Result<ImageScores, MaskError> {
    let truth = read_label_png_within(&image.truth, max_pixels)?;
    let predictions = image.predictions.iter().map(|path| read_label_png_within(path, max_pixels));
    ImageScores::new(&predictions.collect::<Result<Vec<_>, _>>()?, &truth)
}

/// Pixels of each true label by prediction: background, foreground, unlabelled.
struct Counts([[u64; 3]; 256]);

impl Counts {
    fn new(prediction: &LabelMap, truth: &LabelMap) -> Result<Self, MaskError> {
        if prediction.size() != truth.size() {
            let (prediction_size, truth_size) = (prediction.size(), truth.size());
            return Err(MaskError::SizeMismatch { prediction_size, truth_size });
        }
        let mut counts = [[0; 3]; 256];
        for (&predicted, &true_label) in prediction.labels().iter().zip(truth.labels()) {
            let column = match predicted {
                0 => 0,
                IGNORE => 2,
                _ => 1,
            };
            counts[usize::from(true_label)][column] += 1;
        }
        Ok(Counts(counts))
    }

    /// Pixels of background and foreground (rows) by prediction (columns).
    fn totals(&self) -> [[u64; 3]; 2] {
        let mut totals = [self.0[0], [0; 3]];
        for label in 1..usize::from(IGNORE) {
            totals[1].iter_mut().zip(self.0[label]).for_each(|(sum, count)| *sum += count);
        }
        totals
    }

    /// IoU of the predicted foreground with the pixels of one true label; `None` if the image does not have it.
    fn jaccard_with(&self, label: usize) -> Option<f64> {
        let true_pixels: u64 = self.0[label].iter().sum();
        let predicted: u64 = self.0[..usize::from(IGNORE)].iter().map(|row| row[1]).sum();
        let both = self.0[label][1];
        (true_pixels > 0).then(|| both as f64 / (true_pixels + predicted - both) as f64)
    }
}

/// IoU of the foreground from [`Counts::totals`]; `None` without true foreground.
fn foreground_jaccard([background, foreground]: [[u64; 3]; 2]) -> Option<f64> {
    let true_pixels: u64 = foreground.iter().sum();
    (true_pixels > 0).then(|| foreground[1] as f64 / (true_pixels + background[1]) as f64)
}

/// One image's contribution.
struct ImageScores {
    totals: [[u64; 3]; 2],
    num_ignored: u64,
    jaccard: Option<f64>,
    jaccard_by_class: Option<f64>,
}

impl ImageScores {
    fn new(predictions: &[LabelMap], truth: &LabelMap) -> Result<Self, MaskError> {
        let counts = predictions.iter().map(|prediction| Counts::new(prediction, truth));
        let counts: Vec<Counts> = counts.collect::<Result<_, _>>()?;
        let goodness = |counts: &&Counts| foreground_jaccard(counts.totals()).unwrap_or(0.0);
        // Without true foreground all masks are equal: the first is taken.
        let first_best = |a: &&Counts, b: &&Counts| goodness(a).total_cmp(&goodness(b));
        let best = counts.iter().rev().max_by(first_best).ok_or_else(|| MaskError::WrongLength {
            what: "masks of an image",
            found: 0,
            expected: "at least 1".to_string(),
        })?;
        let best_with = |label: usize| counts.iter().filter_map(|c| c.jaccard_with(label)).reduce(f64::max);
        Ok(ImageScores {
            totals: best.totals(),
            num_ignored: best.0[usize::from(IGNORE)].iter().sum(),
            jaccard: foreground_jaccard(best.totals()),
            jaccard_by_class: mean((1..usize::from(IGNORE)).filter_map(best_with)),
        })
    }
}

fn summed(images: &[ImageScores]) -> ForegroundScores {
    let mut totals = [[0; 3]; 2];
    for image in images {
        let counts = totals.iter_mut().flatten().zip(image.totals.into_iter().flatten());
        counts.for_each(|(sum, count)| *sum += count);
    }
    let [background, foreground] = totals;
    let iou = |row: [u64; 3], other: [u64; 3], class: usize| {
        percent(row[class], row.iter().sum::<u64>() + other[class])
    };
    let (foreground_iou, background_iou) = (iou(foreground, background, 1), iou(background, foreground, 0));
    let in_percent = |value: f64| 100.0 * value;
    ForegroundScores {
        unit: "percent",
        foreground_iou,
        background_iou,
        foreground_background_mean_iou: mean([foreground_iou, background_iou].into_iter().flatten()),
        jaccard: mean(images.iter().filter_map(|image| image.jaccard)).map(in_percent),
        jaccard_by_class: mean(images.iter().filter_map(|image| image.jaccard_by_class)).map(in_percent),
        num_images_with_foreground: images.iter().filter(|image| image.jaccard.is_some()).count(),
        num_pixels: totals.iter().flatten().sum(),
        num_ignored: images.iter().map(|image| image.num_ignored).sum(),
    }
}

fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * (part as f64 / whole as f64))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(labels: &[u8]) -> LabelMap {
        LabelMap::new(labels.len(), 1, labels.to_vec()).unwrap()
    }

    fn scores(images: &[(&[&[u8]], &[u8])]) -> ForegroundScores {
        let image = |(predictions, truth): &(&[&[u8]], &[u8])| {
            let predictions: Vec<LabelMap> = predictions.iter().map(|labels| map(labels)).collect();
            ImageScores::new(&predictions, &map(truth)).unwrap()
        };
        summed(&images.iter().map(image).collect::<Vec<_>>())
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        (value.unwrap() - 100.0 * expected).abs() < 1e-9
    }

    #[test]
    fn two_images_worked_by_hand() {
        let found = scores(&[
            // Foreground: truth 3, predicted 3, both 2: 2/4. Background: truth 2, predicted 2, both 1: 1/3.
            // Class 4: 2 true, both 1, predicted 3: 1/4. Class 7: 1 true, both 1: 1/3.
            (&[&[4, 9, 9, 0, 0, 1]], &[4, 7, 0, 0, 4, 255]),
            // Foreground: truth 1, both 1, predicted 2: 1/2. Background: truth 1, both 0.
            (&[&[1, 1]], &[2, 0]),
        ]);
        assert!(close(found.foreground_iou, 3.0 / 6.0));
        assert!(close(found.background_iou, 1.0 / 4.0));
        assert!(close(found.foreground_background_mean_iou, 3.0 / 8.0));
        assert!(close(found.jaccard, 0.5));
        assert!(close(found.jaccard_by_class, ((1.0 / 4.0 + 1.0 / 3.0) / 2.0 + 1.0 / 2.0) / 2.0));
        assert_eq!((found.num_pixels, found.num_ignored, found.num_images_with_foreground), (7, 1, 2));
    }

    #[test]
    fn of_several_masks_the_best_counts_and_for_each_class_its_own_best() {
        let truth: &[u8] = &[1, 1, 2, 0];
        // One head finds class 1, another class 2: alone 2/3 and 1/3 of the foreground.
        let found = scores(&[(&[&[0, 0, 1, 0], &[1, 1, 0, 0]], truth)]);
        assert!(close(found.jaccard, 2.0 / 3.0));
        assert!(close(found.foreground_iou, 2.0 / 3.0));
        assert!(close(found.jaccard_by_class, 1.0));
    }

    #[test]
    fn an_image_without_foreground_counts_in_pixels_only() {
        let found = scores(&[(&[&[1, 0]], &[0, 0]), (&[&[1, 0]], &[3, 0])]);
        assert!(close(found.jaccard, 1.0));
        assert!(close(found.foreground_iou, 1.0 / 2.0));
        assert_eq!(found.num_images_with_foreground, 1);
        let empty = scores(&[(&[&[0, 255]], &[0, 255])]);
        assert_eq!((empty.foreground_iou, empty.jaccard), (None, None));
    }

    #[test]
    fn unlabelled_pixels_are_neither() {
        let found = scores(&[(&[&[255, 1, 255, 0]], &[1, 1, 0, 0])]);
        assert!(close(found.foreground_iou, 1.0 / 2.0));
        assert!(close(found.background_iou, 1.0 / 2.0));
    }
}
