//! Problems of a data set: collected while it is read, never a reason to stop.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// A problem with one file of a data set.
///
/// Ordered by kind, path and detail, so that reports do not depend on the order of discovery.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The kind of problem.
    pub kind: ProblemKind,
    /// The file concerned. In JSON, invalid UTF-8 becomes U+FFFD.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The reason, and what was done about it if not obvious.
    pub detail: String,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Problem { kind, path: path.into(), detail: detail.into() }
    }
}

/// Problems of a file with any number of rows: a limited number of each kind, and a count of the rest.
#[derive(Default)]
pub(crate) struct ProblemLog {
    kept: Vec<Problem>,
    num_of_kind: BTreeMap<ProblemKind, usize>,
}

impl ProblemLog {
    const MAX_OF_A_KIND: usize = 10_000;

    /// Stores a problem, or counts it.
    pub(crate) fn add(&mut self, kind: ProblemKind, problem: impl FnOnce() -> Problem) {
        let count = self.num_of_kind.entry(kind).or_default();
        *count += 1;
        if *count <= Self::MAX_OF_A_KIND {
            self.kept.push(problem());
        }
    }

    /// The stored problems, and how many more there were in `source`.
    pub(crate) fn finish(self, source: &Path) -> Vec<Problem> {
        let mut all = self.kept;
        for (kind, count) in self.num_of_kind.into_iter().filter(|&(_, count)| count > Self::MAX_OF_A_KIND) {
            let detail = format!("{} more problems of this kind, not listed", count - Self::MAX_OF_A_KIND);
            all.push(Problem::new(kind, source, detail));
        }
        all
    }
}

/// The kinds of problems, in reporting order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProblemKind {
    /// An image that cannot be opened or decoded.
    UnreadableImage,
    /// An annotation, tag file or row that cannot be parsed.
    UnreadableAnnotation,
    /// A folder that cannot be listed.
    UnreadableFolder,
    /// A symbolic link to a folder above it.
    SymlinkLoop,
    /// A name that leads outside the data set's folder; it is never followed.
    OutsideRoot,
    /// A row, list or annotation names a missing image.
    TagWithoutImage,
    /// An image without tags.
    ImageWithoutTag,
    /// A tag that is not in the class list.
    UnknownClass,
    /// A name that matches several files, or two images whose masks would share a name.
    AmbiguousName,
    /// The same image listed twice.
    DuplicateEntry,
    /// Two image files with the same content.
    DuplicateImage,
    /// An image without a mask where others have one.
    MaskMissing,
    /// A mask that cannot be read.
    UnreadableMask,
    /// A mask whose size differs from its image.
    MaskSize,
    /// A mask with an index that is no class.
    MaskIndex,
    /// A mask that belongs to no image.
    MaskWithoutImage,
    /// Something found but not used, such as a second layout in the same folder.
    Ignored,
}

impl ProblemKind {
    /// A short heading for tables.
    pub fn title(self) -> &'static str {
        match self {
            ProblemKind::UnreadableImage => "unreadable image",
            ProblemKind::UnreadableAnnotation => "unreadable annotation",
            ProblemKind::UnreadableFolder => "unreadable folder",
            ProblemKind::SymlinkLoop => "symbolic link loop",
            ProblemKind::OutsideRoot => "outside the data set",
            ProblemKind::TagWithoutImage => "tag without image",
            ProblemKind::ImageWithoutTag => "image without tag",
            ProblemKind::UnknownClass => "unknown class",
            ProblemKind::AmbiguousName => "ambiguous name",
            ProblemKind::DuplicateEntry => "duplicate entry",
            ProblemKind::DuplicateImage => "duplicate image",
            ProblemKind::MaskMissing => "mask missing",
            ProblemKind::UnreadableMask => "unreadable mask",
            ProblemKind::MaskSize => "mask of another size",
            ProblemKind::MaskIndex => "mask with an unknown index",
            ProblemKind::MaskWithoutImage => "mask without image",
            ProblemKind::Ignored => "not used",
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.path.display(), self.kind, self.detail)
    }
}

/// Replaces invalid UTF-8, which serde would refuse.
pub(crate) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
