//! Rows of "image, tags" from tag files and annotation tools, added one by one: each row is resolved to its image, rows
//! of one image are merged, and unlisted images are reported. Memory grows with the images and tags, not with the
//! number of rows.

use crate::file_index::{FileIndex, Fit, IndexedFile, Unresolved};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::problem::ProblemLog;
use crate::spelling::{folded, tags_in};
use crate::{Problem, ProblemKind, ReadingNote, split};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use vitpcm_masks::{Classes, class_name_fault};

/// One row of a tag file.
pub(crate) struct TagRow<'a> {
    pub(crate) image: ImageName<'a>,
    pub(crate) tags: Vec<Cow<'a, str>>,
    pub(crate) split: Option<Cow<'a, str>>,
}

/// How a row names its image.
pub(crate) enum ImageName<'a> {
    /// A path below the data set's folder or relative to the tag file.
    Path(Cow<'a, str>),
    /// A path or URL from another machine, in several spellings: only its end counts.
    Tail(Vec<String>),
}

/// The rows of one file so far.
pub(crate) struct TagRows<'a> {
    pub(crate) index: &'a FileIndex,
    source: &'a Path,
    entries: Vec<RowEntry>,
    entry_of_image: HashMap<usize, usize>,
    tag_names: Names,
    split_names: Names,
    /// Class names in order, if the file defines them.
    class_names: Option<Vec<String>>,
    problems: ProblemLog,
    notes: Vec<ReadingNote>,
    /// The first cell split at something other than the documented `;`, and the number of such cells.
    split_cells: Option<(String, usize)>,
    /// Folded names of listed classes that contain a separator.
    whole_names: HashSet<String>,
    /// Whether rows may repeat tags of earlier ones because they carry other information.
    may_repeat: bool,
}

/// An image named by rows.
struct RowEntry {
    image: usize,
    tags: BTreeSet<u32>,
    splits: BTreeSet<u32>,
    /// Its name in the rows, if only the end matches.
    found_by_end: Option<String>,
    /// Another name that matches equally badly, so that neither is certain.
    rival: Option<String>,
    /// The first row that added nothing, and the number of such rows.
    repetition: Option<(String, usize)>,
}

impl RowEntry {
    /// Merges a later row of the same image. A row with the full name takes precedence; a name that shares only its end
    /// then belongs to another image and is returned.
    fn join(&mut self, row: RowEntry, place: fmt::Arguments<'_>) -> Option<String> {
        match (&self.found_by_end, row.found_by_end) {
            (Some(_), None) => {
                let displaced = self.found_by_end.take();
                *self = RowEntry { found_by_end: None, ..row };
                return displaced;
            }
            (None, Some(other)) => return Some(other),
            (Some(name), Some(other)) if *name != other => {
                self.rival.get_or_insert(other);
                return None;
            }
            _ => {}
        }
        // One row per tag is a common format; only a row that adds nothing is a duplicate.
        if row.tags.iter().all(|tag| self.tags.contains(tag)) {
            self.repetition.get_or_insert_with(|| (place.to_string(), 0)).1 += 1;
        }
        self.tags.extend(row.tags);
        self.splits.extend(row.splits);
        None
    }
}

/// Interned names, by number.
#[derive(Default)]
struct Names {
    all: Vec<Arc<str>>,
    number_of: HashMap<Arc<str>, u32>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.number_of.get(name) {
            return number;
        }
        let (number, name): (u32, Arc<str>) = (self.all.len() as u32, name.into());
        self.all.push(name.clone());
        self.number_of.insert(name, number);
        number
    }

    fn of(&self, numbers: &BTreeSet<u32>) -> Vec<Arc<str>> {
        numbers.iter().map(|&number| self.all[number as usize].clone()).collect()
    }
}

impl<'a> TagRows<'a> {
    /// No rows yet. `source` is the tag file; `classes` are those of the data set's class list, if any.
    pub(crate) fn new(index: &'a FileIndex, source: &'a Path, classes: Option<&Classes>) -> Self {
        let names = classes.iter().flat_map(|classes| classes.names());
        let whole_names =
            names.filter(|name| tags_in(name).nth(1).is_some()).map(|name| folded(name)).collect();
        TagRows {
            index,
            source,
            entries: Vec::new(),
            entry_of_image: HashMap::new(),
            tag_names: Names::default(),
            split_names: Names::default(),
            class_names: None,
            problems: ProblemLog::default(),
            notes: Vec::new(),
            split_cells: None,
            whole_names,
            may_repeat: false,
        }
    }

    /// Allows rows that repeat tags of earlier ones: they may describe other boxes of the same image.
    pub(crate) fn allow_repetition(&mut self) {
        self.may_repeat = true;
    }

    /// Discards all rows, if a truncated file must not pass for a complete one.
    pub(crate) fn clear(&mut self) {
        let whole_names = std::mem::take(&mut self.whole_names);
        *self = TagRows { whole_names, ..TagRows::new(self.index, self.source, None) };
    }

    /// Sets the classes and their order.
    pub(crate) fn set_class_names(&mut self, names: Vec<String>) {
        self.class_names = Some(names);
    }

    /// Reports a part of the file that could not be parsed.
    pub(crate) fn add_unreadable(&mut self, detail: impl fmt::Display) {
        self.add_problem(ProblemKind::UnreadableAnnotation, detail);
    }

    /// Reports a problem of the file.
    pub(crate) fn add_problem(&mut self, kind: ProblemKind, detail: impl fmt::Display) {
        self.problems.add(kind, || Problem::new(kind, self.source, detail.to_string()));
    }

    /// Notes how the file was interpreted.
    pub(crate) fn add_note(&mut self, note: ReadingNote) {
        self.notes.push(note);
    }

    /// The tags of a cell that may hold several. A cell that equals a listed class is that class, whatever it contains.
    pub(crate) fn tags_of_cell<'c>(&mut self, cell: &'c str) -> Vec<Cow<'c, str>> {
        if !self.whole_names.is_empty() && self.whole_names.contains(&folded(cell)) {
            return vec![Cow::Borrowed(cell)];
        }
        let tags: Vec<Cow<'_, str>> = tags_in(cell).map(Cow::Borrowed).collect();
        if tags.len() > 1 && cell.contains([',', '|', '\n']) {
            self.split_cells.get_or_insert_with(|| (cell.chars().take(80).collect(), 0)).1 += 1;
        }
        tags
    }

    /// The name of the tag file, for notes.
    pub(crate) fn file(&self) -> String {
        file_name_of(self.source)
    }

    /// Adds a row; `place` is its position in the file for messages: `line 7`, `task 12`.
    pub(crate) fn add(&mut self, row: TagRow<'_>, place: fmt::Arguments<'_>) {
        let (found, name) = match row.image {
            ImageName::Path(name) => (self.index.resolve_row(&name), name),
            ImageName::Tail(spellings) => {
                let found = spellings.iter().map(|name| self.index.resolve_tail(name)).find(Result::is_ok);
                let first = spellings.first().cloned().unwrap_or_default();
                let found = found.unwrap_or_else(|| self.index.resolve_tail(&first));
                (found.map(|image| (image, Fit::Whole)), first.into())
            }
        };
        let (image, fit) = match found {
            Ok(found) => found,
            Err(Unresolved::Elsewhere) => return,
            Err(why) => {
                let problem = || problem_of_unresolved(self.index, self.source, place, &name, &why);
                return self.problems.add(why.kind(), problem);
            }
        };
        let tags = row.tags.iter().map(|tag| tag.trim()).filter(|tag| !tag.is_empty());
        // No row is better than a row without one of its tags.
        if let Some(fault) = tags.clone().find_map(class_name_fault) {
            return self.add_unreadable(format_args!("{place}: {fault}; the row is left out"));
        }
        let tags: BTreeSet<u32> = tags.map(|tag| self.tag_names.number(tag)).collect();
        let splits = row.split.iter().map(|name| self.split_names.number(&split::tidy(name))).collect();
        let found_by_end = (fit == Fit::End).then(|| name.to_string());
        let row = RowEntry { image, tags, splits, found_by_end, rival: None, repetition: None };
        match self.entry_of_image.get(&image) {
            None => {
                self.entry_of_image.insert(image, self.entries.len());
                self.entries.push(row);
            }
            Some(&earlier) => {
                if let Some(name) = self.entries[earlier].join(row, place) {
                    let problem = || {
                        problem_of_unresolved(self.index, self.source, "a row", &name, &Unresolved::Missing)
                    };
                    self.problems.add(ProblemKind::TagWithoutImage, problem);
                }
            }
        }
    }

    /// The images with everything that rows said about them.
    pub(crate) fn finish(self) -> Listing {
        let source: Arc<Path> = self.source.into();
        let file = file_name_of(self.source);
        let (mut problems, mut notes) = (self.problems.finish(self.source), self.notes);
        let is_unlisted = |(i, _): &(usize, &IndexedFile)| !self.entry_of_image.contains_key(i);
        let unlisted = self.index.images.iter().enumerate().filter(is_unlisted);
        let names: Vec<String> = unlisted.map(|(_, image)| image.relative.clone()).collect();
        if !names.is_empty() {
            notes.push(ReadingNote::Unlisted { file: file.clone(), names });
        }
        if let Some((example, cells)) = self.split_cells {
            notes.push(ReadingNote::SplitCells { file: file.clone(), cells, example });
        }
        let mut found_by_end: Option<(String, String, usize)> = None;
        let mut entries = Vec::with_capacity(self.entries.len());
        for RowEntry { image, tags, splits, found_by_end: name, rival, repetition } in self.entries {
            let IndexedFile { path, relative } = &self.index.images[image];
            if let (Some(name), Some(rival)) = (&name, rival) {
                let detail =
                    format!("{file} names `{name}` and `{rival}`, which may both be this image; left out");
                problems.push(Problem::new(ProblemKind::AmbiguousName, path, detail));
                continue;
            }
            if let Some(name) = name {
                found_by_end.get_or_insert_with(|| (name, relative.clone(), 0)).2 += 1;
            }
            if let Some((place, count)) = repetition.filter(|_| !self.may_repeat) {
                let mut detail = format!("{place} of {file} repeats an earlier row");
                if count > 1 {
                    detail += &format!(", as do {} more", count - 1);
                }
                problems.push(Problem::new(ProblemKind::DuplicateEntry, path, detail));
            }
            let (tags, splits) = (self.tag_names.of(&tags), self.split_names.of(&splits));
            entries.push(Entry::of_indexed(self.index, image, source.clone(), tags, splits));
        }
        if let Some((name, image, images)) = found_by_end {
            notes.push(ReadingNote::FoundByFileName { file, images, name, image });
        }
        let class_names = self.class_names.map_or(ClassNames::Met, ClassNames::Given);
        Listing { entries, class_names, mask_coverage: MaskCoverage::Whole, problems, notes }
    }
}

/// The problem of a name that resolves to no image; `place` is its position in `source`.
pub(crate) fn problem_of_unresolved(
    index: &FileIndex,
    source: &Path,
    place: impl fmt::Display,
    name: &str,
    why: &Unresolved,
) -> Problem {
    let origin = format!("{place} of {}", file_name_of(source));
    match why {
        Unresolved::Missing | Unresolved::Elsewhere => {
            let mut detail = format!("{origin} names `{name}`, but there is no such image");
            if let Some(other) = index.of_other_extension(name) {
                detail += &format!("; there is `{}`", index.images[other].relative);
            }
            Problem::new(why.kind(), index.root.join(name), detail)
        }
        Unresolved::Folder => {
            let detail = format!("{origin} names `{name}`, which is a folder");
            Problem::new(why.kind(), index.root.join(name), detail)
        }
        Unresolved::Outside => {
            let detail =
                format!("{place} names `{name}`, which lies outside the data set's folder; not followed");
            Problem::new(why.kind(), source, detail)
        }
        Unresolved::Ambiguous(files) => {
            let detail = format!(
                "{place} names `{name}`, which may be any of {}; write its folder too",
                files.join(", ")
            );
            Problem::new(why.kind(), source, detail)
        }
    }
}

fn file_name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
