//! The stages of `vitpcm segment`: decoding, the network, refining and writing, a few images apart.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use image::RgbImage;
use vitpcm::{Refinement, ReviewedMask, SegmentError, Segmentation, Segmenter};
use vitpcm_data::{DataError, ImageLimits, read_image};
use vitpcm_masks::{Classes, LabelMap};

use super::{Args, TagSource};
use crate::image_inputs::Input;
use crate::interrupt::Interrupt;
use crate::mask_formats::{Results, written_per_image};
use crate::outcome::described;
use crate::output::Messages;
use crate::segment_report::SegmentReport;

/// Images decoded ahead of the network, and results waiting to be written.
const IN_FLIGHT: usize = 2;

/// What `--json` says of an image.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct ImageTags {
    pub(super) image: PathBuf,
    tags: Vec<String>,
    probabilities: Vec<f32>,
}

/// An image on its way through the stages.
struct Decoded<'a> {
    input: &'a Input,
    image: Result<RgbImage, DataError>,
}

struct Segmented<'a> {
    input: &'a Input,
    image: RgbImage,
    segmentation: Segmentation,
}

/// What came of all images.
#[derive(Default)]
pub(super) struct Written {
    pub(super) num_written: usize,
    /// Where `--json` asks for them.
    pub(super) tags: Vec<ImageTags>,
    pub(super) num_failed: usize,
}

/// Images refined and written side by side: a CRF alone does not keep many cores busy.
fn num_writers() -> usize {
    (rayon::current_num_threads() / 4).clamp(1, 4)
}

/// One thread decodes, this one runs the network, one or a few refine and write.
pub(super) fn run_stages(
    args: &Args,
    segmenter: &Segmenter,
    tags: &TagSource,
    inputs: &[&Input],
    report: Option<&mut SegmentReport>,
    messages: &Messages,
    interrupt: &Interrupt,
) -> anyhow::Result<Written> {
    let bar = messages.progress_bar(inputs.len(), "segmenting");
    let limits = args.limits();
    let (decoded_sender, decoded) = sync_channel(IN_FLIGHT);
    let (segmented_sender, segmented) = sync_channel(IN_FLIGHT);
    let report = Mutex::new(report);
    let write = |segmented: Arc<Mutex<Receiver<Segmented<'_>>>>| {
        write_all(args, segmenter.classes(), tags, &segmented, &report, messages, (&bar, interrupt))
    };
    std::thread::scope(|scope| {
        scope.spawn(move || decode_all(inputs, &limits, interrupt, &decoded_sender));
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
            let result = image.map_err(anyhow::Error::from).and_then(|image| {
                let mode = tags.mode_of(input).with_context(|| format!("{}", input.path.display()))?;
                let segmentation = segmenter
                    .segment_until(&image, mode, interrupt.flag())
                    .with_context(|| format!("{}", input.path.display()))?;
                Ok(Segmented { input, image, segmentation })
            });
            match result {
                // The writers take everything until this end of the channel is dropped.
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
            let of_one = writer.join().map_err(|_| anyhow!("writing stopped by a bug; please report it"))?;
            written.num_written += of_one.num_written;
            written.num_failed += of_one.num_failed;
            written.tags.extend(of_one.tags);
        }
        bar.finish_and_clear();
        Ok(written)
    })
}

fn decode_all<'a>(
    inputs: &[&'a Input],
    limits: &ImageLimits,
    interrupt: &Interrupt,
    decoded: &SyncSender<Decoded<'a>>,
) {
    for &input in inputs {
        let image = read_image(&input.path, limits);
        if interrupt.is_asked() || decoded.send(Decoded { input, image }).is_err() {
            return;
        }
    }
}

fn write_all(
    args: &Args,
    classes: &Classes,
    tags: &TagSource,
    segmented: &Mutex<Receiver<Segmented<'_>>>,
    report: &Mutex<Option<&mut SegmentReport>>,
    messages: &Messages,
    (bar, interrupt): (&indicatif::ProgressBar, &Interrupt),
) -> Written {
    let mut written = Written::default();
    let next = || segmented.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    while let Some(item) = next() {
        let result = write_one(args, classes, &item, interrupt).and_then(|mask| {
            match &mut *report.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(report) => report.add(item.input, &reviewed(&item, &mask, tags)),
                None => Ok(None),
            }
        });
        match result {
            Ok(truth_problem) => {
                written.num_written += 1;
                written.tags.extend(args.json.as_ref().map(|_| image_tags(&item, classes)));
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

/// Whether an image was given up because the user asked to stop: it has not failed.
fn is_stopped(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(SegmentError::Stopped))
}

fn write_one(
    args: &Args,
    classes: &Classes,
    item: &Segmented<'_>,
    interrupt: &Interrupt,
) -> anyhow::Result<LabelMap> {
    let Segmented { input, image, segmentation } = item;
    let (scores, alignment) = (&segmentation.scores_on_grid, segmentation.alignment);
    let refinement = Refinement {
        crf: args.crf.then(|| args.crf_options.params()),
        unsure: args.unsure_options.unsure_background(),
    };
    let mask =
        refinement.label_map_until(scores, image, alignment, segmentation.image_size, interrupt.flag())?;
    let results =
        Results { image, mask: &mask, scores_on_grid: scores, alignment, classes, tags: &segmentation.tags };
    let formats = written_per_image(&args.format, &args.export);
    formats.iter().try_for_each(|format| format.write(&args.out, &input.name, &results))?;
    Ok(mask)
}

/// What the report is told of an image.
fn reviewed<'a>(item: &'a Segmented<'_>, mask: &'a LabelMap, tags: &TagSource) -> ReviewedMask<'a> {
    let Segmented { image, segmentation, .. } = item;
    ReviewedMask {
        image,
        mask,
        scores_on_grid: &segmentation.scores_on_grid,
        tag_probabilities: &segmentation.tag_probabilities,
        given_tags: tags.given(segmentation),
        truth: None,
    }
}

fn image_tags(item: &Segmented<'_>, classes: &Classes) -> ImageTags {
    let Segmentation { tags, tag_probabilities, .. } = &item.segmentation;
    ImageTags {
        image: item.input.path.clone(),
        tags: tags.iter().map(|&tag| classes.names()[tag].clone()).collect(),
        probabilities: tags.iter().map(|&tag| tag_probabilities[tag]).collect(),
    }
}
