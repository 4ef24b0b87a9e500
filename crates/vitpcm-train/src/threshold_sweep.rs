//! Class activation maps know no background: a class must exceed a threshold, and which is chosen here, by the mIoU of
//! the validation images' masks. So these masks say a little of how images are to be segmented; the model file and the
//! run folder (`thresholds.csv`) say on how many images the threshold was chosen, and how the others did.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use vitpcm::{RawScores, Segmenter, TagMode};
use vitpcm_data::read_image;
use vitpcm_masks::{ConfusionMatrix, LabelMap, atomic_file};

use crate::error::{Result, TrainError};
use crate::ranks::Ranks;
use crate::validation::{BATCH, Validator};

/// How the masks do with every threshold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThresholdSweep {
    /// Images with masks that were segmented.
    pub(crate) num_masks: usize,
    pub(crate) rows: Vec<ThresholdRow>,
}

/// How the masks do with one threshold, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThresholdRow {
    pub(crate) threshold: f32,
    pub(crate) miou: f64,
    pub(crate) pixel_accuracy: f64,
}

/// 0.05, 0.10, … 0.95.
fn thresholds() -> impl Iterator<Item = f32> {
    (1..20u8).map(|step| f32::from(step) / 20.0)
}

impl ThresholdSweep {
    /// The threshold of the highest mIoU.
    pub(crate) fn best(&self) -> Option<ThresholdRow> {
        self.rows.iter().copied().max_by(|a, b| a.miou.total_cmp(&b.miou))
    }

    /// Writes all rows, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::from("threshold,val_miou,val_pixel_accuracy,val_masks\n");
        for ThresholdRow { threshold, miou, pixel_accuracy } in &self.rows {
            let _ = writeln!(text, "{threshold:.2},{miou:.4},{pixel_accuracy:.4},{}", self.num_masks);
        }
        atomic_file::write(path, |file| std::io::Write::write_all(file, text.as_bytes()))
            .map_err(TrainError::io(path))
    }
}

impl Validator<'_> {
    /// Segments all images that have masks with every threshold; nothing where there are none, or where `stop` was set.
    /// What cannot be read is left to the validation that follows, which warns of it.
    pub(crate) fn sweep_thresholds(
        &self,
        segmenter: &Segmenter,
        ranks: &Ranks,
        stop: &AtomicBool,
    ) -> Result<Option<ThresholdSweep>> {
        let mut matrices: Vec<_> =
            thresholds().map(|_| ConfusionMatrix::new(self.job.data.classes.len())).collect();
        let mut num_masks = 0usize;
        let own: Vec<_> = self.images.iter().skip(ranks.rank()).step_by(ranks.size()).collect();
        for images in own.chunks(BATCH) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let read = images.par_iter().filter_map(|image| {
                let truth = image.truth.as_ref()?.read(&self.job.data.classes, &self.job.data.limits).ok()?;
                Some((read_image(&image.image.path, &self.job.data.limits).ok()?, image, truth))
            });
            let read: Vec<_> = read.collect();
            let scores =
                segmenter.score_batch(&read.iter().map(|(pixels, ..)| pixels).collect::<Vec<_>>())?;
            let counted = read.par_iter().zip(&scores).map(|((_, image, truth), scores)| {
                let tags: Vec<usize> = image.image.tags.iter().map(usize::from).collect();
                self.confusions(scores, &tags, truth)
            });
            for of_image in counted.collect::<Result<Vec<_>>>()?.into_iter().flatten() {
                matrices.iter_mut().zip(&of_image).for_each(|(sum, matrix)| sum.merge(matrix));
                num_masks += 1;
            }
        }
        let is_stopped = ranks.any(stop.load(Ordering::Relaxed));
        let [num_masks] = ranks.sum_counts([num_masks]);
        if is_stopped || num_masks == 0 {
            return Ok(None);
        }
        let rows = thresholds().zip(&mut matrices).map(|(threshold, matrix)| {
            ranks.sum_matrix(matrix);
            let scores = matrix.scores(&self.job.data.classes);
            let (miou, pixel_accuracy) =
                (scores.mean_iou.unwrap_or(0.0), scores.pixel_accuracy.unwrap_or(0.0));
            ThresholdRow { threshold, miou, pixel_accuracy }
        });
        Ok(Some(ThresholdSweep { num_masks, rows: rows.collect() }))
    }

    /// One matrix a threshold; none where the truth is of another size or of other classes.
    fn confusions(
        &self,
        scores: &RawScores,
        tags: &[usize],
        truth: &LabelMap,
    ) -> Result<Option<Vec<ConfusionMatrix>>> {
        let mut matrices = Vec::new();
        for threshold in thresholds() {
            let scores = RawScores { background_threshold: Some(threshold), ..scores.clone() };
            let mask = scores.with_tags(TagMode::Given(tags))?.label_map();
            let mut matrix = ConfusionMatrix::new(self.job.data.classes.len());
            if matrix.add(&mask, truth).is_err() {
                return Ok(None);
            }
            matrices.push(matrix);
        }
        Ok(Some(matrices))
    }
}
