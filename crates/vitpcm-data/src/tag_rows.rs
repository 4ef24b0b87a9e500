//! Rows of "image, tags", as tag files and annotation tools give them: each row finds its image, rows of one image
//! are joined, and images that no row names are reported.

use crate::file_index::{FileIndex, IMAGES, Unresolved};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::{Problem, ProblemKind, split};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// One row of a tag file.
pub(crate) struct TagRow {
    pub(crate) image: ImageName,
    pub(crate) tags: Vec<String>,
    pub(crate) split: Option<String>,
    /// Where in the file, for messages: `line 7`, `task 12`.
    pub(crate) place: String,
}

/// How a row names its image.
pub(crate) enum ImageName {
    /// A path below the data set's folder.
    Below(String),
    /// A path or URL of another machine, in several spellings: only its end counts.
    Tail(Vec<String>),
}

/// What a tag file holds.
#[derive(Default)]
pub(crate) struct TagFile {
    pub(crate) rows: Vec<TagRow>,
    /// Class names in order, where the file fixes them.
    pub(crate) class_names: Option<Vec<String>>,
    pub(crate) problems: Vec<Problem>,
}

/// Joins rows and images. `source` is the tag file.
pub(crate) fn list(index: &FileIndex, source: &Path, file: TagFile) -> Listing {
    let mut problems = file.problems;
    let mut entries: Vec<Entry> = Vec::new();
    let mut entry_of_image: HashMap<usize, usize> = HashMap::new();
    // The tags of each entry, to be looked up in: a file may give one image any number of rows.
    let mut tags_of_entry: Vec<HashSet<String>> = Vec::new();
    for row in file.rows {
        let (found, name) = match row.image {
            ImageName::Below(name) => (index.resolve(&name, &[IMAGES]), name),
            ImageName::Tail(spellings) => {
                let found = spellings.iter().map(|name| index.resolve_tail(name)).find(Result::is_ok);
                let first = spellings.first().cloned().unwrap_or_default();
                (found.unwrap_or_else(|| index.resolve_tail(&first)), first)
            }
        };
        let image = match found {
            Ok(image) => image,
            Err(why) => {
                problems.push(problem_of_unresolved(index, source, &row.place, &name, why));
                continue;
            }
        };
        let splits: Vec<String> = row.split.iter().map(|name| split::tidy(name)).collect();
        match entry_of_image.get(&image) {
            None => {
                entry_of_image.insert(image, entries.len());
                tags_of_entry.push(row.tags.iter().cloned().collect());
                entries.push(Entry::of_indexed(index, image, source, row.tags, splits));
            }
            Some(&earlier) => {
                let entry = &mut entries[earlier];
                // One row a tag is a common way to write several; only a row that adds nothing is a duplicate.
                let known = &mut tags_of_entry[earlier];
                if row.tags.iter().all(|tag| known.contains(tag)) {
                    let detail = format!("{} of {} repeats an earlier row", row.place, file_name_of(source));
                    problems.push(Problem::new(ProblemKind::DuplicateEntry, &entry.path, detail));
                }
                entry.tags.extend(row.tags.into_iter().filter(|tag| known.insert(tag.clone())));
                entry.splits.extend(splits);
            }
        }
    }
    for (i, image) in index.images.iter().enumerate() {
        if !entry_of_image.contains_key(&i) {
            let detail = format!("{} does not name it; left out", file_name_of(source));
            problems.push(Problem::new(ProblemKind::ImageWithoutTag, &image.path, detail));
        }
    }
    let class_names = file.class_names.map_or(ClassNames::Met, ClassNames::Given);
    Listing { entries, class_names, mask_coverage: MaskCoverage::Whole, problems }
}

/// The problem of a name that gives no image; `place` of `source` is where the name stands.
pub(crate) fn problem_of_unresolved(
    index: &FileIndex,
    source: &Path,
    place: &str,
    name: &str,
    why: Unresolved,
) -> Problem {
    let origin = format!("{place} of {}", file_name_of(source));
    match why {
        Unresolved::Missing => {
            let detail = format!("{origin} names `{name}`, but there is no such image");
            Problem::new(ProblemKind::TagWithoutImage, index.root.join(name), detail)
        }
        Unresolved::Folder => {
            let detail = format!("{origin} names `{name}`, which is a folder");
            Problem::new(ProblemKind::TagWithoutImage, index.root.join(name), detail)
        }
        Unresolved::Outside => {
            let detail =
                format!("{place} names `{name}`, which lies outside the data set's folder; not followed");
            Problem::new(ProblemKind::OutsideRoot, source, detail)
        }
        Unresolved::Ambiguous(files) => {
            let detail =
                format!("{place} names `{name}`, which may be any of {}; left out", files.join(", "));
            Problem::new(ProblemKind::AmbiguousName, source, detail)
        }
    }
}

fn file_name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
