//! Rows of "image, tags", as tag files and annotation tools give them, taken one by one: each row finds its image, rows
//! of one image are joined, and images that no row names are reported. Memory grows with the images and tags that are
//! met, not with the number of rows.

use crate::file_index::{FileIndex, IMAGES, Unresolved};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::problem::ProblemLog;
use crate::{Problem, ProblemKind, split};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use vitpcm_masks::class_name_fault;

/// One row of a tag file.
pub(crate) struct TagRow<'a> {
    pub(crate) image: ImageName<'a>,
    pub(crate) tags: Vec<Cow<'a, str>>,
    pub(crate) split: Option<Cow<'a, str>>,
}

/// How a row names its image.
pub(crate) enum ImageName<'a> {
    /// A path below the data set's folder.
    Below(Cow<'a, str>),
    /// A path or URL of another machine, in several spellings: only its end counts.
    Tail(Vec<String>),
}

/// What the rows of one file have given so far.
pub(crate) struct TagRows<'a> {
    pub(crate) index: &'a FileIndex,
    source: &'a Path,
    entries: Vec<RowEntry>,
    entry_of_image: HashMap<usize, usize>,
    tag_names: Names,
    split_names: Names,
    /// Class names in order, where the file fixes them.
    class_names: Option<Vec<String>>,
    problems: ProblemLog,
}

/// An image that rows have named.
struct RowEntry {
    image: usize,
    tags: BTreeSet<u32>,
    splits: BTreeSet<u32>,
    /// The first row that added nothing, and how many did.
    repetition: Option<(String, usize)>,
}

/// Each name once, by number.
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
    /// No rows yet. `source` is the tag file.
    pub(crate) fn new(index: &'a FileIndex, source: &'a Path) -> Self {
        TagRows {
            index,
            source,
            entries: Vec::new(),
            entry_of_image: HashMap::new(),
            tag_names: Names::default(),
            split_names: Names::default(),
            class_names: None,
            problems: ProblemLog::default(),
        }
    }

    /// Forgets the rows, where a file that breaks off must not pass for a whole one.
    pub(crate) fn clear(&mut self) {
        *self = TagRows::new(self.index, self.source);
    }

    /// Fixes the classes and their order.
    pub(crate) fn set_class_names(&mut self, names: Vec<String>) {
        self.class_names = Some(names);
    }

    /// Notes something about the file that could not be understood.
    pub(crate) fn add_unreadable(&mut self, detail: impl fmt::Display) {
        self.add_problem(ProblemKind::UnreadableAnnotation, detail);
    }

    /// Notes a problem of the file.
    pub(crate) fn add_problem(&mut self, kind: ProblemKind, detail: impl fmt::Display) {
        self.problems.add(kind, || Problem::new(kind, self.source, detail.to_string()));
    }

    /// Takes a row; `place` is where in the file it stands, for messages: `line 7`, `task 12`.
    pub(crate) fn add(&mut self, row: TagRow<'_>, place: fmt::Arguments<'_>) {
        let (found, name) = match row.image {
            ImageName::Below(name) => (self.index.resolve(&name, &[IMAGES]), name),
            ImageName::Tail(spellings) => {
                let found = spellings.iter().map(|name| self.index.resolve_tail(name)).find(Result::is_ok);
                let first = spellings.first().cloned().unwrap_or_default();
                (found.unwrap_or_else(|| self.index.resolve_tail(&first)), first.into())
            }
        };
        let image = match found {
            Ok(image) => image,
            Err(why) => {
                let problem = || problem_of_unresolved(self.index, self.source, place, &name, &why);
                return self.problems.add(why.kind(), problem);
            }
        };
        let tags = row.tags.iter().map(|tag| tag.trim()).filter(|tag| !tag.is_empty());
        // Better no row than a row without one of its tags.
        if let Some(fault) = tags.clone().find_map(class_name_fault) {
            return self.add_unreadable(format_args!("{place}: {fault}; the row is left out"));
        }
        let tags: BTreeSet<u32> = tags.map(|tag| self.tag_names.number(tag)).collect();
        let splits = row.split.iter().map(|name| self.split_names.number(&split::tidy(name))).collect();
        match self.entry_of_image.get(&image) {
            None => {
                self.entry_of_image.insert(image, self.entries.len());
                self.entries.push(RowEntry { image, tags, splits, repetition: None });
            }
            Some(&earlier) => {
                let entry = &mut self.entries[earlier];
                // One row a tag is a common way to write several; only a row that adds nothing is a duplicate.
                if tags.iter().all(|tag| entry.tags.contains(tag)) {
                    entry.repetition.get_or_insert_with(|| (place.to_string(), 0)).1 += 1;
                }
                entry.tags.extend(tags);
                entry.splits.extend(splits);
            }
        }
    }

    /// The images with everything that rows said about them.
    pub(crate) fn finish(self) -> Listing {
        let source: Arc<Path> = self.source.into();
        let file_name = file_name_of(self.source);
        let mut problems = self.problems.finish(self.source);
        for (i, image) in self.index.images.iter().enumerate() {
            if !self.entry_of_image.contains_key(&i) {
                let detail = format!("{file_name} does not name it; left out");
                problems.push(Problem::new(ProblemKind::ImageWithoutTag, &image.path, detail));
            }
        }
        let mut entries = Vec::with_capacity(self.entries.len());
        for RowEntry { image, tags, splits, repetition } in self.entries {
            if let Some((place, count)) = repetition {
                let mut detail = format!("{place} of {file_name} repeats an earlier row");
                if count > 1 {
                    detail += &format!(", as do {} more", count - 1);
                }
                let path = &self.index.images[image].path;
                problems.push(Problem::new(ProblemKind::DuplicateEntry, path, detail));
            }
            let (tags, splits) = (self.tag_names.of(&tags), self.split_names.of(&splits));
            entries.push(Entry::of_indexed(self.index, image, source.clone(), tags, splits));
        }
        let class_names = self.class_names.map_or(ClassNames::Met, ClassNames::Given);
        Listing { entries, class_names, mask_coverage: MaskCoverage::Whole, problems }
    }
}

/// The problem of a name that gives no image; `place` of `source` is where the name stands.
pub(crate) fn problem_of_unresolved(
    index: &FileIndex,
    source: &Path,
    place: impl fmt::Display,
    name: &str,
    why: &Unresolved,
) -> Problem {
    let origin = format!("{place} of {}", file_name_of(source));
    match why {
        Unresolved::Missing => {
            let detail = format!("{origin} names `{name}`, but there is no such image");
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
            let detail =
                format!("{place} names `{name}`, which may be any of {}; left out", files.join(", "));
            Problem::new(why.kind(), source, detail)
        }
    }
}

fn file_name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
