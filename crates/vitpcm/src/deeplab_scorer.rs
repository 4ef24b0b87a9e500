//! Scores an image with the verification network (DeepLab), averaged over scales and, on request, a horizontal flip.
//! The network takes any size, so images keep their aspect ratio.

use candle_core::{Device, Tensor};
use image::RgbImage;
use std::sync::atomic::AtomicBool;
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_masks::{ScoreMap, Symmetry};
use vitpcm_nets::deeplab::OUTPUT_STRIDE;
use vitpcm_nets::{DeepLab, DeepLabInfo, DeepLabModel};

use crate::average::Average;
use crate::segmenter::go_on_unless;
use crate::{RawScores, SegmentError, SegmenterOptions};

/// Longest side in pixels that the network gets, because memory grows with the area.
const LONGEST_SIDE: f64 = 2049.0;

/// A loaded network and its test-time settings.
#[derive(Debug)]
pub(crate) struct DeepLabScorer {
    pub(crate) info: DeepLabInfo,
    network: DeepLab,
    /// Largest first: scores are averaged on the grid of the first.
    scales: Vec<f64>,
    size: Option<usize>,
    symmetries: &'static [Symmetry],
}

impl DeepLabScorer {
    pub(crate) fn new(model: &DeepLabModel, options: &SegmenterOptions) -> Result<Self, SegmentError> {
        let mut scales = if options.scales.is_empty() { vec![1.0] } else { options.scales.clone() };
        if let Some(scale) = scales.iter().find(|scale| !(0.05..=20.0).contains(*scale)) {
            return Err(SegmentError::BadOptions(format!("scale {scale}: expected 0.05 to 20")));
        }
        if options.size == Some(0) {
            return Err(SegmentError::BadOptions("size 0: expected at least 1".to_owned()));
        }
        scales.sort_by(|a, b| b.total_cmp(a));
        Ok(Self {
            info: model.info.clone(),
            network: model.network()?.with_precision(options.precision).for_passes()?,
            scales,
            size: options.size,
            symmetries: options.symmetries(),
        })
    }

    /// Runs the network on one image. Returns early if `stop` is set between scales.
    pub(crate) fn score(
        &self,
        image: &RgbImage,
        device: &Device,
        stop: &AtomicBool,
    ) -> Result<RawScores, SegmentError> {
        let alignment = Alignment::AlignCorners;
        let mut sum: Option<Average> = None;
        for &scale in &self.scales {
            for &symmetry in self.symmetries {
                go_on_unless(stop)?;
                let scores = self.score_once(image, scale, symmetry, device)?;
                match &mut sum {
                    Some(sum) => sum.add(&scores, alignment)?,
                    None => sum = Some(Average::of(scores)),
                }
            }
        }
        let sum = sum.ok_or_else(|| SegmentError::BadOptions("no scale and no symmetry".to_owned()))?;
        let (scores_on_grid, tag_probabilities) = sum.mean()?;
        let image_size = (image.width() as usize, image.height() as usize);
        let background_threshold = None;
        Ok(RawScores { scores_on_grid, tag_probabilities, background_threshold, image_size, alignment })
    }

    /// One scale and one symmetry: the scores turned upright, and the maximum of each class.
    fn score_once(
        &self,
        image: &RgbImage,
        scale: f64,
        symmetry: Symmetry,
        device: &Device,
    ) -> Result<(ScoreMap, Vec<f32>), SegmentError> {
        let from = (image.width() as usize, image.height() as usize);
        let longest = from.0.max(from.1) as f64;
        let wanted = self.size.map_or(longest, |size| size as f64) * scale;
        let factor = wanted.min(LONGEST_SIDE) / longest;
        // The corners of image and grid coincide if each side is a multiple of the stride plus one.
        let cells =
            |side: usize| ((side as f64 * factor - 1.0) / OUTPUT_STRIDE as f64).round().max(0.0) as usize + 1;
        let grid = (cells(from.0), cells(from.1));
        let to = ((grid.0 - 1) * OUTPUT_STRIDE + 1, (grid.1 - 1) * OUTPUT_STRIDE + 1);
        let mut planes = resize_rgb8(image.as_raw(), from, to, Part::whole(to), Alignment::AlignCorners);
        self.info.normalisation.normalise_planes(&mut planes);
        let planes = symmetry.apply(&planes, to);
        let (width, height) = symmetry.size(to);
        let pixels =
            Tensor::from_vec(planes, (1, 3, height, width), device)?.permute((0, 2, 3, 1))?.contiguous()?;
        let probabilities = vitpcm_nets::on_worker(|| -> Result<Tensor, SegmentError> {
            Ok(vitpcm_nets::class_probabilities(&self.network.forward(&pixels, None)?)?)
        })?;
        // [1, rows, columns, classes] -> classes × rows × columns
        let turned = symmetry.size(grid);
        let planes = probabilities.permute((0, 3, 1, 2))?.flatten_all()?.to_vec1::<f32>()?;
        let upright = symmetry.inverse().apply(&planes, turned);
        let scores = ScoreMap::new(self.info.classes.len(), grid.0, grid.1, upright)?;
        let best = scores.peaks();
        Ok((scores, best))
    }
}
