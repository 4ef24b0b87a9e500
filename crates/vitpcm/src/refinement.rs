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
    let (width, height) = (image.width() as usize, image.height() as usize);
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
    let labels =
        crf.infer_labels(params.iterations).into_iter().map(|i| present[usize::from(i)] as u8).collect();
    Ok(LabelMap::new(width, height, labels)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    #[test]
    fn a_coarse_map_snaps_to_the_edge_in_the_image() {
        // Left 30 columns dark, the rest bright; the scores change at column 32 of 64, class 3 of 4 on the right.
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
        let refined = refined_label_map(&scores, &image, Alignment::HalfPixel, &params).unwrap();
        let expected = (0..64 * 48).map(|i| if i % 64 < 30 { 0 } else { 3 });
        assert!(refined.labels().iter().copied().eq(expected), "{:?}", &refined.labels()[..64]);
    }
}
