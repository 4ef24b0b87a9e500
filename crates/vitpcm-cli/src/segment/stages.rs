//! The concurrent stages of `vitpcm segment`: decoding, network, refinement and writing, a few images apart.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use image::RgbImage;
use vitpcm::{Refinement, ReviewedMask, SegmentError, Segmentation, Segmenter};
use vitpcm_data::{ImageLimits, read_image};
use vitpcm_masks::{Classes, LabelMap};

use super::{Args, TagSource};
use crate::folder_record::ImageState;
use crate::image_inputs::Input;
use crate::interrupt::Interrupt;
use crate::mask_formats::Results;
use crate::outcome::described;
use crate::output::Messages;
use crate::results_folder::ResultsFolder;
use crate::segment_report::SegmentReport;

/// Images decoded ahead of the network, and results waiting to be written.
const IN_FLIGHT: usize = 2;

/// The entry of an image in `--json`.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct ImageTags {
    /// Its path, with invalid UTF-8 replaced.
    pub(super) image: String,
    tags: Vec<String>,
    probabilities: Vec<f32>,
}

/// An image on its way through the stages.
struct Decoded<'a> {
    input: &'a Input,
    image: anyhow::Result<(RgbImage, ImageState)>,
}

struct Segmented<'a> {
    input: &'a Input,
    image: RgbImage,
    /// The file's state when it was read.
    state: ImageState,
    segmentation: Segmentation,
}

/// The outcome for all images.
#[derive(Default)]
pub(super) struct Written {
    pub(super) num_written: usize,
    /// For `--json`, if requested.
    pub(super) tags: Vec<ImageTags>,
    pub(super) num_failed: usize,
}

/// Images refined and written in parallel: one CRF does not keep many cores busy.
fn num_writers() -> usize {
    (rayon::current_num_threads() / 4).clamp(1, 4)
}

/// What all stages share.
pub(super) struct Stages<'a> {
    pub(super) args: &'a Args,
    pub(super) segmenter: &'a Segmenter,
    pub(super) tags: &'a TagSource,
    pub(super) results: &'a ResultsFolder,
    pub(super) limits: ImageLimits,
}

impl Stages<'_> {
    /// One thread decodes, this one runs the network, a few refine and write.
    pub(super) fn run(
        &self,
        inputs: &[&Input],
        report: Option<&mut SegmentReport>,
        messages: &Messages,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Written> {
        let Stages { segmenter, tags, .. } = self;
        let bar = messages.progress_bar(inputs.len(), "segmenting");
        let limits = &self.limits;
        let (decoded_sender, decoded) = sync_channel(IN_FLIGHT);
        let (segmented_sender, segmented) = sync_channel(IN_FLIGHT);
        let report = Mutex::new(report);
        let write = |segmented: Arc<Mutex<Receiver<Segmented<'_>>>>| {
            self.write_all(&segmented, &report, messages, (&bar, interrupt))
        };
        std::thread::scope(|scope| {
            scope.spawn(move || decode_all(inputs, tags, limits, interrupt, &decoded_sender));
            let (segmented, write) = (Arc::new(Mutex::new(segmented)), &write);
            let spawn = |segmented: &Arc<_>| {
                let segmented = Arc::clone(segmented);
                scope.spawn(move || write(segmented))
            };
            let writers: Vec<_> = (0..num_writers()).map(|_| spawn(&segmented)).collect();
            // The channel closes with the last writer.
            drop(segmented);
            let mut num_failed = 0;
            for Decoded { input, image } in decoded {
                let result = image.and_then(|(image, state)| {
                    let mode = tags.mode_of(input).with_context(|| format!("{}", input.path.display()))?;
                    let segmentation = segmenter
                        .segment_until(&image, mode, interrupt.flag())
                        .with_context(|| format!("{}", input.path.display()))?;
                    Ok(Segmented { input, image, state, segmentation })
                });
                match result {
                    // The writers run until this end of the channel is dropped.
                    Ok(result) => drop(segmented_sender.send(result)),
                    Err(error) if is_stopped(&error) => {}
                    Err(error) => {
                        num_failed += 1;
                        bar.suspend(|| messages.failure(described(&error)));
                        bar.inc(1);
                    }
                }
            }
            drop(segmented_sender);
            let mut written = Written { num_failed, ..Written::default() };
            for writer in writers {
                let of_one = writer.join().map_err(|_| anyhow!("a bug stopped writing; please report it"))?;
                written.num_written += of_one.num_written;
                written.num_failed += of_one.num_failed;
                written.tags.extend(of_one.tags);
            }
            bar.finish_and_clear();
            Ok(written)
        })
    }

    fn write_all(
        &self,
        segmented: &Mutex<Receiver<Segmented<'_>>>,
        report: &Mutex<Option<&mut SegmentReport>>,
        messages: &Messages,
        (bar, interrupt): (&indicatif::ProgressBar, &Interrupt),
    ) -> Written {
        let mut written = Written::default();
        let next = || segmented.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
        while let Some(item) = next() {
            let result = self.write_one(&item, interrupt).and_then(|mask| {
                let problem = match &mut *report.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some(report) => report.add(item.input, &reviewed(&item, &mask, self.tags))?,
                    None => None,
                };
                self.results.image_is_done(&item.input.name, item.state.clone())?;
                Ok(problem)
            });
            match result {
                Ok(truth_problem) => {
                    written.num_written += 1;
                    let classes = self.segmenter.classes();
                    written.tags.extend(self.args.json.as_ref().map(|_| image_tags(&item, classes)));
                    truth_problem.iter().for_each(|text| bar.suspend(|| messages.failure(text)));
                }
                Err(error) if is_stopped(&error) => {}
                Err(error) => {
                    written.num_failed += 1;
                    let path = item.input.path.display().to_string();
                    bar.suspend(|| messages.failure(format!("{path}: {}", described(&error))));
                }
            }
            bar.inc(1);
        }
        written
    }

    fn write_one(&self, item: &Segmented<'_>, interrupt: &Interrupt) -> anyhow::Result<LabelMap> {
        let Segmented { input, image, segmentation, .. } = item;
        let (scores, alignment) = (&segmentation.scores_on_grid, segmentation.alignment);
        let refinement = Refinement {
            crf: self.args.crf.then(|| self.args.crf_options.params()),
            unsure: self.args.confidence.unsure_background(),
        };
        let mask = refinement.label_map_until(
            scores,
            image,
            alignment,
            segmentation.image_size,
            interrupt.flag(),
        )?;
        let (classes, tags) = (self.segmenter.classes(), &segmentation.tags[..]);
        let results = Results { image, mask: &mask, scores_on_grid: scores, alignment, classes, tags };
        for format in self.args.formats.written_per_image() {
            let files = format.write(&self.results.staging(), &input.name, &results)?;
            match format.is_done(&self.args.out, &input.name, self.limits.max_pixels) {
                true => self.results.publish(&files)?,
                false => self.results.publish_over_damage(&files)?,
            }
        }
        Ok(mask)
    }
}

fn decode_all<'a>(
    inputs: &[&'a Input],
    tags: &TagSource,
    limits: &ImageLimits,
    interrupt: &Interrupt,
    decoded: &SyncSender<Decoded<'a>>,
) {
    for &input in inputs {
        // State first, so that a change during reading shows up as a change.
        let state = ImageState::of(&input.path, tags.recorded(input));
        let state = state.with_context(|| format!("{}", input.path.display()));
        let image = state.and_then(|state| Ok((read_image(&input.path, limits)?, state)));
        if interrupt.is_asked() || decoded.send(Decoded { input, image }).is_err() {
            return;
        }
    }
}

/// Whether an image was abandoned because the user asked to stop, not because it failed.
fn is_stopped(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(SegmentError::Stopped))
}

/// The input of the report for an image.
fn reviewed<'a>(item: &'a Segmented<'_>, mask: &'a LabelMap, tags: &TagSource) -> ReviewedMask<'a> {
    let Segmented { image, segmentation, .. } = item;
    ReviewedMask {
        image,
        mask,
        scores_on_grid: &segmentation.scores_on_grid,
        tag_probabilities: &segmentation.tag_probabilities,
        given_tags: tags.given(segmentation),
        truth: None,
        other: None,
    }
}

fn image_tags(item: &Segmented<'_>, classes: &Classes) -> ImageTags {
    let Segmentation { tags, tag_probabilities, .. } = &item.segmentation;
    ImageTags {
        image: item.input.path.to_string_lossy().into_owned(),
        tags: tags.iter().map(|&tag| classes.names()[tag].clone()).collect(),
        probabilities: tags.iter().map(|&tag| tag_probabilities[tag]).collect(),
    }
}
