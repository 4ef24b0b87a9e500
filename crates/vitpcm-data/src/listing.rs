//! The output of every layout's reader: images with tags by name, and how to make the class list. `dataset.rs` turns
//! names into indices.

use crate::file_index::{FileIndex, IMAGES, without_folder};
use crate::{MaskSource, Problem, ReadingNote};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of reading one layout.
pub(crate) struct Listing {
    pub(crate) entries: Vec<Entry>,
    pub(crate) class_names: ClassNames,
    pub(crate) mask_coverage: MaskCoverage,
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<ReadingNote>,
}

/// One image, at most once per listing.
pub(crate) struct Entry {
    /// Path below the image folder, with `/` as separator and the extension.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The file that the tags were read from.
    pub(crate) source: Arc<Path>,
    pub(crate) tags: Vec<Arc<str>>,
    pub(crate) splits: Vec<Arc<str>>,
    pub(crate) truth: Option<MaskSource>,
}

impl Entry {
    /// An entry for an indexed image, with its mask from a `masks` folder, if any.
    pub(crate) fn of_indexed(
        index: &FileIndex,
        image: usize,
        source: Arc<Path>,
        tags: Vec<Arc<str>>,
        splits: Vec<Arc<str>>,
    ) -> Self {
        let file = &index.images[image];
        let truth = index.mask_of(&file.relative).map(|mask| MaskSource::Png(index.masks[mask].path.clone()));
        Entry {
            name: without_folder(&file.relative, IMAGES),
            path: file.path.clone(),
            source,
            tags,
            splits,
            truth,
        }
    }
}

/// How the class list is made if the user gives none.
pub(crate) enum ClassNames {
    /// The layout names them, in order.
    Given(Vec<String>),
    /// VOC's twenty if any of them occurs, else the names found, sorted.
    VocIfMet,
    /// The names found, sorted.
    Met,
}

/// Whether to report images without a mask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaskCoverage {
    /// In a split where some images have a mask, all should.
    Whole,
    /// Only some images have masks, by design.
    Partial,
}
