//! How well a segmenter that needs no tags does on images with truth masks. Runs the same `Segmenter` as `vitpcm
//! segment`.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use vitpcm::{CrfParams, RawScores, Refinement, SegmentError, Segmenter, TagMode};
use vitpcm_data::{ImageLimits, MaskedImage, read_image};
use vitpcm_masks::{ConfusionMatrix, Picture, Scores, read_label_png_within};

use crate::error::{Result, TrainError};
use crate::validation::strip;

/// Images that are decoded, refined and compared side by side.
const AT_A_TIME: usize = 16;

/// What came of it.
#[derive(Debug)]
pub struct VerifyScores {
    /// Images that count.
    pub num_images: usize,
    /// Of the masks as the network gives them.
    pub baseline: Scores,
    /// After the dense CRF, where it was asked for.
    pub refined: Option<Scores>,
    /// Images and masks that could not be used, and why.
    pub failures: Vec<String>,
    pub(crate) strips: Vec<(String, Picture)>,
}

/// How a segmenter is scored.
#[derive(Debug, Clone)]
pub struct ScoreOptions {
    /// Refine each mask, and score it again.
    pub crf: Option<CrfParams>,
    /// What is refused before it is decoded.
    pub limits: ImageLimits,
    /// So many images are drawn.
    pub pictures: usize,
}

/// Scores the segmenter on images whose `mask` is the truth; `progress` hears how many are done. Nothing where `stop` was
/// set meanwhile, or where no image could be used.
pub fn score_segmenter(
    segmenter: &Segmenter,
    images: &[MaskedImage],
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize),
    stop: &AtomicBool,
) -> Result<Option<VerifyScores>> {
    match score_unless_stopped(segmenter, images, options, progress, stop) {
        Err(TrainError::Segment(SegmentError::Stopped)) => Ok(None),
        result => result,
    }
}

fn score_unless_stopped(
    segmenter: &Segmenter,
    images: &[MaskedImage],
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize),
    stop: &AtomicBool,
) -> Result<Option<VerifyScores>> {
    let num_classes = segmenter.classes().len();
    let mut baseline = ConfusionMatrix::new(num_classes);
    let mut refined = options.crf.as_ref().map(|_| ConfusionMatrix::new(num_classes));
    let (mut num_images, mut failures, mut strips) = (0, Vec::new(), Vec::new());
    for (part, images) in images.chunks(AT_A_TIME).enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let read = images.par_iter().map(|image| {
            let pixels = read_image(&image.image, &options.limits).map_err(|error| error.to_string())?;
            let truth = read_label_png_within(&image.mask, options.limits.max_pixels)
                .map_err(|error| error.to_string())?;
            Ok::<_, String>((pixels, truth))
        });
        let mut scored = Vec::with_capacity(images.len());
        for (image, read) in images.iter().zip(read.collect::<Vec<_>>()) {
            match read {
                Ok((pixels, truth)) => {
                    scored.push((image, segmenter.score_until(&pixels, stop)?, pixels, truth));
                }
                Err(reason) => failures.push(reason),
            }
        }
        let masks = scored.par_iter().map(|(_, scores, pixels, _)| {
            let mask = scores.with_tags(TagMode::Unknown)?.label_map();
            let (on_grid, size) = (&scores.scores_on_grid, scores.image_size);
            let refine = |params: CrfParams| {
                let refinement = Refinement { crf: Some(params), unsure: None };
                refinement.label_map_until(on_grid, pixels, scores.alignment, size, stop)
            };
            Ok((mask, options.crf.map(refine).transpose()?))
        });
        let masks = masks.collect::<Result<Vec<_>>>()?;
        for ((image, scores, pixels, truth), (mask, after_crf)) in scored.iter().zip(masks) {
            let added = baseline.add(&mask, truth).and_then(|()| match (&mut refined, &after_crf) {
                (Some(refined), Some(after_crf)) => refined.add(after_crf, truth),
                _ => Ok(()),
            });
            match added {
                Ok(()) => num_images += 1,
                Err(error) => failures.push(format!("{}: {error}", image.mask.display())),
            }
            if strips.len() < options.pictures {
                let size = (pixels.width() as usize, pixels.height() as usize);
                let shown = best_classes(scores);
                let picture = strip((pixels.as_raw(), size), scores, &shown, &mask, scores.alignment);
                strips.push((image.name.clone(), picture));
            }
        }
        progress(part * AT_A_TIME + images.len());
    }
    if num_images == 0 {
        return Ok(None);
    }
    let classes = segmenter.classes();
    let (baseline, refined) = (baseline.scores(classes), refined.map(|matrix| matrix.scores(classes)));
    Ok(Some(VerifyScores { num_images, baseline, refined, failures, strips }))
}

/// The classes of which the network is surest, the background left out.
fn best_classes(scores: &RawScores) -> Vec<usize> {
    let mut classes: Vec<usize> = (1..scores.tag_probabilities.len()).collect();
    classes.sort_by(|&a, &b| scores.tag_probabilities[b].total_cmp(&scores.tag_probabilities[a]));
    classes.retain(|&class| scores.tag_probabilities[class] >= 0.5);
    classes
}
