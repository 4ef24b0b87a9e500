//! Scores on a grid and the image they belong to, refined by a dense CRF at the image's size.

use crate::SegmentError;
use dense_crf::{Layout, Params};
use image::RgbImage;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{LabelMap, ScoreMap};

/// The mask after the CRF. Only classes with any score take part, the background always.
pub fn refined_label_map(
    scores_on_grid: &ScoreMap,
    image: &RgbImage,
    alignment: Alignment,
    params: &Params,
) -> Result<LabelMap, SegmentError> {
    refined_label_map_at(scores_on_grid, image, alignment, params, size_of(image))
}

/// The mask at the size `mask_size` = (width, height), after a CRF over `image`, which may be a smaller copy of what the
/// mask is for: time and memory are then those of the small one.
pub fn refined_label_map_at(
    scores_on_grid: &ScoreMap,
    image: &RgbImage,
    alignment: Alignment,
    params: &Params,
    mask_size: (usize, usize),
) -> Result<LabelMap, SegmentError> {
    let (width, height) = size_of(image);
    let peaks = scores_on_grid.peaks();
    let present: Vec<usize> = (0..peaks.len()).filter(|&class| class == 0 || peaks[class] > 0.0).collect();
    let planes = present.iter().flat_map(|&class| scores_on_grid.plane(class)).copied().collect();
    let (columns, rows) = scores_on_grid.size();
    let at_image_size =
        ScoreMap::new(present.len(), columns, rows, planes)?.resized(width, height, alignment)?;
    let crf = params.build(
        width,
        height,
        image.as_raw(),
        present.len(),
        at_image_size.scores(),
        Layout::ClassMajor,
    )?;
    drop(at_image_size);
    let labels: Vec<u8> = if mask_size == (width, height) {
        crf.infer_labels(params.iterations).into_iter().map(|i| present[usize::from(i)] as u8).collect()
    } else {
        let marginals = crf.infer(params.iterations).to_class_major();
        let marginals = ScoreMap::new(present.len(), width, height, marginals)?;
        let mask = marginals.label_map_at(mask_size.0, mask_size.1, Alignment::HalfPixel)?;
        mask.labels().iter().map(|&i| present[usize::from(i)] as u8).collect()
    };
    Ok(LabelMap::new(mask_size.0, mask_size.1, labels)?)
}

fn size_of(image: &RgbImage) -> (usize, usize) {
    (image.width() as usize, image.height() as usize)
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
    }
    #[test]
    fn a_mask_larger_than_the_image_of_the_crf_has_the_edge_in_its_place() {
        let (image, scores, params) = example();
        let refined =
            refined_label_map_at(&scores, &image, Alignment::HalfPixel, &params, (192, 144)).unwrap();
        assert_eq!(refined.size(), (192, 144));
        let expected = (0..192 * 144).map(|i| if i % 192 < 90 { 0 } else { 3 });
        assert!(refined.labels().iter().copied().eq(expected), "{:?}", &refined.labels()[..192]);
    }
}
