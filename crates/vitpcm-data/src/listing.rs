//! What every layout's reader hands over: images with tags by name, and how the class list is to be made. The data
//! set (`dataset.rs`) turns names into indices.

use crate::file_index::{FileIndex, IMAGES, without_folder};
use crate::{MaskSource, Problem, ReadingNote};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was read from one layout.
pub(crate) struct Listing {
    pub(crate) entries: Vec<Entry>,
    pub(crate) class_names: ClassNames,
    pub(crate) mask_coverage: MaskCoverage,
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<ReadingNote>,
}

/// One image, each at most once in a listing.
pub(crate) struct Entry {
    /// Below the image folder, `/` between folders, extension kept.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Where the tags were read.
    pub(crate) source: Arc<Path>,
    pub(crate) tags: Vec<Arc<str>>,
    pub(crate) splits: Vec<Arc<str>>,
    pub(crate) truth: Option<MaskSource>,
}

impl Entry {
    /// An entry for an indexed image, with the mask that lies in a `masks` folder, if any.
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

/// How the class list is made where the user gives none.
pub(crate) enum ClassNames {
    /// The layout names them, in order.
    Given(Vec<String>),
    /// VOC's twenty if any of these was met, else the names met, sorted.
    VocIfMet,
    /// The names met, sorted.
    Met,
}

/// Whether an image without a mask is worth a word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaskCoverage {
    /// In a split where some have a mask, all should.
    Whole,
    /// Masks are for some images only, by design.
    Partial,
}
