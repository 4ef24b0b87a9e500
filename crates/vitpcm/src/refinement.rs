//! Turns scores on the grid into a mask at the image's size: an optional dense CRF, then the optional treatment of
//! uncertain background.

use crate::{SegmentError, UnsureBackground};
use dense_crf::{DenseCrf, Layout, Params};
use image::RgbImage;
use std::sync::atomic::{AtomicBool, Ordering};
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{LabelMap, ScoreMap};

/// Published CRF settings, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrfPreset {
    /// ViT-PCM: Gaussian 3, σ 1; bilateral 4, σ 67 px, σ 3 grey levels; 10 iterations.
    #[default]
    VitPcm,
    /// DeepLab v1/v2 on VOC: Gaussian 3, σ 3; bilateral 4, σ 121 px, σ 5; 10 iterations.
    Deeplab,
    /// PSA, IRN, SEAM and others after pydensecrf's example: Gaussian 3, σ 3; bilateral 10, σ 80 px, σ 13; 10 iterations.
    Irn,
}

impl CrfPreset {
    /// All presets with their names.
    pub const NAMED: [(&'static str, CrfPreset); 3] =
        [("vit-pcm", CrfPreset::VitPcm), ("deeplab", CrfPreset::Deeplab), ("irn", CrfPreset::Irn)];

    /// The CRF parameters of this preset.
    pub fn params(self) -> Params {
        match self {
            CrfPreset::VitPcm => Params::default(),
            CrfPreset::Deeplab => Params {
                gaussian_sigma: 3.0,
                bilateral_sigma_xy: 121.0,
                bilateral_sigma_rgb: 5.0,
                ..Params::default()
            },
            CrfPreset::Irn => Params {
                gaussian_sigma: 3.0,
                bilateral_weight: 10.0,
                bilateral_sigma_xy: 80.0,
                bilateral_sigma_rgb: 13.0,
                ..Params::default()
            },
        }
    }
}

/// Post-processing between the scores and the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Refinement {
    /// The dense CRF, if any.
    pub crf: Option<Params>,
    /// Treatment of uncertain background after the CRF, if any.
    pub unsure: Option<UnsureBackground>,
}

impl Refinement {
    /// The mask at `mask_size` = (width, height). The CRF runs on `image`, which may be a reduced copy of the original.
    pub fn label_map(
        &self,
        scores_on_grid: &ScoreMap,
        image: &RgbImage,
        alignment: Alignment,
        mask_size: (usize, usize),
    ) -> Result<LabelMap, SegmentError> {
        self.label_map_until(scores_on_grid, image, alignment, mask_size, &NEVER)
    }

    /// As [`label_map`](Self::label_map), but returns [`SegmentError::Stopped`] at the next CRF iteration once `stop`
    /// is set.
    pub fn label_map_until(
        &self,
        scores_on_grid: &ScoreMap,
        image: &RgbImage,
        alignment: Alignment,
        mask_size: (usize, usize),
        stop: &AtomicBool,
    ) -> Result<LabelMap, SegmentError> {
        let mask = match &self.crf {
            Some(params) => {
                let crf = Crf { params, stop };
                crf.label_map_at(scores_on_grid, image, alignment, mask_size)?
            }
            None => scores_on_grid.label_map_at(mask_size.0, mask_size.1, alignment)?,
        };
        match &self.unsure {
            Some(unsure) => unsure.apply(mask, scores_on_grid, alignment),
            None => Ok(mask),
        }
    }
}

/// Classes whose scores stay below this everywhere are left out of the CRF: their unary cost exceeds any support from
/// neighbours. Without tags, every class has such small scores somewhere.
const NEGLIGIBLE_PEAK: f32 = 1e-3;

/// The mask after the CRF over the background and all classes with non-negligible scores.
pub fn refined_label_map(
    scores_on_grid: &ScoreMap,
    image: &RgbImage,
    alignment: Alignment,
    params: &Params,
) -> Result<LabelMap, SegmentError> {
    Crf { params, stop: &NEVER }.label_map(scores_on_grid, image, alignment)
}

/// The probabilities after the CRF at the image's size, for all classes; 0 for classes left out of it.
pub fn refined_scores(
    scores_on_grid: &ScoreMap,
    image: &RgbImage,
    alignment: Alignment,
    params: &Params,
) -> Result<ScoreMap, SegmentError> {
    Crf { params, stop: &NEVER }.scores(scores_on_grid, image, alignment)
}

/// For callers without a stop flag.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// The CRF's parameters and its stop flag.
struct Crf<'a> {
    params: &'a Params,
    stop: &'a AtomicBool,
}

impl Crf<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn label_map(
        &self,
        scores_on_grid: &ScoreMap,
        image: &RgbImage,
        alignment: Alignment,
    ) -> Result<LabelMap, SegmentError> {
        let (crf, present) = crf_at_image_size(scores_on_grid, image, alignment, self.params)?;
        let labels = crf.infer_labels_while(self.params.iterations, || self.goes_on());
        let labels = labels.ok_or(SegmentError::Stopped)?.into_iter().map(|i| present[usize::from(i)] as u8);
        Ok(LabelMap::new(image.width() as usize, image.height() as usize, labels.collect())?)
    }

    /// The mask at `mask_size` = (width, height), after a CRF over `image`. A reduced copy as `image` reduces time and
    /// memory.
    fn label_map_at(
        &self,
        scores_on_grid: &ScoreMap,
        image: &RgbImage,
        alignment: Alignment,
        mask_size: (usize, usize),
    ) -> Result<LabelMap, SegmentError> {
        if mask_size == (image.width() as usize, image.height() as usize) {
            return self.label_map(scores_on_grid, image, alignment);
        }
        let scores = self.scores(scores_on_grid, image, alignment)?;
        Ok(scores.label_map_at(mask_size.0, mask_size.1, Alignment::HalfPixel)?)
    }

    fn scores(
        &self,
        scores_on_grid: &ScoreMap,
        image: &RgbImage,
        alignment: Alignment,
    ) -> Result<ScoreMap, SegmentError> {
        let (crf, present) = crf_at_image_size(scores_on_grid, image, alignment, self.params)?;
        let (width, height) = (image.width() as usize, image.height() as usize);
        let marginals = crf.infer_while(self.params.iterations, || self.goes_on());
        let marginals = marginals.ok_or(SegmentError::Stopped)?.to_class_major();
        let mut planes = vec![0.0; scores_on_grid.num_classes() * width * height];
        for (&class, marginals) in present.iter().zip(marginals.chunks_exact(width * height)) {
            planes[class * width * height..][..width * height].copy_from_slice(marginals);
        }
        Ok(ScoreMap::new(scores_on_grid.num_classes(), width, height, planes)?)
    }
}

/// Runs the CRF; also returns which classes took part.
fn crf_at_image_size(
    scores_on_grid: &ScoreMap,
    image: &RgbImage,
    alignment: Alignment,
    params: &Params,
) -> Result<(DenseCrf, Vec<usize>), SegmentError> {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let peaks = scores_on_grid.peaks();
    let present: Vec<usize> =
        (0..peaks.len()).filter(|&class| class == 0 || peaks[class] > NEGLIGIBLE_PEAK).collect();
    let planes = present.iter().flat_map(|&class| scores_on_grid.plane(class)).copied().collect();
    let (columns, rows) = scores_on_grid.size();
    let at_image_size =
        ScoreMap::new(present.len(), columns, rows, planes)?.resized(width, height, alignment)?;
    let scores = at_image_size.scores();
    let crf = params.build(width, height, image.as_raw(), present.len(), scores, Layout::ClassMajor)?;
    Ok((crf, present))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    /// Left 30 columns of 64 dark, the rest bright; the scores change at column 32, class 3 of 4 on the right.
    fn example() -> (RgbImage, ScoreMap, Params) {
        let image =
            RgbImage::from_fn(64, 48, |x, _| if x < 30 { Rgb([40, 40, 60]) } else { Rgb([200, 180, 90]) });
        let mut scores = vec![0.0; 4 * 8 * 6];
        for cell in 0..48 {
            let right = if cell % 8 < 4 { 0.2 } else { 0.8 };
            scores[cell] = 1.0 - right;
            scores[3 * 48 + cell] = right;
        }
        let scores = ScoreMap::new(4, 8, 6, scores).unwrap();
        let params = Params { bilateral_sigma_rgb: 20.0, ..Params::default() };
        (image, scores, params)
    }

    #[test]
    fn a_coarse_map_snaps_to_the_edge_in_the_image() {
        let (image, scores, params) = example();
        let refined = refined_label_map(&scores, &image, Alignment::HalfPixel, &params).unwrap();
        let expected = (0..64 * 48).map(|i| if i % 64 < 30 { 0 } else { 3 });
        assert!(refined.labels().iter().copied().eq(expected), "{:?}", &refined.labels()[..64]);
        let scores = refined_scores(&scores, &image, Alignment::HalfPixel, &params).unwrap();
        assert_eq!((scores.num_classes(), scores.size()), (4, (64, 48)));
        assert_eq!(scores.arg_max(), refined);
        assert!(scores.plane(1).iter().all(|&score| score == 0.0));
    }

    #[test]
    fn a_mask_larger_than_the_image_of_the_crf_has_the_edge_in_its_place() {
        let (image, scores, params) = example();
        let refinement = Refinement { crf: Some(params), unsure: None };
        let refined = refinement.label_map(&scores, &image, Alignment::HalfPixel, (192, 144)).unwrap();
        assert_eq!(refined.size(), (192, 144));
        let expected = (0..192 * 144).map(|i| if i % 192 < 90 { 0 } else { 3 });
        assert!(refined.labels().iter().copied().eq(expected), "{:?}", &refined.labels()[..192]);
    }

    #[test]
    fn a_crf_of_endless_iterations_ends_when_it_is_told_to_stop() {
        let (image, scores, params) = example();
        let refinement = Refinement { crf: Some(Params { iterations: usize::MAX, ..params }), unsure: None };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope
                .spawn(|| refinement.label_map_until(&scores, &image, Alignment::HalfPixel, (64, 48), &stop));
            std::thread::sleep(std::time::Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(worker.join().unwrap(), Err(SegmentError::Stopped)));
        });
    }
}
