//! Folders named by class, optionally below split folders. The same file name in several class folders is one image
//! with several tags; an image outside all class folders is a negative.

use crate::file_index::{FileIndex, IMAGES};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::spelling::folded;
use crate::{Problem, ProblemKind, SameName, split};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Identifies an image: split, class (if equal names are different images) and path in the class folder.
type Identity<'a> = (Option<&'a str>, Option<&'a str>, String);

/// Reads the folders.
pub(crate) fn read(index: &FileIndex, same_name: SameName) -> Listing {
    let paths: Vec<Vec<&str>> = index.images.iter().map(|file| file.relative.split('/').collect()).collect();
    let below_images = is_below(&paths, |folder| folder == IMAGES);
    let paths: Vec<&[&str]> =
        paths.iter().map(|path| &path[usize::from(below_images && path.len() > 1)..]).collect();
    let below_splits = is_below(&paths, |folder| split::canonical(folder).is_some());

    let root: Arc<Path> = index.root.as_path().into();
    let mut problems = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut entry_of: BTreeMap<Identity<'_>, usize> = BTreeMap::new();
    for (image, path) in paths.into_iter().enumerate() {
        let has_split = below_splits && path.len() > 1;
        let split = has_split.then(|| path[0]);
        let in_split = &path[usize::from(has_split)..];
        let (class, inner) = match in_split {
            [class, inner @ ..] if !inner.is_empty() => (Some(*class), inner),
            _ => (None, in_split),
        };
        let kept_apart = class.filter(|_| same_name == SameName::SeveralImages);
        let identity = (split, kept_apart, inner.join("/"));
        let tags: Vec<Arc<str>> = class.map(Arc::from).into_iter().collect();
        let earlier = entry_of.get(&identity).copied().filter(|&earlier| {
            // Two folders of one class, `rust` and `Rust`, may reuse file names.
            let entry = &entries[earlier];
            let is_same_class = class.is_some_and(|class| has_class(&entry.tags, class));
            !is_same_class || is_same_file(&entry.path, &index.images[image].path)
        });
        if let Some(earlier) = earlier {
            let entry = &mut entries[earlier];
            let file = &index.images[image];
            if !is_same_file(&entry.path, &file.path) {
                let detail = format!(
                    "same name as {} but different content; used as one image with both tags, this file is ignored",
                    entry.name
                );
                problems.push(Problem::new(ProblemKind::AmbiguousName, &file.path, detail));
            }
            entry.tags.extend(tags);
        } else {
            entry_of.insert(identity, entries.len());
            let splits = split.iter().map(|name| split::tidy(name).into()).collect();
            entries.push(Entry::of_indexed(index, image, root.clone(), tags, splits));
        }
    }
    Listing {
        entries,
        class_names: ClassNames::Met,
        mask_coverage: MaskCoverage::Whole,
        problems,
        notes: Vec::new(),
    }
}

/// Whether one of the tags is this class, in any spelling.
fn has_class(tags: &[Arc<str>], class: &str) -> bool {
    let class = folded(class);
    tags.iter().any(|tag| folded(tag) == class)
}

/// Whether every image that lies in a folder lies in one that satisfies the condition.
fn is_below<'a, P: AsRef<[&'a str]>>(paths: &[P], is_such: impl Fn(&str) -> bool) -> bool {
    let folders: HashSet<&str> =
        paths.iter().map(AsRef::as_ref).filter(|path| path.len() > 1).map(|path| path[0]).collect();
    !folders.is_empty() && folders.into_iter().all(is_such)
}

/// By length and first bytes: enough to tell two pictures apart without reading every copy in full.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let length = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.len()).ok();
    let head = |path: &Path| {
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut bytes)).ok().map(|_| bytes)
    };
    length(a) == length(b) && head(a) == head(b)
}
