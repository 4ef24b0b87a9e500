//! A summary of one segmented image in a few hundred bytes: confidence, mask areas, given and predicted tags, and the
//! comparison with a true mask. Reports are built from these; only the least confident images keep pictures.

use crate::SegmentError;
use base64::Engine;
use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use serde::{Deserialize, Serialize};
use std::collections::BinaryHeap;
use std::ops::Range;
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_masks::{ConfusionMatrix, LabelMap, MaskError, ScoreMap, mask_layer_png};

/// Longer side of the pictures, in pixels.
const PICTURE_SIDE: usize = 360;
const JPEG_QUALITY: u8 = 82;
const MASK_OPACITY: f32 = 0.55;

/// One image's results as numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Review {
    /// The image's name, as used for its result files.
    pub name: String,
    /// See [`ScoreMap::confidence`]; computed from the scores after conditioning on the tags.
    #[serde(alias = "sureness")]
    pub confidence: f32,
    /// Pixels of each class in the mask, in class order, without empty classes.
    pub areas: Vec<(u8, u64)>,
    /// The tags given; `None` if the model predicted them.
    pub given_tags: Option<Vec<usize>>,
    /// Predicted probability that each class is in the image, background first.
    pub tag_probabilities: Vec<f32>,
    /// Mask against truth, as [`ConfusionMatrix::entries`]; empty without a true mask.
    pub confusion: Vec<(u8, u8, u64)>,
    /// Mask against another mask of the same image, likewise; empty without one.
    #[serde(default)]
    pub agreement: Vec<(u8, u8, u64)>,
    /// Classes that cover most of at least three corners of the mask but little of its centre: probably background.
    #[serde(default)]
    pub corner_classes: Vec<u8>,
    /// Only for images that the report shows.
    pub pictures: Option<ReviewPictures>,
}

/// A mask with everything that its review needs.
#[derive(Clone, Copy)]
pub struct ReviewedMask<'a> {
    /// The image.
    pub image: &'a RgbImage,
    /// Its mask, of the same size.
    pub mask: &'a LabelMap,
    /// The scores it was made from, conditioned on the tags.
    pub scores_on_grid: &'a ScoreMap,
    /// Probability that each class is in the image, background first.
    pub tag_probabilities: &'a [f32],
    /// The given tags, if any.
    pub given_tags: Option<&'a [usize]>,
    /// The true mask, if any.
    pub truth: Option<&'a LabelMap>,
    /// Another mask of the image to compare with, e.g. from an earlier round.
    pub other: Option<&'a LabelMap>,
}

impl Review {
    /// Reviews a mask, without pictures. Fails if the true or the other mask has a different size.
    pub fn new(name: &str, reviewed: &ReviewedMask<'_>) -> Result<Review, MaskError> {
        let compared = |with: Option<&LabelMap>| {
            let mut matrix = ConfusionMatrix::new(reviewed.scores_on_grid.num_classes());
            with.map_or(Ok(()), |with| matrix.add(reviewed.mask, with))?;
            Ok::<_, MaskError>(matrix.entries())
        };
        let areas = (0..=u8::MAX).zip(reviewed.mask.histogram());
        Ok(Review {
            name: name.to_owned(),
            confidence: reviewed.scores_on_grid.confidence(),
            areas: areas.filter(|area| area.1 > 0).map(|(class, count)| (class, count.into())).collect(),
            given_tags: reviewed.given_tags.map(<[usize]>::to_vec),
            tag_probabilities: reviewed.tag_probabilities.to_vec(),
            confusion: compared(reviewed.truth)?,
            agreement: compared(reviewed.other)?,
            corner_classes: corner_classes(reviewed.mask),
            pictures: None,
        })
    }
}

/// See [`Review::corner_classes`]. A corner is a square of a tenth of the shorter side; the centre is a ninth of the
/// area.
fn corner_classes(mask: &LabelMap) -> Vec<u8> {
    let (width, height) = mask.size();
    let side = (width.min(height) / 10).max(1);
    let shares = |columns: Range<usize>, rows: Range<usize>| {
        let num_pixels = columns.len() * rows.len();
        let mut counts = [0usize; 256];
        for row in rows {
            mask.labels()[row * width..][columns.clone()]
                .iter()
                .for_each(|&label| counts[usize::from(label)] += 1);
        }
        counts.map(|count| count as f32 / num_pixels.max(1) as f32)
    };
    let sides = |length: usize| [0..side, length - side..length];
    let corners: Vec<[f32; 256]> = sides(height)
        .iter()
        .flat_map(|rows| sides(width).map(|columns| shares(columns, rows.clone())))
        .collect();
    let third = |length: usize| length / 3..(2 * length).div_ceil(3);
    let middle = shares(third(width), third(height));
    let is_such = |&class: &u8| {
        let class = usize::from(class);
        corners.iter().filter(|corner| corner[class] > 0.5).count() >= 3 && middle[class] < 0.25
    };
    (1..u8::MAX).filter(is_such).collect()
}

/// Thumbnails of an image, as `data:` URLs. The masks are overlays for the photograph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReviewPictures {
    /// Width and height in pixels.
    pub size: (usize, usize),
    /// The image, a JPEG.
    pub photo: String,
    /// Its mask, a transparent PNG.
    pub mask: String,
    /// The true mask, a transparent PNG.
    pub truth: Option<String>,
}

impl ReviewPictures {
    /// Pictures with a longer side of at most 360 pixels.
    pub fn new(reviewed: &ReviewedMask<'_>) -> Result<ReviewPictures, SegmentError> {
        let image = reviewed.image;
        let from = (image.width() as usize, image.height() as usize);
        let longer = from.0.max(from.1);
        let shrunk = |side: usize| match longer {
            _ if longer <= PICTURE_SIDE => side,
            _ => (side * PICTURE_SIDE).div_ceil(longer),
        };
        let size = (shrunk(from.0), shrunk(from.1));
        let planes = resize_rgb8(image.as_raw(), from, size, Part::whole(size), Alignment::HalfPixel);
        let num_pixels = size.0 * size.1;
        let rgb: Vec<u8> = (0..num_pixels)
            .flat_map(|i| [0, 1, 2].map(|c| planes[c * num_pixels + i].round() as u8))
            .collect();
        let mut jpeg = Vec::new();
        JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY)
            .encode(&rgb, size.0 as u32, size.1 as u32, image::ExtendedColorType::Rgb8)
            .map_err(|error| SegmentError::Picture(error.to_string()))?;
        let layer = |mask: &LabelMap| {
            let mask = mask.resized_nearest(size.0, size.1, Alignment::HalfPixel)?;
            Ok::<_, MaskError>(data_url("image/png", &mask_layer_png(&mask, MASK_OPACITY)))
        };
        Ok(ReviewPictures {
            size,
            photo: data_url("image/jpeg", &jpeg),
            mask: layer(reviewed.mask)?,
            truth: reviewed.truth.map(layer).transpose()?,
        })
    }
}

fn data_url(kind: &str, bytes: &[u8]) -> String {
    format!("data:{kind};base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// Selects the `count` least confident images from a stream, because only these get pictures. Over n images in random
/// order, about `count · (1 + ln(n / count))` are selected along the way.
#[derive(Clone, Debug)]
pub struct LeastConfident {
    count: usize,
    /// Bits of the confidences selected so far, highest on top; non-negative floats sort like their bits.
    taken: BinaryHeap<u32>,
}

impl LeastConfident {
    /// Keeps track of `count` images.
    pub fn new(count: usize) -> Self {
        LeastConfident { count, taken: BinaryHeap::new() }
    }

    /// Whether an image with this confidence is among the `count` lowest so far.
    pub fn takes(&mut self, confidence: f32) -> bool {
        let bits = confidence.max(0.0).to_bits();
        if self.taken.len() < self.count {
            self.taken.push(bits);
            return true;
        }
        match self.taken.peek() {
            Some(&surest) if bits < surest => {
                self.taken.pop();
                self.taken.push(bits);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_counts_areas_and_compares_with_the_truth() {
        let image = RgbImage::from_pixel(800, 400, image::Rgb([90, 120, 200]));
        let mask = LabelMap::new(800, 400, (0..320_000).map(|i| u8::from(i % 800 < 200)).collect()).unwrap();
        let truth = LabelMap::filled(800, 400, 1).unwrap();
        let scores = ScoreMap::new(2, 2, 1, vec![0.1, 0.8, 0.9, 0.2]).unwrap();
        let reviewed = ReviewedMask {
            image: &image,
            mask: &mask,
            scores_on_grid: &scores,
            tag_probabilities: &[1.0, 0.9],
            given_tags: Some(&[1]),
            truth: Some(&truth),
            other: Some(&mask),
        };
        let mut review = Review::new("a/b", &reviewed).unwrap();
        assert_eq!(review.areas, [(0, 240_000), (1, 80_000)]);
        assert_eq!(review.confusion, [(1, 0, 240_000), (1, 1, 80_000)]);
        assert_eq!(review.agreement, [(0, 0, 240_000), (1, 1, 80_000)]);
        assert!((review.confidence - 0.8).abs() < 1e-6);
        let pictures = ReviewPictures::new(&reviewed).unwrap();
        assert_eq!(pictures.size, (360, 180));
        assert!(pictures.photo.starts_with("data:image/jpeg;base64,/9j/"), "{}", &pictures.photo[..60]);
        assert!(pictures.mask.starts_with("data:image/png;base64,iVBOR") && pictures.truth.is_some());
        review.pictures = Some(pictures);
        let stored = serde_json::to_string(&review).unwrap();
        assert_eq!(serde_json::from_str::<Review>(&stored).unwrap(), review);
        let other_size = LabelMap::filled(3, 3, 1).unwrap();
        assert!(Review::new("a", &ReviewedMask { truth: Some(&other_size), ..reviewed }).is_err());
    }

    #[test]
    fn a_class_in_three_corners_and_not_in_the_middle_is_one_of_corners() {
        let classes_of = |label: fn(usize, usize) -> u8| {
            let labels = (0..60 * 40).map(|i| label(i % 60, i / 60)).collect();
            corner_classes(&LabelMap::new(60, 40, labels).unwrap())
        };
        assert_eq!(classes_of(|x, y| u8::from(!(10..50).contains(&x) && !(10..30).contains(&y))), [1]);
        // Three of four corners count; two may be sky.
        assert_eq!(classes_of(|x, y| if y < 10 || (y > 29 && x < 10) { 2 } else { 0 }), [2]);
        assert_eq!(classes_of(|_, y| u8::from(y < 20)), [0u8; 0]);
        // Classes that fill the image or only its centre do not count.
        assert_eq!(classes_of(|_, _| 1), [0u8; 0]);
        assert_eq!(classes_of(|x, y| u8::from((15..45).contains(&x) && (10..30).contains(&y))), [0u8; 0]);
        assert_eq!(corner_classes(&LabelMap::filled(1, 1, 1).unwrap()), [0u8; 0]);
    }

    #[test]
    fn the_least_confident_are_taken_whatever_the_order() {
        let mut least_confident = LeastConfident::new(2);
        let taken: Vec<bool> =
            [0.5, 0.9, 0.95, 0.7, 0.1, 0.5, 0.0].map(|confidence| least_confident.takes(confidence)).to_vec();
        assert_eq!(taken, [true, true, false, true, true, false, true]);
        assert!(!LeastConfident::new(0).takes(0.0));
    }
}
