//! How well the network does on images that it is not trained on: with masks by mIoU, else by tag F1 and the
//! equivariance loss. Runs the same `Segmenter` as `vitpcm segment` and the viewer.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use vitpcm::{
    LeastConfident, RawScores, Review, ReviewPictures, ReviewedMask, Segmenter, SegmenterOptions, TagMode,
};
use vitpcm_data::{Loader, MaskSource, TaggedImage, Tags, read_image};
use vitpcm_masks::resampling::{Alignment, Part, resize_plane, resize_rgb8};
use vitpcm_masks::{ConfusionMatrix, LabelMap, Picture, overlay, viridis};
use vitpcm_nets::{Localisation, Model, PcmConfig};

use crate::batch::TaggedBatch;
use crate::batch_stream::take_images;
use crate::config::{EtTarget, LossConfig};
use crate::error::{Result, TrainError};
use crate::losses::ET;
use crate::pcm_run::TrainJob;
use crate::pcm_step::PcmStep;
use crate::ranks::Ranks;
use crate::schedule::Trained;
use crate::threshold_sweep::ThresholdSweep;

/// Side in pixels of one picture of a strip.
const TILE: usize = 160;
/// Most heat maps of a strip.
const HEAT_MAPS: usize = 3;
/// Images that go through the network at a time.
pub(crate) const BATCH: usize = 8;
/// Reviews that come with pictures, those of the least sure images.
const REVIEW_PICTURES: usize = 24;

/// How well the network does. Percentages, except the loss.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Validation {
    /// Images that count.
    pub num_images: usize,
    /// Mean IoU of the masks, where there are masks; with the images' tags given, where the network learns from tags.
    pub miou: Option<f64>,
    /// Share of pixels with the right class, likewise.
    pub pixel_accuracy: Option<f64>,
    /// F1 of predicted tags against given ones, over all pairs of image and class, where the network learns from tags.
    pub tag_f1: Option<f64>,
    /// The equivariance loss, where there are no masks.
    pub et_loss: Option<f64>,
    /// What decides which epoch is best, where the network learns from tags: the mIoU, or without masks tag F1 less the
    /// equivariance loss in percent of that of guessing, ln(K + 1).
    pub score: Option<f64>,
}

impl Validation {
    /// All of it by name: behind `val_` a column of `metrics.csv`, behind `val/` a tag in TensorBoard.
    pub fn measures(&self) -> [(&'static str, Option<f64>); 5] {
        [
            ("miou", self.miou),
            ("pixel_accuracy", self.pixel_accuracy),
            ("tag_f1", self.tag_f1),
            ("et_loss", self.et_loss),
            ("score", self.score),
        ]
    }

    pub(crate) fn measure(&self, name: &str) -> Option<f64> {
        self.measures().into_iter().find(|(other, _)| *other == name).and_then(|(_, value)| value)
    }
}

/// At most so many of all, spread evenly.
pub(crate) fn spread<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).map(|i| all[i * all.len() / count].clone()).collect()
}

/// An image to validate on.
#[derive(Debug, Clone)]
pub struct ValidationImage {
    /// The image and its tags.
    pub image: TaggedImage,
    /// Its truth, where it has one. Training never sees it.
    pub truth: Option<MaskSource>,
}

/// What validation needs beside the model.
pub(crate) struct Validator<'a> {
    pub(crate) job: &'a TrainJob,
    pub(crate) images: Vec<ValidationImage>,
    /// Makes fixed views of the images for the equivariance loss.
    pub(crate) loader: Loader,
}

/// A validation and the strips of pictures that show it.
#[derive(Default)]
pub(crate) struct Validated {
    pub(crate) validation: Validation,
    /// Of class activation maps, on images with masks.
    pub(crate) sweep: Option<ThresholdSweep>,
    pub(crate) strips: Vec<(String, Picture)>,
    /// Every image's, the least sure first; of all ranks, on the first one.
    pub(crate) reviews: Vec<Review>,
    /// Images and masks that could not be used, and why.
    pub(crate) warnings: Vec<String>,
}

impl Validator<'_> {
    /// Validates a model; nothing where there is no image, or where `stop` was set meanwhile. Ranks take every so
    /// manyth image, and add up counts: one rank alone would keep the others waiting for longer than they train. All
    /// get the same validation; strips are of their own images.
    pub(crate) fn validate(
        &self,
        model: &Model,
        ranks: &Ranks,
        stop: &AtomicBool,
    ) -> Result<Option<Validated>> {
        let patch = model.info.network.backbone.patch();
        let alignment = self.job.config.views.alignment;
        let options = SegmenterOptions {
            size: Some(self.job.config.validation.grid * patch),
            precision: self.job.precision,
            ..Default::default()
        };
        let mut segmenter = Segmenter::new(model, &self.job.device, options.clone())?;
        let mut sweep = None;
        if model.info.network.localisation != Localisation::Pcm {
            sweep = self.sweep_thresholds(&segmenter, ranks, stop)?;
            if let Some(best) = sweep.as_ref().and_then(ThresholdSweep::best) {
                let mut model = model.clone();
                let background_threshold = best.threshold;
                model.info.network.localisation = Localisation::Cam { background_threshold };
                segmenter = Segmenter::new(&model, &self.job.device, options)?;
            }
        }
        let mut matrix = ConfusionMatrix::new(self.job.data.classes.len());
        let (mut tags, mut num_masks) = (TagCounts::default(), 0usize);
        let (mut strips, mut reviews, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut least_confident = LeastConfident::new(REVIEW_PICTURES);
        let own: Vec<&ValidationImage> =
            self.images.iter().skip(ranks.rank()).step_by(ranks.size()).collect();
        let mut is_stopped = false;
        for images in own.chunks(BATCH) {
            is_stopped |= stop.load(Ordering::Relaxed);
            if is_stopped {
                break;
            }
            let read = images.par_iter().map(|image| read_image(&image.image.path, &self.job.data.limits));
            let mut readable = Vec::with_capacity(images.len());
            for (&image, pixels) in images.iter().zip(read.collect::<Vec<_>>()) {
                match pixels {
                    Ok(pixels) => readable.push((image, pixels)),
                    Err(error) => warnings.push(format!("{error}; left out of the validation")),
                }
            }
            let pixels: Vec<_> = readable.iter().map(|(_, pixels)| pixels).collect();
            let scores = segmenter.score_batch(&pixels)?;
            let masks = readable.par_iter().zip(&scores).map(|((image, _), scores)| {
                let given: Vec<usize> = image.image.tags.iter().map(usize::from).collect();
                let segmentation = scores.with_tags(TagMode::Given(&given))?;
                let mask = segmentation.label_map();
                Ok((
                    given,
                    segmentation,
                    mask,
                    image
                        .truth
                        .as_ref()
                        .map(|truth| truth.read(&self.job.data.classes, &self.job.data.limits)),
                ))
            });
            let masks = masks.collect::<Result<Vec<_>>>()?;
            for (((image, pixels), scores), (given, segmentation, mask, truth)) in
                readable.iter().zip(&scores).zip(masks)
            {
                tags.add(&image.image.tags, scores, self.job.config.validation.tag_threshold);
                let mut warn = |error: TrainError| warnings.push(format!("{error}; its mask does not count"));
                let truth = truth.and_then(|truth| truth.map_err(|error| warn(error.into())).ok());
                let mut reviewed = ReviewedMask {
                    image: pixels,
                    mask: &mask,
                    scores_on_grid: &segmentation.scores_on_grid,
                    tag_probabilities: &segmentation.tag_probabilities,
                    given_tags: Some(&given),
                    truth: truth.as_ref(),
                    other: None,
                };
                let mut review = match Review::new(&image.image.name, &reviewed) {
                    Ok(review) => review,
                    Err(error) => {
                        warn(error.into());
                        reviewed.truth = None;
                        Review::new(&image.image.name, &reviewed)?
                    }
                };
                matrix.add_entries(&review.confusion)?;
                num_masks += usize::from(reviewed.truth.is_some());
                if least_confident.takes(review.confidence) {
                    review.pictures = Some(ReviewPictures::new(&reviewed)?);
                }
                reviews.push(review);
                if strips.len() < self.job.config.validation.pictures {
                    let rgb =
                        (pixels.as_raw().as_slice(), (pixels.width() as usize, pixels.height() as usize));
                    strips.push((image.image.name.clone(), strip(rgb, scores, &given, &mask, alignment)));
                }
            }
        }
        if ranks.any(is_stopped) {
            return Ok(None);
        }
        let TagCounts { num_images, right, predicted, given } = tags;
        let [num_images, right, predicted, given, num_masks] =
            ranks.sum_counts([num_images, right, predicted, given, num_masks]);
        if num_images == 0 {
            return Ok(None);
        }
        ranks.sum_matrix(&mut matrix);
        let tag_f1 = TagCounts { num_images, right, predicted, given }.f1();
        let scores = (num_masks > 0).then(|| matrix.scores(&self.job.data.classes));
        let (miou, pixel_accuracy) =
            scores.map_or((None, None), |scores| (scores.mean_iou, scores.pixel_accuracy));
        let et_loss = match (miou, model.info.network.localisation) {
            // Activation maps are no probabilities: nothing to compare by but tags.
            (Some(_), _) | (None, Localisation::Cam { .. }) => None,
            // It is worth its time only where the score chooses the epoch.
            _ if self.job.data.keeps_newest() => None,
            (None, Localisation::Pcm) => Some(self.equivariance_loss(model, ranks)?),
        };
        let guessing = (self.job.data.classes.len() as f64).ln();
        let score = miou.unwrap_or(tag_f1 - 100.0 * et_loss.unwrap_or(0.0) / guessing);
        let (tag_f1, score) = (Some(tag_f1), Some(score));
        let validation = Validation { num_images, miou, pixel_accuracy, tag_f1, et_loss, score };
        let reviews = reviews_of_all(reviews, ranks)?;
        Ok(Some(Validated { validation, sweep, strips, reviews, warnings }))
    }

    /// `L_ET` over the validation images, whose views are the same each time.
    fn equivariance_loss(&self, model: &Model, ranks: &Ranks) -> Result<f64> {
        let network: &PcmConfig = &model.info.network;
        // A network trained without the loss is judged by the released code's.
        let et_target = match self.job.config.losses.et_target {
            EtTarget::None => EtTarget::Main,
            target => target,
        };
        let losses = LossConfig { et_target, ..self.job.config.losses.clone() };
        let step =
            PcmStep::new(network, &losses, Trained::Head, self.job.precision, model.parameters.clone())?;
        let maker = self.job.config.view_maker(network.backbone.patch());
        let batch = self.job.config.schedule.batch;
        let is_own = |place| place / batch % ranks.size() == ranks.rank();
        let mut stream = self.loader.epoch_share(0, 0, is_own);
        let (mut sum, mut count) = (0.0, 0usize);
        while stream.len() > 0 {
            let (views, _) = take_images(&mut stream, self.loader.images(), batch);
            if views.is_empty() {
                continue; // none of them could be read
            }
            let batch = TaggedBatch::new(
                &views,
                &maker,
                &model.info.normalisation,
                self.job.data.classes.len(),
                &self.job.device,
            )?;
            sum += f64::from(step.validation_losses(&batch)?.get(ET)) * views.len() as f64;
            count += views.len();
        }
        let mut sums = [sum, count as f64];
        ranks.sum(&mut sums);
        Ok(sums[0] / sums[1].max(1.0))
    }
}

/// All ranks' reviews on the first rank, the least sure first, with pictures of those alone.
fn reviews_of_all(own: Vec<Review>, ranks: &Ranks) -> Result<Vec<Review>> {
    let mut all = match ranks.size() {
        1 => own,
        _ => {
            let lost =
                |error| TrainError::Ranks(format!("a rank's validation did not arrive whole: {error}"));
            let gathered = ranks.gather(serde_json::to_vec(&own).map_err(lost)?);
            let lists = gathered.iter().map(|json| serde_json::from_slice::<Vec<Review>>(json).map_err(lost));
            lists.collect::<Result<Vec<_>>>()?.concat()
        }
    };
    all.sort_by(|a, b| a.confidence.total_cmp(&b.confidence).then_with(|| a.name.cmp(&b.name)));
    all.iter_mut().skip(REVIEW_PICTURES).for_each(|review| review.pictures = None);
    Ok(all)
}

/// Right and wrong tags.
#[derive(Default)]
struct TagCounts {
    num_images: usize,
    right: usize,
    predicted: usize,
    given: usize,
}

impl TagCounts {
    fn add(&mut self, tags: &Tags, scores: &RawScores, threshold: f32) {
        let predicted = scores.predicted_tags(threshold);
        let is_given = |tag: &&usize| u8::try_from(**tag).is_ok_and(|tag| tags.contains(tag));
        self.num_images += 1;
        self.right += predicted.iter().filter(is_given).count();
        self.predicted += predicted.len();
        self.given += tags.len();
    }

    /// In percent; all right when there is nothing to find and nothing was found.
    fn f1(&self) -> f64 {
        match self.predicted + self.given {
            0 => 100.0,
            both => 200.0 * self.right as f64 / both as f64,
        }
    }
}

/// Image, the heat maps of its first tags, and the mask over the image, side by side.
pub(crate) fn strip(
    (rgb, size): (&[u8], (usize, usize)),
    scores: &RawScores,
    tags: &[usize],
    mask: &LabelMap,
    alignment: Alignment,
) -> Picture {
    let tile = (TILE, TILE);
    let planes = resize_rgb8(rgb, size, tile, Part::whole(tile), alignment);
    let interleaved: Vec<u8> =
        (0..TILE * TILE).flat_map(|i| [0, 1, 2].map(|c| planes[c * TILE * TILE + i].round() as u8)).collect();
    let mut tiles = vec![interleaved.clone()];
    for &tag in tags.iter().take(HEAT_MAPS) {
        let map = &scores.scores_on_grid;
        let plane = resize_plane(map.plane(tag), map.size(), tile, alignment);
        tiles.push(plane.iter().flat_map(|&score| viridis(score)).collect());
    }
    if let Ok(mask) = mask.resized_nearest(TILE, TILE, alignment) {
        tiles.push(overlay(&interleaved, &mask, 0.5).rgb);
    }
    let width = TILE * tiles.len();
    let mut picture = Picture { width, height: TILE, rgb: Vec::with_capacity(3 * width * TILE) };
    for y in 0..TILE {
        tiles.iter().for_each(|tile| picture.rgb.extend(&tile[3 * TILE * y..3 * TILE * (y + 1)]));
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitpcm_masks::ScoreMap;

    #[test]
    fn tag_f1_counts_pairs_of_image_and_class() {
        let mut counts = TagCounts::default();
        assert_eq!(counts.f1(), 100.0);
        let scores = |tag_probabilities: Vec<f32>| RawScores {
            scores_on_grid: ScoreMap::new(3, 1, 1, vec![1.0, 0.0, 0.0]).unwrap(),
            tag_probabilities,
            background_threshold: None,
            image_size: (1, 1),
            alignment: Alignment::HalfPixel,
        };
        counts.add(&[1, 2].into_iter().collect(), &scores(vec![1.0, 0.9, 0.1]), 0.5);
        counts.add(&Tags::default(), &scores(vec![1.0, 0.2, 0.6]), 0.5);
        // One right of two predicted and two given.
        assert_eq!(counts.f1(), 50.0);
    }
}
