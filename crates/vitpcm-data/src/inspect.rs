//! Statistics of a data set, and all problems with its files. Decodes every image and reads every mask, on all cores,
//! within a memory limit; the result does not depend on the number of threads.

use crate::image_file::decode_file;
use crate::tag_warnings::{InputGrid, TagWarning, describe, tag_warnings};
use crate::{
    DataError, Dataset, DatasetLayout, ImageHeader, ImageLimits, MaskSource, Problem, ProblemKind,
    ReadingNote,
};
use crate::{problem, read_image_header, same_content};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// How thoroughly images and masks are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InspectDepth {
    /// Decode every image, read every mask, compare contents.
    #[default]
    Content,
    /// Headers and sizes only: fast, but misses files that are damaged further on.
    Headers,
}

/// How a data set is inspected.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// Limits checked before decoding.
    pub limits: ImageLimits,
    /// How thoroughly to check.
    pub depth: InspectDepth,
    /// The input of the network to be trained, which determines how small objects may be.
    pub input: InputGrid,
    /// Limit on decoded pixels in memory over all threads, in bytes; one larger image still passes, alone.
    pub memory_bytes: u64,
    /// Counts the images checked so far, for a progress bar.
    pub progress: Arc<AtomicUsize>,
}

impl Default for InspectOptions {
    fn default() -> Self {
        InspectOptions {
            limits: ImageLimits::default(),
            depth: InspectDepth::default(),
            input: InputGrid::default(),
            memory_bytes: 192 << 20,
            progress: Arc::default(),
        }
    }
}

/// Statistics of a data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The folder.
    #[serde(serialize_with = "problem::lossy")]
    pub path: PathBuf,
    /// The detected layout.
    pub layout: DatasetLayout,
    /// Name of the file that the tags were read from, for layouts with a single one.
    pub tag_file: Option<String>,
    /// Number of images.
    pub images: usize,
    /// Images without a tag.
    pub untagged_images: usize,
    /// Tags in all.
    pub tags: usize,
    /// Images with a true mask.
    pub masks: usize,
    /// The classes in order, without background.
    pub classes: Vec<ClassCount>,
    /// The splits.
    pub splits: Vec<SplitCount>,
    /// How many images have 0, 1, 2, … tags.
    pub images_by_number_of_tags: Vec<usize>,
    /// Sizes of the readable images; absent if there are none.
    pub sizes: Option<SizeSummary>,
    /// How many images are JPEG, PNG, …, by content.
    pub formats: BTreeMap<String, usize>,
    /// How tags were interpreted where that is not obvious.
    pub notes: Vec<ReadingNote>,
    /// All problems, sorted by kind, file and detail.
    pub problems: Vec<Problem>,
    /// Warnings about what the training images' tags cannot teach.
    pub warnings: Vec<TagWarning>,
    /// Number of images that the warnings are about: the training split's, or all.
    pub training_images: usize,
}

/// Frequency of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    /// Class index, from 1.
    pub index: usize,
    /// Class name.
    pub name: String,
    /// Images with this tag.
    pub images: usize,
}

/// Statistics of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SplitCount {
    /// Name of the split.
    pub name: String,
    /// Number of images.
    pub images: usize,
    /// Images without a tag.
    pub untagged_images: usize,
    /// Images with a true mask.
    pub masks: usize,
    /// Images of this split with each tag, in the order of [`Inspection::classes`].
    pub images_by_class: Vec<usize>,
}

/// Minimum, median and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// Minimum.
    pub min: u32,
    /// Median; for an even number, the lower of the two middle values.
    pub median: u32,
    /// Maximum.
    pub max: u32,
}

/// Sizes of the images, after rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeSummary {
    /// Widths.
    pub width: Range,
    /// Heights.
    pub height: Range,
}

/// Checks every file of a data set. Never fails: errors are in [`Inspection::problems`].
pub fn inspect(dataset: &Dataset, options: &InspectOptions) -> Inspection {
    let budget = MemoryBudget::new(options.memory_bytes);
    let looks: Vec<(Option<ImageHeader>, Vec<Problem>)> = (0..dataset.images().len())
        .into_par_iter()
        .map(|index| {
            let look = look_at(dataset, index, options, &budget);
            options.progress.fetch_add(1, Ordering::Relaxed);
            look
        })
        .collect();
    let (headers, found): (Vec<Option<ImageHeader>>, Vec<Vec<Problem>>) = looks.into_iter().unzip();
    let same_content = match options.depth {
        InspectDepth::Headers => Vec::new(),
        InspectDepth::Content => {
            let paths: Vec<&Path> = dataset.images().iter().map(|image| image.path.as_path()).collect();
            same_content::groups(&paths)
        }
    };
    let mut problems = dataset.problems().to_vec();
    problems.extend(found.into_iter().flatten());
    for group in &same_content {
        problems.extend(group[1..].iter().map(|&later| duplicate_problem(dataset, group[0], later)));
    }
    problems.sort();
    problems.dedup();

    let sizes: Vec<_> = headers.iter().map(|it| it.map(|header| (header.width, header.height))).collect();
    let mut described = describe(dataset.images(), &sizes, &same_content);
    let training = dataset.training().indices;
    if !training.is_empty() {
        described = training.into_iter().map(|index| described[index]).collect();
    }
    let warnings = tag_warnings(dataset.classes(), &described, options.input);
    let headers: Vec<ImageHeader> = headers.into_iter().flatten().collect();
    Inspection { problems, warnings, training_images: described.len(), ..summarise(dataset, &headers) }
}

fn look_at(
    dataset: &Dataset,
    index: usize,
    options: &InspectOptions,
    budget: &MemoryBudget,
) -> (Option<ImageHeader>, Vec<Problem>) {
    let path = &dataset.images()[index].path;
    let mut problems = Vec::new();
    let header = match look_at_image(path, options, budget) {
        Ok(header) => Some(header),
        Err(error) => {
            problems.push(Problem::new(ProblemKind::UnreadableImage, path, reason_of(&error)));
            None
        }
    };
    if let Some(truth) = dataset.truth(index) {
        problems.extend(look_at_mask(dataset, truth, header, options, budget).err());
    }
    (header, problems)
}

fn look_at_image(
    path: &Path,
    options: &InspectOptions,
    budget: &MemoryBudget,
) -> Result<ImageHeader, DataError> {
    let header = read_image_header(path, &options.limits)?;
    if options.depth == InspectDepth::Headers {
        return Ok(header);
    }
    // Decoders need up to about twice the pixels' memory.
    let _held = budget.hold(u64::from(header.width) * u64::from(header.height) * 3 * 2);
    decode_file(path, &options.limits).map(|(header, _)| header)
}

fn look_at_mask(
    dataset: &Dataset,
    truth: &MaskSource,
    image: Option<ImageHeader>,
    options: &InspectOptions,
    budget: &MemoryBudget,
) -> Result<(), Problem> {
    let unreadable =
        |error: DataError| Problem::new(ProblemKind::UnreadableMask, truth.path(), reason_of(&error));
    let (width, height) = truth.size().map_err(unreadable)?;
    if let Some(image) =
        image.filter(|image| (image.width as usize, image.height as usize) != (width, height))
    {
        let detail = format!("{width}×{height} pixels, its image {}×{}", image.width, image.height);
        return Err(Problem::new(ProblemKind::MaskSize, truth.path(), detail));
    }
    let num_pixels = (width as u64).saturating_mul(height as u64);
    if num_pixels > options.limits.max_pixels {
        let detail =
            format!("{width}×{height} pixels, more than the {} that are read", options.limits.max_pixels);
        return Err(Problem::new(ProblemKind::UnreadableMask, truth.path(), detail));
    }
    if options.depth == InspectDepth::Headers {
        return Ok(());
    }
    let _held = budget.hold(num_pixels * 2);
    match truth.read(dataset.classes(), &options.limits) {
        Ok(_) => Ok(()),
        Err(error @ DataError::MaskIndex { .. }) => {
            Err(Problem::new(ProblemKind::MaskIndex, truth.path(), reason_of(&error)))
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// The message without the path, which the problem names anyway.
fn reason_of(error: &DataError) -> String {
    let path = match error {
        DataError::Io { path, .. }
        | DataError::Image { path, .. }
        | DataError::MaskIndex { path, .. }
        | DataError::Annotation { path, .. } => path,
        DataError::Mask(
            vitpcm_masks::MaskError::Io { path, .. }
            | vitpcm_masks::MaskError::BadPng { path, .. }
            | vitpcm_masks::MaskError::NotALabelMap { path, .. },
        ) => path,
        _ => return error.to_string(),
    };
    let message = error.to_string();
    message.strip_prefix(&format!("{}: ", path.display())).map_or(message.clone(), str::to_string)
}

fn duplicate_problem(dataset: &Dataset, first: usize, later: usize) -> Problem {
    let splits_of = |index: usize| {
        let holding = dataset.splits().iter().filter(|split| split.indices.binary_search(&index).is_ok());
        holding.map(|split| split.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let [first_image, later_image] = [first, later].map(|index| &dataset.images()[index]);
    let mut detail = format!("same content as {}", first_image.name);
    let (first_splits, later_splits) = (splits_of(first), splits_of(later));
    if first_splits != later_splits {
        detail += &format!(", in another split ({later_splits} here, {first_splits} there)");
    }
    if first_image.tags != later_image.tags {
        detail += ", with other tags";
    }
    Problem::new(ProblemKind::DuplicateImage, &later_image.path, detail)
}

/// The statistics, without problems and warnings.
fn summarise(dataset: &Dataset, headers: &[ImageHeader]) -> Inspection {
    let images = dataset.images();
    let everything: Vec<usize> = (0..images.len()).collect();
    let whole = count_split(dataset, "", &everything);
    let mut images_by_number_of_tags = Vec::new();
    for image in images {
        let num_tags = image.tags.len();
        if images_by_number_of_tags.len() <= num_tags {
            images_by_number_of_tags.resize(num_tags + 1, 0);
        }
        images_by_number_of_tags[num_tags] += 1;
    }
    let mut formats = BTreeMap::new();
    for header in headers {
        *formats.entry(header.format.to_string()).or_default() += 1;
    }
    let names = dataset.classes().names().iter().enumerate().skip(1);
    let classes = names.zip(&whole.images_by_class).map(|((index, name), &images)| ClassCount {
        index,
        name: name.clone(),
        images,
    });
    let splits = dataset.splits().iter().map(|split| count_split(dataset, &split.name, &split.indices));
    let range = |side: fn(&ImageHeader) -> u32| range_of(headers.iter().map(side).collect());
    let sizes = range(|header| header.width).zip(range(|header| header.height));
    Inspection {
        path: dataset.root().to_path_buf(),
        layout: dataset.layout(),
        tag_file: dataset
            .tag_file()
            .map(|file| file.strip_prefix(dataset.root()).unwrap_or(file))
            .map(|file| file.to_string_lossy().into_owned()),
        images: images.len(),
        untagged_images: whole.untagged_images,
        tags: images.iter().map(|image| image.tags.len()).sum(),
        masks: whole.masks,
        classes: classes.collect(),
        splits: splits.collect(),
        images_by_number_of_tags,
        sizes: sizes.map(|(width, height)| SizeSummary { width, height }),
        formats,
        notes: dataset.notes().to_vec(),
        problems: Vec::new(),
        warnings: Vec::new(),
        training_images: 0,
    }
}

fn count_split(dataset: &Dataset, name: &str, indices: &[usize]) -> SplitCount {
    let mut images_by_class = vec![0; dataset.classes().num_foreground()];
    let mut untagged_images = 0;
    for &index in indices {
        let tags = &dataset.images()[index].tags;
        untagged_images += usize::from(tags.is_empty());
        tags.iter().for_each(|tag| images_by_class[usize::from(tag) - 1] += 1);
    }
    let masks = indices.iter().filter(|&&index| dataset.truth(index).is_some()).count();
    SplitCount { name: name.to_string(), images: indices.len(), untagged_images, masks, images_by_class }
}

fn range_of(mut values: Vec<u32>) -> Option<Range> {
    values.sort_unstable();
    let (&min, &max) = (values.first()?, values.last()?);
    Some(Range { min, median: values[(values.len() - 1) / 2], max })
}

/// Bytes that threads may hold together. A thread that needs more than is left waits for the others.
struct MemoryBudget {
    total: u64,
    free: Mutex<u64>,
    freed: Condvar,
}

struct Held<'a> {
    budget: &'a MemoryBudget,
    bytes: u64,
}

impl MemoryBudget {
    fn new(total: u64) -> Self {
        MemoryBudget { total, free: Mutex::new(total), freed: Condvar::new() }
    }

    fn hold(&self, bytes: u64) -> Held<'_> {
        let bytes = bytes.min(self.total);
        let free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waited = self.freed.wait_while(free, |free| *free < bytes);
        *waited.unwrap_or_else(|poisoned| poisoned.into_inner()) -= bytes;
        Held { budget: self, bytes }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut free = self.budget.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *free += self.bytes;
        self.budget.freed.notify_all();
    }
}
