//! An uploaded image with its scores, and the masks derived from them: for any tags, with or without the CRF, at the
//! size of the page's view or of the image. The network never runs here.

use crate::answer::Refusal;
use crate::hints::{self, HintWish};
use crate::memory::Share;
use axum::body::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder, RgbImage};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use vitpcm::{
    CrfParams, CrfPreset, HintReach, ImageFeatures, RawScores, Refinement, Segmentation, TagMode,
    UnsureBackground, draw_hints,
};
use vitpcm_data::ClassLookup;
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_masks::{Classes, LabelMap};

/// Longest side, in pixels, of the picture that the page shows and the CRF runs on: twice a laptop's window, and the
/// CRF takes under a second.
pub(crate) const VIEW_SIDE: usize = 1280;

/// Most classes for the CRF, because its time and memory grow with them.
const MAX_CRF_CLASSES: usize = 32;

/// Probability from which a tag is suggested, as in `vitpcm segment`.
pub(crate) const SUGGESTED_FROM: f32 = 0.5;

/// JPEG quality of the view.
const VIEW_QUALITY: u8 = 92;

/// The tags to make a mask for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "tags: expected a list of class names, \"suggested\" or \"any\"")]
pub(crate) enum TagsWanted {
    Word(TagsWord),
    /// Class names, deduplicated: they are stored with the mask, and a request may repeat one 100,000 times.
    Given(BTreeSet<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TagsWord {
    /// The classes that the model finds probable.
    #[default]
    Suggested,
    /// Every class competes in every pixel.
    Any,
}

impl Default for TagsWanted {
    fn default() -> Self {
        TagsWanted::Word(TagsWord::default())
    }
}

/// The size of a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MaskSize {
    /// The image's own size.
    #[default]
    Image,
    /// The view's size, which is the image's own if that is small enough.
    View,
}

/// A request for a mask. Unknown keys are errors.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MaskWish {
    #[serde(default)]
    pub(crate) tags: TagsWanted,
    /// Strength of the CRF: factor on the default weights. Absent: no CRF.
    #[serde(default)]
    pub(crate) crf: Option<f32>,
    /// Whether large uncertain background regions go to the next most likely of the tags.
    #[serde(default)]
    pub(crate) fill: bool,
    /// What the mask is corrected by.
    #[serde(default)]
    pub(crate) hints: Vec<HintWish>,
    #[serde(default)]
    pub(crate) size: MaskSize,
}

/// A mask, and the tags it was made for.
pub(crate) struct MadeMask {
    pub(crate) mask: LabelMap,
    pub(crate) segmentation: Segmentation,
}

/// An uploaded image.
pub(crate) struct KeptImage {
    /// As cleaned by `names`.
    pub(crate) name: String,
    /// The uploaded file, which some formats store with its labels.
    pub(crate) file: Vec<u8>,
    pub(crate) pixels: RgbImage,
    pub(crate) scores: RawScores,
    /// For hints; networks trained on masks take none.
    features: Option<ImageFeatures>,
    /// A reduced copy, if the image is larger than the view.
    view: Option<RgbImage>,
    view_jpeg: Bytes,
    /// The last mask made, because a download usually follows the mask on screen.
    last: Mutex<Option<(MaskWish, Arc<MadeMask>)>>,
    /// Its share of the memory budget once it is in the gallery.
    share: Option<Share>,
}

impl KeptImage {
    pub(crate) fn new(
        name: String,
        file: Vec<u8>,
        pixels: RgbImage,
        scores: RawScores,
        features: Option<ImageFeatures>,
    ) -> Result<KeptImage, Refusal> {
        let view = reduced(&pixels);
        let shown = view.as_ref().unwrap_or(&pixels);
        let mut view_jpeg = Vec::new();
        JpegEncoder::new_with_quality(&mut view_jpeg, VIEW_QUALITY)
            .encode(shown.as_raw(), shown.width(), shown.height(), ExtendedColorType::Rgb8)
            .map_err(|error| Refusal::unprocessable(format!("{name}: {error}")))?;
        let (view_jpeg, last) = (view_jpeg.into(), Mutex::new(None));
        Ok(KeptImage { name, file, pixels, scores, features, view, view_jpeg, last, share: None })
    }

    /// Holds a share of the memory budget as long as it lives.
    pub(crate) fn hold(&mut self, share: Share) {
        self.share = Some(share);
    }

    /// Bytes in memory, including the largest last mask.
    pub(crate) fn num_bytes(&self) -> usize {
        let (pixels, scores) = (self.pixels.as_raw().len(), size_of_val(self.scores.scores_on_grid.scores()));
        let view = self.view.as_ref().map_or(0, |view| view.as_raw().len());
        let features = self.features.as_ref().map_or(0, ImageFeatures::num_bytes);
        let mask = pixels / 3 + scores;
        self.file.len() + pixels + scores + features + view + self.view_jpeg.len() + mask
    }

    pub(crate) fn size(&self) -> (usize, usize) {
        self.scores.image_size
    }

    /// The picture that the page shows and the CRF runs on.
    fn view(&self) -> &RgbImage {
        self.view.as_ref().unwrap_or(&self.pixels)
    }

    pub(crate) fn view_size(&self) -> (usize, usize) {
        (self.view().width() as usize, self.view().height() as usize)
    }

    pub(crate) fn view_jpeg(&self) -> Bytes {
        self.view_jpeg.clone()
    }

    /// A class's probabilities on the grid, as an 8-bit grey PNG: 0 to 255 for 0 to 1.
    pub(crate) fn scores_png(&self, class: usize) -> Vec<u8> {
        let scores = &self.scores.scores_on_grid;
        let grey: Vec<u8> = scores.plane(class).iter().map(|&score| (score * 255.0).round() as u8).collect();
        let mut png = Vec::new();
        PngEncoder::new(&mut png)
            .write_image(&grey, scores.width() as u32, scores.height() as u32, ExtendedColorType::L8)
            .expect("memory takes all, and a grid is small");
        png
    }

    /// Makes a mask, or returns the last one if the request is the same.
    pub(crate) fn mask(&self, wish: &MaskWish, classes: &Classes) -> Result<Arc<MadeMask>, Refusal> {
        let is_same = |(made_for, _): &&(MaskWish, Arc<MadeMask>)| made_for == wish;
        if let Some((_, made)) =
            self.last.lock().unwrap_or_else(PoisonError::into_inner).as_ref().filter(is_same)
        {
            return Ok(made.clone());
        }
        let made = Arc::new(self.make_mask(wish, classes)?);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((wish.clone(), made.clone()));
        Ok(made)
    }

    fn make_mask(&self, wish: &MaskWish, classes: &Classes) -> Result<MadeMask, Refusal> {
        let tags;
        let mode = match &wish.tags {
            TagsWanted::Word(TagsWord::Suggested) => TagMode::Predicted { threshold: SUGGESTED_FROM },
            TagsWanted::Word(TagsWord::Any) => TagMode::Unknown,
            TagsWanted::Given(names) => {
                tags = tag_indices(names, classes)?;
                TagMode::Given(&tags)
            }
        };
        let segmentation = self.scores.with_tags(mode)?;
        let segmentation = match (wish.hints.is_empty(), &self.features) {
            (true, _) => segmentation,
            (false, Some(features)) => {
                let hints = hints::in_pixels(&wish.hints, self.size(), classes)?;
                segmentation.with_hints(&hints, features, &HintReach::default())?
            }
            (false, None) => {
                return Err(Refusal::unprocessable("a model that was trained on masks takes no hints"));
            }
        };
        let size = match wish.size {
            MaskSize::Image => self.size(),
            MaskSize::View => self.view_size(),
        };
        let crf = wish.crf.map(crf_params).transpose()?;
        if crf.is_some() && segmentation.tags.len() >= MAX_CRF_CLASSES {
            let text = format!("the CRF takes fewer than {MAX_CRF_CLASSES} tags at a time; choose some");
            return Err(Refusal::unprocessable(text));
        }
        let refinement = Refinement { crf, unsure: wish.fill.then_some(UnsureBackground::FILLED) };
        let (scores, alignment) = (&segmentation.scores_on_grid, segmentation.alignment);
        let mask = refinement.label_map(scores, self.view(), alignment, size)?;
        let mask = draw_hints(mask, &hints::in_pixels(&wish.hints, size, classes)?);
        Ok(MadeMask { mask, segmentation })
    }
}

/// The default CRF with both weights scaled.
fn crf_params(strength: f32) -> Result<CrfParams, Refusal> {
    if !(0.0..=10.0).contains(&strength) {
        return Err(Refusal::unprocessable(format!("a CRF of strength {strength}; expected 0 to 10")));
    }
    let usual = CrfPreset::default().params();
    Ok(CrfParams {
        gaussian_weight: usual.gaussian_weight * strength,
        bilateral_weight: usual.bilateral_weight * strength,
        ..usual
    })
}

/// The classes of tags. Unknown names are refused with the known ones.
fn tag_indices(names: &BTreeSet<String>, classes: &Classes) -> Result<Vec<usize>, Refusal> {
    let lookup = ClassLookup::new(classes);
    let index = |name: &String| lookup.index_of(name).filter(|&index| index > 0);
    let unknown = |name: &String| unknown_tag(name, classes);
    let mut indices =
        names.iter().map(|name| index(name).ok_or_else(|| unknown(name))).collect::<Result<Vec<_>, _>>()?;
    indices.sort_unstable();
    indices.dedup();
    Ok(indices)
}

/// The refusal of a name that is no class of the model.
pub(crate) fn unknown_tag(name: &str, classes: &Classes) -> Refusal {
    let known = classes.names()[1..].join(", ");
    let shown: String = name.chars().take(100).collect();
    let question = ClassLookup::new(classes).question(&shown);
    Refusal::unprocessable(format!("the model does not know the tag `{shown}`{question}; it knows {known}"))
}

/// The reduced copy, if the image is larger than the view.
fn reduced(pixels: &RgbImage) -> Option<RgbImage> {
    let size = (pixels.width() as usize, pixels.height() as usize);
    let longest = size.0.max(size.1);
    if longest <= VIEW_SIDE {
        return None;
    }
    let scaled = |side: usize| ((side * VIEW_SIDE + longest / 2) / longest).max(1);
    let to = (scaled(size.0), scaled(size.1));
    let planes = resize_rgb8(pixels.as_raw(), size, to, Part::whole(to), Alignment::HalfPixel);
    let num_pixels = to.0 * to.1;
    let mut rgb = vec![0; 3 * num_pixels];
    for (channel, plane) in planes.chunks_exact(num_pixels).enumerate() {
        for (pixel, value) in rgb.chunks_exact_mut(3).zip(plane) {
            pixel[channel] = value.round() as u8;
        }
    }
    RgbImage::from_raw(to.0 as u32, to.1 as u32, rgb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;
    use vitpcm_masks::ScoreMap;

    /// Two classes on a grid of 2 × 1: background left, a dog right.
    fn kept(width: u32, height: u32) -> (KeptImage, Classes) {
        let pixels =
            RgbImage::from_fn(width, height, |x, _| if 2 * x < width { Rgb([20; 3]) } else { Rgb([220; 3]) });
        let scores = RawScores {
            scores_on_grid: ScoreMap::new(3, 2, 1, vec![0.95, 0.04, 0.05, 0.9, 0.0, 0.06]).unwrap(),
            tag_probabilities: vec![0.95, 0.9, 0.06],
            background_threshold: None,
            image_size: (width as usize, height as usize),
            alignment: Alignment::HalfPixel,
        };
        let classes = Classes::from_names(["dog", "cat"]).unwrap();
        (KeptImage::new("a".to_owned(), Vec::new(), pixels, scores, None).unwrap(), classes)
    }

    fn wish(json: &str) -> MaskWish {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn masks_show_the_tags_that_are_wanted() {
        let (image, classes) = kept(40, 20);
        let labels_of = |json: &str| image.mask(&wish(json), &classes).unwrap().mask.labels()[..40].to_vec();
        let half_dog: Vec<u8> = (0..40).map(|x| u8::from(x >= 20)).collect();
        assert_eq!(labels_of("{}"), half_dog);
        assert_eq!(labels_of(r#"{"tags": ["dog"]}"#), half_dog);
        assert_eq!(labels_of(r#"{"tags": []}"#), [0; 40]);
        assert!(labels_of(r#"{"tags": ["cat"]}"#).contains(&2));
        assert_eq!(labels_of(r#"{"tags": ["dog"], "crf": 1.0}"#), half_dog);
        // From the middle of the left cell on the background's score falls below 0.9.
        let mostly_dog: Vec<u8> = (0..40).map(|x| u8::from(x >= 11)).collect();
        assert_eq!(labels_of(r#"{"tags": ["dog"], "fill": true}"#), mostly_dog);
        assert_eq!(labels_of(r#"{"tags": [], "fill": true}"#), [0; 40]);
    }

    #[test]
    fn large_images_are_shown_small_and_masked_at_their_own_size() {
        let (image, classes) = kept(2560, 100);
        assert_eq!(image.view_size(), (1280, 50));
        for crf in ["", r#", "crf": 1.5"#] {
            let own = image.mask(&wish(&format!(r#"{{"tags": ["dog"]{crf}}}"#)), &classes).unwrap();
            let view =
                image.mask(&wish(&format!(r#"{{"tags": ["dog"], "size": "view"{crf}}}"#)), &classes).unwrap();
            assert_eq!((own.mask.size(), view.mask.size()), ((2560, 100), (1280, 50)));
            // The border may fall into either of two columns.
            let (own, view) = (own.mask.histogram()[1], view.mask.histogram()[1]);
            assert!(own.abs_diff(4 * view) <= 100, "{own} {view}");
        }
    }

    #[test]
    fn wishes_that_cannot_be_met_are_refused() {
        let (image, classes) = kept(40, 20);
        for json in [
            r#"{"tags": ["horse"]}"#,
            r#"{"tags": ["background"]}"#,
            r#"{"crf": -1}"#,
            r#"{"crf": 1e9}"#,
            r#"{"hints": [{"class": "dog", "line": [[0.5, 0.5]]}]}"#,
        ] {
            assert!(image.mask(&wish(json), &classes).is_err(), "{json}");
        }
        for json in [r#"{"tag": ["dog"]}"#, r#"{"tags": "all"}"#, r#"{"size": "huge"}"#] {
            assert!(serde_json::from_str::<MaskWish>(json).is_err(), "{json}");
        }
    }
}
