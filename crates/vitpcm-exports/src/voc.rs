//! The layout of PASCAL VOC's segmentation task: `JPEGImages`, `SegmentationClass` with 255 for uncertain pixels, and
//! `ImageSets/Segmentation/train.txt`. DeepLab and most training code read it.

use crate::labelled_image::ScoresOnGrid;
use vitpcm_masks::resampling::resize_plane;
use vitpcm_masks::{IGNORE, LabelMap};

pub(crate) const LIST: &str = "ImageSets/Segmentation/train.txt";
/// VOC has no class list of its own, and our classes may differ from VOC's.
pub(crate) const CLASS_LIST: &str = "classes.txt";

pub(crate) fn mask_path(name: &str) -> String {
    format!("SegmentationClass/{name}.png")
}

pub(crate) fn image_path(file_name: &str) -> String {
    format!("JPEGImages/{file_name}")
}

/// The mask with 255 where the pixel's own label scores below the threshold.
pub(crate) fn with_unsure_pixels(map: &LabelMap, scores: ScoresOnGrid<'_>, threshold: f32) -> LabelMap {
    let grid = scores.on_grid;
    let counts = map.histogram();
    let mut labels = map.labels().to_vec();
    // One class at a time: memory is one plane at the image's size.
    for label in (0..=254u8).filter(|&label| counts[usize::from(label)] > 0) {
        if usize::from(label) >= grid.num_classes() {
            continue;
        }
        let plane = resize_plane(grid.plane(label.into()), grid.size(), map.size(), scores.alignment);
        for ((label_of_pixel, &before), score) in labels.iter_mut().zip(map.labels()).zip(plane) {
            if before == label && score < threshold {
                *label_of_pixel = IGNORE;
            }
        }
    }
    LabelMap::new(map.width(), map.height(), labels).expect("the size of the mask")
}
