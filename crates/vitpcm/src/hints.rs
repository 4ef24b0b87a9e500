//! Corrects the scores of one image by hints, without training: a point or scribble says what a few pixels show, and
//! patches with similar features follow.
//!
//! The logarithms of the scores are the mean of a Gaussian process over the patches, with the similarity of their features
//! as covariance; hints are observations. The posterior mean is a closed form: a hint that agrees with the mask changes
//! nothing, another one changes most what looks most like its patch.

use std::collections::BTreeMap;

use rayon::prelude::*;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{LabelMap, ScoreMap};

use crate::{SegmentError, Segmentation};

/// What a few pixels of an image show, as a person says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// The class; 0 is background.
    pub class: usize,
    /// A point, or the corners of a line through the pixels: x and y in image pixels, from the upper left corner.
    pub line: Vec<(f32, f32)>,
}

/// How far hints reach. The defaults were chosen on 80 images of PASCAL VOC: docs/lab/hints.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HintReach {
    /// Decay of the similarity of two patches with the cosine of their features: exp((cos - 1) / decay).
    pub decay: f32,
    /// Distance, as a fraction of the image's longer side, over which the similarity falls by exp(-1/2).
    pub distance: f32,
    /// Fraction of the similarity that does not fall with the distance.
    pub everywhere: f32,
}

impl Default for HintReach {
    fn default() -> Self {
        HintReach { decay: 0.3, distance: 0.2, everywhere: 0.5 }
    }
}

/// The features of an image's patches, by which hints spread; see
/// [`Segmenter::score_with_features`](crate::Segmenter::score_with_features).
#[derive(Clone, Debug, PartialEq)]
pub struct ImageFeatures {
    /// Columns and rows of the grid.
    grid: (usize, usize),
    /// Patch-major, each of length 1.
    values: Vec<f32>,
}

impl ImageFeatures {
    /// Bytes in memory.
    pub fn num_bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }

    /// From features after several blocks, a vector per patch each: every block counts the same.
    pub(crate) fn new(grid: (usize, usize), by_block: &[Vec<Vec<f32>>]) -> Self {
        let share = (by_block.len() as f32).sqrt();
        let of_patch = |patch: usize| {
            by_block.iter().flat_map(move |features| {
                let features = &features[patch];
                let length = features.iter().map(|value| value * value).sum::<f32>().sqrt();
                features.iter().map(move |value| value / (length * share).max(f32::MIN_POSITIVE))
            })
        };
        Self { grid, values: (0..grid.0 * grid.1).flat_map(of_patch).collect() }
    }
}

/// Lower scores are taken for this one: the logarithm of 0 is no number.
const LEAST_SCORE: f32 = 0.01;
/// Variance of an observation's error; a patch's own is 1.
const NOISE: f64 = 0.05;
/// Patches with hints that are used. Of more, evenly spaced ones: their number decides the time.
const MOST_OBSERVATIONS: usize = 256;

/// A patch, and the class that hints say it shows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Observation {
    patch: usize,
    class: usize,
}

impl Segmentation {
    /// The segmentation corrected by hints, given the features of the same image. The classes of the hints join the tags.
    /// The pixels of a hint may still have another class in [`Segmentation::label_map`], because scores are per patch;
    /// [`draw_hints`] gives them theirs.
    pub fn with_hints(
        &self,
        hints: &[Hint],
        features: &ImageFeatures,
        reach: &HintReach,
    ) -> Result<Segmentation, SegmentError> {
        let num_classes = self.scores_on_grid.num_classes();
        if let Some(hint) = hints.iter().find(|hint| hint.class >= num_classes) {
            return Err(SegmentError::UnknownTag { tag: hint.class, num_classes });
        }
        let observations = self.observations(hints)?;
        if observations.is_empty() {
            return Ok(self.clone());
        }
        let hinted = hints.iter().map(|hint| hint.class).filter(|&class| class > 0);
        let mut tags: Vec<usize> = self.tags.iter().copied().chain(hinted).collect();
        tags.sort_unstable();
        tags.dedup();
        let similarity = Similarity { features, reach, grid: self.scores_on_grid.size() };
        let scores_on_grid = posterior(&self.scores_on_grid, &tags, &observations, &similarity)?;
        Ok(Segmentation { scores_on_grid, tags, ..self.clone() })
    }

    /// The patches that hints touch, each with the class that most of its hinted pixels have.
    fn observations(&self, hints: &[Hint]) -> Result<Vec<Observation>, SegmentError> {
        let ((columns, rows), (width, height)) = (self.scores_on_grid.size(), self.image_size);
        let cell = |pixel: usize, side: usize, cells: usize| match self.alignment {
            Alignment::HalfPixel => pixel * cells / side,
            Alignment::AlignCorners => {
                (pixel * (cells - 1) + (side - 1) / 2).checked_div(side - 1).unwrap_or_default()
            }
        };
        let mut counts: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
        for (index, hint) in hints.iter().enumerate() {
            let mut pixels = pixels(&hint.line, self.image_size).peekable();
            if pixels.peek().is_none() {
                let problem = format!("hint {}: expected a point in {width} × {height} pixels", index + 1);
                return Err(SegmentError::BadOptions(problem));
            }
            for (x, y) in pixels {
                let patch = cell(y, height, rows) * columns + cell(x, width, columns);
                *counts.entry(patch).or_default().entry(hint.class).or_default() += 1;
            }
        }
        let observation = |(patch, classes): (usize, BTreeMap<usize, usize>)| {
            let most = classes.into_iter().max_by_key(|&(_, count)| count);
            most.map(|(class, _)| Observation { patch, class })
        };
        let all: Vec<Observation> = counts.into_iter().filter_map(observation).collect();
        let count = all.len().min(MOST_OBSERVATIONS);
        Ok((0..count).map(|i| all[i * all.len() / count]).collect())
    }
}

/// A mask of the image in which the pixels of hints have their class.
pub fn draw_hints(mask: LabelMap, hints: &[Hint]) -> LabelMap {
    let (width, height) = mask.size();
    let mut labels = mask.into_labels();
    for hint in hints {
        for (x, y) in pixels(&hint.line, (width, height)) {
            labels[y * width + x] = hint.class as u8;
        }
    }
    LabelMap::new(width, height, labels).expect("the size of a mask")
}

/// The pixels of a point or line that are in the image. Not kept together: a long line has many.
fn pixels(line: &[(f32, f32)], (width, height): (usize, usize)) -> impl Iterator<Item = (usize, usize)> + '_ {
    let point = line.first().copied().filter(|_| line.len() == 1);
    let places = line.windows(2).flat_map(|ends| {
        let ((x0, y0), (x1, y1)) = (ends[0], ends[1]);
        // One step per pixel; a line far beyond the image is not worth more.
        let steps = (x1 - x0).abs().max((y1 - y0).abs()).ceil().clamp(1.0, 1e5) as usize;
        (0..=steps).map(move |step| {
            let share = step as f32 / steps as f32;
            (x0 + share * (x1 - x0), y0 + share * (y1 - y0))
        })
    });
    let mut last = None;
    point.into_iter().chain(places).filter_map(move |(x, y)| {
        let inside = x >= 0.0 && y >= 0.0 && x < width as f32 && y < height as f32;
        let pixel = (x as usize, y as usize);
        (inside && last.replace(pixel) != Some(pixel)).then_some(pixel)
    })
}

/// The covariance of two patches' scores.
struct Similarity<'a> {
    features: &'a ImageFeatures,
    reach: &'a HintReach,
    /// Columns and rows of the scores; features may have others.
    grid: (usize, usize),
}

impl Similarity<'_> {
    fn of(&self, a: usize, b: usize) -> f64 {
        let HintReach { decay, distance, everywhere } = *self.reach;
        let (columns, rows) = self.grid;
        let difference = |a: usize, b: usize| (a as f32 - b as f32) / columns.max(rows) as f32;
        let (dx, dy) = (difference(a % columns, b % columns), difference(a / columns, b / columns));
        let near = (-0.5 * (dx * dx + dy * dy) / (distance * distance)).exp();
        let cosine: f32 = self.feature(a).iter().zip(self.feature(b)).map(|(a, b)| a * b).sum();
        let alike = ((cosine - 1.0) / decay).exp();
        f64::from(alike * (everywhere + (1.0 - everywhere) * near))
    }

    fn feature(&self, patch: usize) -> &[f32] {
        let ((columns, rows), (feature_columns, feature_rows)) = (self.grid, self.features.grid);
        let (x, y) = (patch % columns * feature_columns / columns, patch / columns * feature_rows / rows);
        let width = self.features.values.len() / (feature_columns * feature_rows);
        &self.features.values[(y * feature_columns + x) * width..][..width]
    }
}

/// The posterior mean of the logarithms of the scores, as scores of background and tags.
fn posterior(
    scores: &ScoreMap,
    tags: &[usize],
    observations: &[Observation],
    similarity: &Similarity<'_>,
) -> Result<ScoreMap, SegmentError> {
    let (columns, rows) = scores.size();
    let num_cells = columns * rows;
    let prior = |class: usize, cell: usize| scores.plane(class)[cell].max(LEAST_SCORE).ln();

    let count = observations.len();
    let mut covariance = vec![0.0f64; count * count];
    for (i, a) in observations.iter().enumerate() {
        for (j, b) in observations[..=i].iter().enumerate() {
            covariance[i * count + j] = similarity.of(a.patch, b.patch);
        }
        covariance[i * count + i] += NOISE;
    }
    factor_in_place(&mut covariance, count);
    // Of each class, how much every observation changes its logarithm.
    let changes = [0].into_iter().chain(tags.iter().copied()).map(|class| {
        let residual = |observation: &Observation| {
            let target = if observation.class == class { 0.0 } else { LEAST_SCORE.ln() };
            f64::from(target - prior(class, observation.patch))
        };
        (class, solve(&covariance, observations.iter().map(residual).collect()))
    });
    let changes: Vec<(usize, Vec<f64>)> = changes.collect();

    let corrected = (0..num_cells).into_par_iter().map(|cell| {
        let near: Vec<f64> = observations.iter().map(|at| similarity.of(cell, at.patch)).collect();
        let exponents = changes.iter().map(|(class, changes)| {
            let change: f64 = near.iter().zip(changes).map(|(near, change)| near * change).sum();
            (prior(*class, cell) + change as f32).exp()
        });
        let mut values: Vec<f32> = exponents.collect();
        let total: f32 = values.iter().sum();
        values.iter_mut().for_each(|value| *value /= total);
        values
    });
    let corrected: Vec<Vec<f32>> = corrected.collect();
    let mut planes = vec![0.0f32; scores.num_classes() * num_cells];
    for (index, (class, _)) in changes.iter().enumerate() {
        let plane = &mut planes[class * num_cells..][..num_cells];
        plane.iter_mut().zip(&corrected).for_each(|(score, values)| *score = values[index]);
    }
    Ok(ScoreMap::new(scores.num_classes(), columns, rows, planes)?)
}

/// Cholesky's factor of a positive definite matrix, both in the lower triangle.
fn factor_in_place(matrix: &mut [f64], size: usize) {
    for i in 0..size {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| matrix[i * size + k] * matrix[j * size + k]).sum();
            let rest = matrix[i * size + j] - known;
            // The noise on the diagonal keeps it positive.
            matrix[i * size + j] = if i == j { rest.sqrt() } else { rest / matrix[j * size + j] };
        }
    }
}

/// Solves for a right-hand side, from Cholesky's factor.
fn solve(factor: &[f64], mut values: Vec<f64>) -> Vec<f64> {
    let size = values.len();
    for i in 0..size {
        let known: f64 = (0..i).map(|k| factor[i * size + k] * values[k]).sum();
        values[i] = (values[i] - known) / factor[i * size + i];
    }
    for i in (0..size).rev() {
        let known: f64 = (i + 1..size).map(|k| factor[k * size + i] * values[k]).sum();
        values[i] = (values[i] - known) / factor[i * size + i];
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// A row of eight patches of two kinds; the mask takes all for class 1.
    fn example() -> (Segmentation, ImageFeatures) {
        let kind = |patch: usize| if patch < 4 { vec![1.0, 0.2] } else { vec![0.1, 1.0] };
        let features = ImageFeatures::new((8, 1), &[(0..8).map(kind).collect()]);
        let scores = [[0.1f32; 8], [0.9; 8], [0.0; 8]].concat();
        let segmentation = Segmentation {
            scores_on_grid: ScoreMap::new(3, 8, 1, scores).unwrap(),
            tags: vec![1],
            tag_probabilities: vec![1.0, 0.9, 0.1],
            image_size: (80, 10),
            alignment: Alignment::HalfPixel,
        };
        (segmentation, features)
    }

    fn corrected(hints: &[Hint]) -> Segmentation {
        let (segmentation, features) = example();
        segmentation.with_hints(hints, &features, &HintReach::default()).unwrap()
    }

    fn point(class: usize, x: f32, y: f32) -> Hint {
        Hint { class, line: vec![(x, y)] }
    }

    #[test]
    fn scores_equal_those_of_gaussian_process_regression_in_scikit_learn() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/hints/expected.json");
        let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let numbers = |name: &str| -> Vec<f32> { serde_json::from_value(file[name].clone()).unwrap() };
        let whole = |name: &str| -> Vec<usize> { serde_json::from_value(file[name].clone()).unwrap() };
        let grid = (whole("grid")[0], whole("grid")[1]);
        let num_cells = grid.0 * grid.1;
        let values = numbers("features");
        let features = values.chunks(values.len() / num_cells).map(<[f32]>::to_vec).collect();
        let scores = numbers("scores");
        let num_classes = scores.len() / num_cells;
        let segmentation = Segmentation {
            scores_on_grid: ScoreMap::new(num_classes, grid.0, grid.1, scores).unwrap(),
            tags: whole("tags"),
            tag_probabilities: vec![0.5; num_classes],
            image_size: (whole("image")[0], whole("image")[1]),
            alignment: Alignment::HalfPixel,
        };
        let hints: Vec<[usize; 3]> = serde_json::from_value(file["hints"].clone()).unwrap();
        let hints: Vec<Hint> = hints.iter().map(|&[class, x, y]| point(class, x as f32, y as f32)).collect();
        let features = ImageFeatures::new(grid, &[features]);
        let result = segmentation.with_hints(&hints, &features, &HintReach::default()).unwrap();
        assert_eq!(result.tags, whole("tags_after"));
        let expected = numbers("expected");
        let found = result.scores_on_grid.scores();
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{worst}");
    }

    #[test]
    fn a_hint_takes_along_what_looks_alike_and_nothing_else() {
        let result = corrected(&[point(0, 75.0, 5.0)]);
        assert_eq!(result.scores_on_grid.arg_max().labels(), [1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(result.tags, [1]);
    }

    #[test]
    fn a_hint_brings_its_class_in() {
        let result = corrected(&[point(2, 5.0, 5.0)]);
        assert_eq!(result.scores_on_grid.arg_max().labels(), [2, 2, 2, 2, 1, 1, 1, 1]);
        assert_eq!(result.tags, [1, 2]);
    }

    #[test]
    fn a_hint_that_agrees_changes_no_label() {
        let result = corrected(&[point(1, 5.0, 5.0)]);
        assert_eq!(result.scores_on_grid.arg_max(), example().0.scores_on_grid.arg_max());
        assert_eq!(corrected(&[]), example().0);
    }

    #[test]
    fn a_patch_takes_the_class_of_most_of_its_hints() {
        // Pixels 2 to 8 of the first patch against one of background.
        let hints = [Hint { class: 2, line: vec![(2.0, 5.0), (8.0, 5.0)] }, point(0, 1.0, 1.0)];
        let observed = example().0.observations(&hints).unwrap();
        assert_eq!(observed, [Observation { patch: 0, class: 2 }]);
    }

    #[test]
    fn hinted_pixels_have_their_class_in_the_mask() {
        let hints = [Hint { class: 2, line: vec![(1.5, 0.5), (3.5, 2.5)] }, point(0, 0.0, 2.9)];
        let mask = draw_hints(LabelMap::filled(5, 3, 1).unwrap(), &hints);
        assert_eq!(mask.labels(), [1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 0, 1, 1, 2, 1]);
    }

    #[test]
    fn classes_and_points_beyond_the_image_are_errors() {
        let (segmentation, features) = example();
        let attempt =
            |hint: Hint| segmentation.with_hints(&[hint], &features, &HintReach::default()).unwrap_err();
        assert!(matches!(attempt(point(3, 5.0, 5.0)), SegmentError::UnknownTag { tag: 3, num_classes: 3 }));
        for outside in [
            point(1, 80.0, 5.0),
            point(1, -0.1, 5.0),
            point(1, f32::NAN, 5.0),
            Hint { class: 1, line: vec![] },
        ] {
            assert!(attempt(outside).to_string().contains("expected a point in 80 × 10 pixels"));
        }
    }

    #[test]
    fn thousands_of_hinted_patches_are_thinned_out() {
        let segmentation = Segmentation {
            scores_on_grid: ScoreMap::new(2, 64, 64, vec![0.5; 2 * 64 * 64]).unwrap(),
            image_size: (64, 64),
            ..example().0
        };
        let rows = (0..64).map(|y| Hint { class: 1, line: vec![(0.0, y as f32), (63.0, y as f32)] });
        let observed = segmentation.observations(&rows.collect::<Vec<_>>()).unwrap();
        assert_eq!(observed.len(), MOST_OBSERVATIONS);
        assert!(observed.windows(2).all(|pair| pair[1].patch - pair[0].patch == 16));
    }
}
