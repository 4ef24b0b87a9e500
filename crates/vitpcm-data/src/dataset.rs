//! A data set: images with tags, classes, splits, true masks, and the problems found while reading it. Each layout is
//! read by the file named after it.

use crate::class_choice::{choose_classes, read_class_list};
use crate::file_index::{FileIndex, file_name, without_extension};
use crate::layout::{Found, Source};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::spelling::{ClassLookup, Meaning, Spellings, split_joined_tags};
use crate::split::{self, Split, SplitBy};
use crate::tag_rows::TagRows;
use crate::{
    DataError, DatasetLayout, ImageFile, ImageLimits, MaskSource, Problem, ProblemKind, ReadingNote, Tags,
};
use crate::{class_folders, coco, cvat, label_studio, tags_json, tags_table, voc};
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use vitpcm_masks::{Classes, class_name_fault};

/// Limit on unknown names for which a similar class is searched, because each search scans all classes.
const MAX_QUESTIONS: usize = 100;

/// An image and its tags. It has no mask, by design: training takes nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedImage {
    /// Path below the image folder, with `/` as separator and the extension; invalid UTF-8 replaced.
    pub name: String,
    /// The file's path; empty for an image that is [gone](TaggedImage::gone).
    pub path: PathBuf,
    /// The classes in the image.
    pub tags: Tags,
}

impl TaggedImage {
    /// An image that is no longer in the data set: loading it fails with a message that says so.
    pub fn gone(name: String, tags: Tags) -> Self {
        TaggedImage { name, path: PathBuf::new(), tags }
    }

    /// The path of this image's mask below a folder of masks: its name with extension `.png`.
    pub fn mask_name(&self) -> PathBuf {
        PathBuf::from(format!("{}.png", without_extension(&self.name)))
    }
}

/// Whether objects marked difficult count as tags (VOC annotations).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Difficult {
    /// They count: the class is in the image, and its pixels are in the mask.
    #[default]
    Include,
    /// They do not, as in VOC's own classification task.
    Exclude,
}

/// Where tags come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagSource {
    /// From annotations, tag files or folders.
    #[default]
    Annotations,
    /// The true masks, to match published benchmarks. An image without a mask keeps its annotated tags and is reported.
    Masks,
}

/// What the same file name in several class folders means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameName {
    /// One image with several tags. Files that differ are reported.
    #[default]
    OneImage,
    /// Different images.
    SeveralImages,
}

/// How a data set is read.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Whether objects marked difficult count.
    pub difficult: Difficult,
    /// Where tags come from.
    pub tag_source: TagSource,
    /// Where splits come from.
    pub split_by: SplitBy,
    /// What the same file name in several class folders means.
    pub same_name: SameName,
    /// A class list that replaces the data set's own: one name per line.
    pub classes: Option<PathBuf>,
    /// The images, if not those below the data set's folder: for a tag file kept elsewhere.
    pub images: Option<Vec<ImageFile>>,
    /// Limits on reading masks, if tags come from masks.
    pub limits: ImageLimits,
}

/// A data set after reading.
#[derive(Clone, Debug)]
pub struct Dataset {
    root: PathBuf,
    layout: DatasetLayout,
    classes: Classes,
    images: Vec<TaggedImage>,
    truths: Vec<Option<MaskSource>>,
    splits: Vec<Split>,
    problems: Vec<Problem>,
    notes: Vec<ReadingNote>,
    tag_file: Option<PathBuf>,
    sources: Vec<PathBuf>,
}

impl Dataset {
    /// Reads a data set: a folder, whose layout is detected, or a tag file, COCO file or export in such a folder.
    ///
    /// Problems with single files are collected in [`Dataset::problems`]. An error means that no layout was detected,
    /// that the path cannot be read, or that the options do not fit.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, DataError> {
        let mut found = Found::at(path)?;
        // A devkit has folders with several kinds of masks, which are not images of the data set.
        let index = match (&options.images, &found.source, found.index.take()) {
            (Some(images), _, _) => FileIndex::of_images(&found.root, images),
            (None, Source::VocDevkit, _) => FileIndex::walk(&found.root.join(voc::IMAGE_FOLDER)),
            (None, _, Some(index)) => index,
            (None, _, None) => FileIndex::walk(&found.root),
        };
        let mut problems = Vec::new();
        let class_list = read_class_list(&found.root, options, &mut problems)?;
        let mut listing = read_listing(&found, &index, class_list.as_ref(), options);
        listing.problems.extend(problems);
        let needs_folders =
            matches!(found.source, Source::ClassFolders) && options.tag_source != TagSource::Masks;
        if needs_folders && listing.entries.iter().all(|entry| entry.tags.is_empty()) {
            return Err(found.without_tags(listing.entries.len()));
        }
        found.pass_over_texts();
        Self::assemble(found, index, listing, class_list, options)
    }

    /// Fails if no image has a tag: there is nothing to learn.
    pub fn check_tagged(&self) -> Result<(), DataError> {
        if self.images.iter().any(|image| !image.tags.is_empty()) {
            return Ok(());
        }
        let is_cause = |problem: &&Problem| {
            matches!(
                problem.kind,
                ProblemKind::UnreadableAnnotation | ProblemKind::UnknownClass | ProblemKind::TagWithoutImage
            )
        };
        let cause = self.problems.iter().find(is_cause).map(Problem::to_string);
        Err(DataError::NoTags { path: self.root.clone(), images: self.images.len(), cause })
    }

    /// The folder that names are relative to.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The detected layout.
    pub fn layout(&self) -> DatasetLayout {
        self.layout
    }

    /// The file that the tags were read from, for layouts with a single one.
    pub fn tag_file(&self) -> Option<&Path> {
        self.tag_file.as_deref()
    }

    /// The classes, background first.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The images with their tags, sorted by name.
    pub fn images(&self) -> &[TaggedImage] {
        &self.images
    }

    /// The true mask of an image, if any.
    pub fn truth(&self, index: usize) -> Option<&MaskSource> {
        self.truths.get(index)?.as_ref()
    }

    /// All files of the data set: images, masks, annotations, lists of classes and splits. Some of the lists may not
    /// exist.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let images = self.images.iter().map(|image| image.path.as_path());
        let masks = self.truths.iter().flatten().map(MaskSource::path);
        images.chain(masks).chain(self.sources())
    }

    /// Files that tags, classes and splits are read from, or would be if they existed.
    pub fn sources(&self) -> impl Iterator<Item = &Path> {
        self.sources.iter().map(PathBuf::as_path)
    }

    /// The splits; an image may be in several or in none.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// A split by its name.
    pub fn split(&self, name: &str) -> Option<&Split> {
        self.splits.iter().find(|split| split.name == name)
    }

    /// The training images: `trainaug`, else `train`, else the first split whose name starts with it, else all images
    /// in no split.
    pub fn training(&self) -> Split {
        let starts_so = || self.splits.iter().find(|split| split.name.starts_with("train"));
        let found = self.split("trainaug").or_else(|| self.split("train")).or_else(starts_so);
        found.cloned().unwrap_or_else(|| {
            let in_a_split: HashSet<usize> =
                self.splits.iter().flat_map(|s| s.indices.iter().copied()).collect();
            let rest = (0..self.images.len()).filter(|index| !in_a_split.contains(index));
            Split { name: "train".to_string(), indices: rest.collect() }
        })
    }

    /// The validation images: `val`, else the first split whose name starts with it.
    pub fn validation(&self) -> Option<&Split> {
        self.split("val").or_else(|| self.splits.iter().find(|split| split.name.starts_with("val")))
    }

    /// Problems found while reading lists and annotations, sorted. [`inspect`](crate::inspect()) checks images and
    /// masks themselves.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// How tags were interpreted where that is not obvious: spellings merged, cells split, columns chosen.
    pub fn notes(&self) -> &[ReadingNote] {
        &self.notes
    }

    fn assemble(
        found: Found,
        index: FileIndex,
        listing: Listing,
        class_list: Option<Classes>,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        let Listing { mut entries, class_names, mask_coverage, mut problems, mut notes } = listing;
        leave_out_unusable_names(&mut entries, &mut problems);
        entries.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
        if !matches!(class_names, ClassNames::Given(_)) {
            notes.extend(split_joined_tags(&mut entries, class_list.as_ref()));
        }
        let spellings = Spellings::of(&entries);
        let classes = match class_list {
            Some(classes) => classes,
            None => choose_classes(&found.root, class_names, &spellings, &mut problems)?,
        };
        let lookup = ClassLookup::new(&classes);
        let (meanings, spelling_notes) = spellings.meanings(&lookup);
        notes.extend(spelling_notes);
        let splits = choose_splits(&found.root, &entries, options, &mut problems)?;
        problems.extend(found.problems);
        report_masks(&index, &entries, &splits, mask_coverage, &mut problems);
        problems.extend(index.problems);
        report_shared_names(&entries, &mut problems);

        let mut images = Vec::with_capacity(entries.len());
        let mut truths = Vec::with_capacity(entries.len());
        let mut sources = list_files(&found.root, options);
        let mut all_tags_unknown = Vec::new();
        let mut questions: HashMap<String, String> = HashMap::new();
        for entry in entries {
            let (tags, unknown) = tags_of_names(&entry, &meanings);
            for name in &unknown {
                if !questions.contains_key(*name) && questions.len() < MAX_QUESTIONS {
                    questions.insert(name.to_string(), lookup.question(name));
                }
                let question = questions.get(*name).map_or("", String::as_str);
                let detail = format!("`{name}` of {} is not in the class list{question}", entry.name);
                problems.push(Problem::new(ProblemKind::UnknownClass, &*entry.source, detail));
            }
            if tags.is_empty() && !unknown.is_empty() {
                all_tags_unknown.push(images.len());
            }
            if sources.last().is_none_or(|last| **last != *entry.source) {
                sources.push(entry.source.to_path_buf());
            }
            images.push(TaggedImage { name: entry.name, path: entry.path, tags });
            truths.push(entry.truth);
        }
        let mut dataset = Dataset {
            root: found.root,
            tag_file: found.source.file().map(Path::to_path_buf),
            layout: found.source.layout(),
            classes,
            images,
            truths,
            splits,
            problems,
            notes,
            sources,
        };
        if options.tag_source == TagSource::Masks {
            dataset.take_tags_from_masks(&options.limits);
        }
        dataset.report_images_of_unknown_tags(&all_tags_unknown);
        dataset.problems.sort();
        dataset.problems.dedup();
        Ok(dataset)
    }

    fn take_tags_from_masks(&mut self, limits: &ImageLimits) {
        let Dataset { images, truths, classes, problems, .. } = self;
        let found: Vec<Option<Problem>> = images
            .par_iter_mut()
            .zip(truths.par_iter())
            .map(|(image, truth)| {
                let Some(truth) = truth else {
                    let detail = "no mask to take tags from; its annotated tags are kept";
                    return Some(Problem::new(ProblemKind::MaskMissing, &image.path, detail));
                };
                match truth.read(classes, limits) {
                    Ok(map) => {
                        let histogram = map.histogram();
                        image.tags =
                            (1..u8::MAX).filter(|&label| histogram[usize::from(label)] > 0).collect();
                        None
                    }
                    Err(error) => {
                        let detail = format!("{error}; the annotated tags of {} are kept", image.name);
                        Some(Problem::new(ProblemKind::UnreadableMask, truth.path(), detail))
                    }
                }
            })
            .collect();
        problems.extend(found.into_iter().flatten());
    }

    /// An image without tags is a negative example, unless its tags were lost.
    fn report_images_of_unknown_tags(&mut self, all_tags_unknown: &[usize]) {
        let detail = "none of its tags is in the class list: used as a negative example";
        let images = all_tags_unknown.iter().map(|&index| &self.images[index]);
        let without = images.filter(|image| image.tags.is_empty());
        let found = without.map(|image| Problem::new(ProblemKind::ImageWithoutTag, &image.path, detail));
        self.problems.extend(found);
    }
}

fn read_listing(
    found: &Found,
    index: &FileIndex,
    class_list: Option<&Classes>,
    options: &OpenOptions,
) -> Listing {
    let from_rows = |source: &Path, read: fn(&Path, &mut TagRows<'_>)| {
        let mut rows = TagRows::new(index, source, class_list);
        read(source, &mut rows);
        rows.finish()
    };
    match &found.source {
        Source::VocDevkit => voc::read(&found.root, index, options.difficult),
        Source::Coco { instance_files } => coco::read(index, instance_files),
        Source::TagsCsv(file) => from_rows(file, tags_table::read_csv),
        Source::TagsXlsx(file) => from_rows(file, tags_table::read_xlsx),
        Source::TagsJson(file) => from_rows(file, tags_json::read_json),
        Source::TagsJsonl(file) => from_rows(file, tags_json::read_jsonl),
        Source::LabelStudio(file) => from_rows(file, label_studio::read),
        Source::Cvat(file) => from_rows(file, cvat::read),
        Source::ClassFolders => class_folders::read(index, options.same_name),
    }
}

/// Files that may list classes and splits.
fn list_files(root: &Path, options: &OpenOptions) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = options.classes.iter().cloned().chain([root.join("classes.txt")]).collect();
    let lists = match &options.split_by {
        SplitBy::Lists(folder) => split::list_files(folder).unwrap_or_default(),
        _ => ["", "splits", "ImageSets/Segmentation", "ImageSets/Main"]
            .iter()
            .flat_map(|folder| split::usual_list_files(&root.join(folder)))
            .collect(),
    };
    files.extend(lists.into_iter().map(|(_, file)| file));
    files
}

/// Drops images with a tag that cannot be a class name: no image is better than wrong tags.
fn leave_out_unusable_names(entries: &mut Vec<Entry>, problems: &mut Vec<Problem>) {
    entries.retain(|entry| {
        let names = entry.tags.iter().map(|tag| tag.trim()).filter(|name| !name.is_empty());
        let Some(fault) = names.clone().find_map(class_name_fault) else { return true };
        let detail = format!("{}: {fault}; the image is left out", entry.name);
        problems.push(Problem::new(ProblemKind::UnreadableAnnotation, &*entry.source, detail));
        false
    });
}

/// The classes of an entry's tags, and the unknown tags.
fn tags_of_names<'a>(entry: &'a Entry, meanings: &HashMap<&str, Meaning>) -> (Tags, BTreeSet<&'a str>) {
    let mut unknown = BTreeSet::new();
    let mut indices = Vec::with_capacity(entry.tags.len());
    for name in entry.tags.iter().map(|tag| tag.trim()) {
        match meanings.get(name) {
            Some(Meaning::Class(index)) => indices.push(*index),
            Some(Meaning::Unknown) => _ = unknown.insert(name),
            Some(Meaning::NoTag) | None => {}
        }
    }
    (indices.into_iter().collect(), unknown)
}

fn choose_splits(
    root: &Path,
    entries: &[Entry],
    options: &OpenOptions,
    problems: &mut Vec<Problem>,
) -> Result<Vec<Split>, DataError> {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    match &options.split_by {
        SplitBy::Share { validation, seed } => split::by_share(&names, *validation, *seed),
        SplitBy::Lists(folder) => Ok(split::by_lists(&names, split::list_files(folder)?, problems)),
        SplitBy::Folder => Ok(split::by_folder(&names)),
        SplitBy::Found => {
            if entries.iter().any(|entry| !entry.splits.is_empty()) {
                let members = entries.iter().enumerate();
                let pairs =
                    members.flat_map(|(i, entry)| entry.splits.iter().map(move |name| (name.to_string(), i)));
                return Ok(split::gather(pairs));
            }
            for folder in [root.to_path_buf(), root.join("splits")] {
                let lists = split::usual_list_files(&folder);
                if !lists.is_empty() {
                    return Ok(split::by_lists(&names, lists, problems));
                }
            }
            let in_split_folder =
                |name: &&str| name.contains('/') && split::canonical(split::first_folder(name)).is_some();
            let is_by_folder = !names.is_empty() && names.iter().all(in_split_folder);
            Ok(if is_by_folder { split::by_folder(&names) } else { Vec::new() })
        }
    }
}

/// Reports images without a mask in a split where others have one, and masks in `masks` without an image.
fn report_masks(
    index: &FileIndex,
    entries: &[Entry],
    splits: &[Split],
    coverage: MaskCoverage,
    problems: &mut Vec<Problem>,
) {
    let everything = [Split { name: String::new(), indices: (0..entries.len()).collect() }];
    let groups = if splits.is_empty() { &everything } else { splits };
    let has_mask = |&i: &usize| entries[i].truth.is_some();
    let whole =
        groups.iter().filter(|group| coverage == MaskCoverage::Whole && group.indices.iter().any(has_mask));
    for group in whole {
        for &i in group.indices.iter().filter(|&i| !has_mask(i)) {
            let others =
                if splits.is_empty() { "others".to_string() } else { format!("others of {}", group.name) };
            let detail = format!("no mask, though {others} have one");
            problems.push(Problem::new(ProblemKind::MaskMissing, &entries[i].path, detail));
        }
    }
    let used: HashSet<&Path> =
        entries.iter().filter_map(|e| e.truth.as_ref()).map(MaskSource::path).collect();
    for mask in index.masks.iter().filter(|mask| !used.contains(mask.path.as_path())) {
        let detail = "no image of the data set has this name";
        problems.push(Problem::new(ProblemKind::MaskWithoutImage, &mask.path, detail));
    }
}

/// Two images that differ only in their extension would overwrite each other's masks.
fn report_shared_names(entries: &[Entry], problems: &mut Vec<Problem>) {
    let mut first_of: HashMap<&str, &Entry> = HashMap::with_capacity(entries.len());
    for entry in entries {
        let first = *first_of.entry(without_extension(&entry.name)).or_insert(entry);
        if first.path != entry.path {
            let detail = format!("its mask would have the same name as that of {}", file_name(&first.name));
            problems.push(Problem::new(ProblemKind::AmbiguousName, &entry.path, detail));
        }
    }
}
