//! Compares folders of masks, one image per core at a time, so that memory does not grow with their number. Unreadable
//! files are reported, and the rest is counted.

use crate::{ConfusionMatrix, MaskError, NameMatch, read_label_png_within};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A predicted mask and the true one of the same image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskPair {
    /// The predicted mask.
    pub prediction: PathBuf,
    /// The true mask.
    pub truth: PathBuf,
}

/// Masks paired by name ([`NameMatch`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskPairs {
    /// Masks to compare, sorted by name.
    pub pairs: Vec<MaskPair>,
    /// Names of predictions without a true mask.
    pub without_truth: Vec<PathBuf>,
    /// Names of true masks, or listed names, without a prediction.
    pub without_prediction: Vec<PathBuf>,
    /// How names were matched: predictions are the first.
    pub way: NameMatch,
}

impl MaskPairs {
    /// Pairs the PNG files of two folders, at any depth; with `names` (a split's list) only those.
    pub fn find(predictions: &Path, truths: &Path, names: Option<&[String]>) -> Result<Self, MaskError> {
        let NamedMasks { first: predicted, second: true_masks, way } = NamedMasks::find(predictions, truths)?;
        let names: BTreeSet<PathBuf> = match names {
            Some(names) => names.iter().map(PathBuf::from).collect(),
            None => predicted.keys().chain(true_masks.keys()).cloned().collect(),
        };
        let mut found = MaskPairs { way, ..MaskPairs::default() };
        for name in names {
            match (predicted.get(&name), true_masks.get(&name)) {
                (Some(prediction), Some(truth)) => {
                    found.pairs.push(MaskPair { prediction: prediction.clone(), truth: truth.clone() });
                }
                (Some(_), None) => found.without_truth.push(name),
                (None, _) => found.without_prediction.push(name),
            }
        }
        Ok(found)
    }
}

/// The masks of two folders by their matching names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMasks {
    /// Those of the first folder.
    pub first: BTreeMap<PathBuf, PathBuf>,
    /// Those of the second folder.
    pub second: BTreeMap<PathBuf, PathBuf>,
    /// How names were matched.
    pub way: NameMatch,
}

impl NamedMasks {
    /// The PNG files of two folders, at any depth.
    pub fn find(first_folder: &Path, second_folder: &Path) -> Result<Self, MaskError> {
        let (first, second) = (mask_files(first_folder)?, mask_files(second_folder)?);
        let way = NameMatch::of(
            (first_folder, first.keys().map(PathBuf::as_path)),
            (second_folder, second.keys().map(PathBuf::as_path)),
        )?;
        // Files outside the chosen subfolder keep their name and have no counterpart.
        let first = first.into_iter().map(|(name, path)| (way.first_key(&name).unwrap_or(name), path));
        let second = second.into_iter().map(|(name, path)| (way.second_key(&name).unwrap_or(name), path));
        Ok(NamedMasks { first: first.collect(), second: second.collect(), way })
    }
}

/// Folders of pictures next to masks; they hold no masks.
pub const PICTURE_FOLDERS: [&str; 2] = ["overlay", "heatmap"];

/// Folders of exports next to masks, and the file that identifies them as such.
const EXPORT_FOLDERS: [(&str, &str); 3] =
    [("labelme", "labels.txt"), ("voc", "SegmentationClass"), ("yolo", "data.yaml")];

/// All PNG files below a folder, by relative path without extension; skips hidden folders, pictures and exports.
pub fn mask_files(folder: &Path) -> Result<BTreeMap<PathBuf, PathBuf>, MaskError> {
    files_below(folder, "png")
}

/// [`mask_files`], for stored score maps (`.npz`).
pub fn score_files(folder: &Path) -> Result<BTreeMap<PathBuf, PathBuf>, MaskError> {
    files_below(folder, "npz")
}

fn files_below(folder: &Path, extension: &str) -> Result<BTreeMap<PathBuf, PathBuf>, MaskError> {
    let mut files = BTreeMap::new();
    let is_picture_folder = |entry: &walkdir::DirEntry| {
        let is_export = |(name, inside): &(&str, &str)| {
            entry.depth() == 1 && entry.file_name() == *name && entry.path().join(inside).exists()
        };
        let is_below = entry.depth() > 0;
        let is_hidden =
            is_below && entry.file_type().is_dir() && entry.file_name().as_encoded_bytes().starts_with(b".");
        let is_picture = is_below && PICTURE_FOLDERS.iter().any(|name| entry.file_name() == *name);
        is_hidden || is_picture || EXPORT_FOLDERS.iter().any(is_export)
    };
    let walk = walkdir::WalkDir::new(folder).follow_links(true).into_iter();
    for entry in walk.filter_entry(|entry| !is_picture_folder(entry)) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(folder).to_path_buf();
            let text = error.to_string();
            MaskError::io(path, error.into_io_error().unwrap_or_else(|| std::io::Error::other(text)))
        })?;
        let path = entry.path();
        let is_wanted = path.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension));
        if is_wanted && entry.file_type().is_file() {
            let name = path.strip_prefix(folder).unwrap_or(path).with_extension("");
            files.insert(name, path.to_path_buf());
        }
    }
    Ok(files)
}

/// A mask that could not be counted, and why.
#[derive(Debug)]
pub struct MaskFailure {
    /// The predicted mask.
    pub prediction: PathBuf,
    /// What was wrong with it or with its true mask.
    pub error: MaskError,
}

/// Result of an evaluation.
#[derive(Debug)]
pub struct FolderEvaluation {
    /// Counts of all images that could be compared.
    pub matrix: ConfusionMatrix,
    /// Number of those images.
    pub num_images: usize,
    /// Failures, sorted by name.
    pub failures: Vec<MaskFailure>,
}

impl FolderEvaluation {
    fn empty(num_classes: usize) -> Self {
        FolderEvaluation { matrix: ConfusionMatrix::new(num_classes), num_images: 0, failures: Vec::new() }
    }

    fn merged(mut self, other: Self) -> Self {
        self.matrix.merge(&other.matrix);
        self.num_images += other.num_images;
        self.failures.extend(other.failures);
        self
    }
}

/// Counts all pairs into one confusion matrix, on all cores; the result does not depend on the number of cores. Masks
/// of more than `max_pixels` pixels are refused ([`MAX_MASK_PIXELS`](crate::MAX_MASK_PIXELS) is the usual limit).
pub fn evaluate_pairs(pairs: &[MaskPair], num_classes: usize, max_pixels: u64) -> FolderEvaluation {
    let empty = || FolderEvaluation::empty(num_classes);
    let count = |mut evaluation: FolderEvaluation, pair: &MaskPair| {
        match add_pair(&mut evaluation.matrix, pair, max_pixels) {
            Ok(()) => evaluation.num_images += 1,
            Err(error) => {
                evaluation.failures.push(MaskFailure { prediction: pair.prediction.clone(), error });
            }
        }
        evaluation
    };
    // rayon's reduce keeps the order of indexed items, so failures stay sorted.
    pairs.par_iter().fold(empty, count).reduce(empty, FolderEvaluation::merged)
}

fn add_pair(matrix: &mut ConfusionMatrix, pair: &MaskPair, max_pixels: u64) -> Result<(), MaskError> {
    let prediction = read_label_png_within(&pair.prediction, max_pixels)?;
    matrix.add(&prediction, &read_label_png_within(&pair.truth, max_pixels)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LabelMap, write_label_png};

    fn save(folder: &Path, name: &str, width: usize, labels: &[u8]) {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let map = LabelMap::new(width, labels.len() / width, labels.to_vec()).unwrap();
        write_label_png(&path, &map).unwrap();
    }

    #[test]
    fn masks_pair_up_by_name_and_bad_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (predictions, truths) = (folder.path().join("predictions"), folder.path().join("truths"));
        save(&predictions, "deep/a.png", 2, &[0, 1]);
        save(&truths, "deep/a.PNG", 2, &[0, 1]);
        save(&predictions, "b.png", 2, &[1, 1]);
        save(&truths, "b.png", 1, &[1, 1]); // another size
        save(&predictions, "c.png", 2, &[1, 1]); // no truth
        save(&truths, "d.png", 2, &[1, 1]); // no prediction
        save(&predictions, "overlay/a.png", 2, &[1, 1]); // for people, no mask
        save(&predictions, "voc/SegmentationClass/a.png", 2, &[1, 1]); // an export beside the masks
        let found = MaskPairs::find(&predictions, &truths, None).unwrap();
        assert_eq!(found.without_truth, [PathBuf::from("c")]);
        assert_eq!(found.without_prediction, [PathBuf::from("d")]);
        let evaluation = evaluate_pairs(&found.pairs, 2, 100);
        assert_eq!((evaluation.num_images, evaluation.matrix.count(1, 1)), (1, 1));
        assert_eq!(evaluation.failures.len(), 1);
        assert!(evaluation.failures[0].prediction.ends_with("b.png"));
        assert!(matches!(evaluation.failures[0].error, MaskError::SizeMismatch { .. }));
    }

    #[test]
    fn file_names_decide_where_only_one_folder_has_sub_folders() {
        let folder = tempfile::tempdir().unwrap();
        let (predictions, truths) = (folder.path().join("predictions"), folder.path().join("truths"));
        save(&predictions, "images/a.png", 2, &[0, 1]);
        save(&predictions, ".work/a.png", 2, &[1, 1]); // hidden, no mask
        save(&truths, "a.png", 2, &[0, 1]);
        let found = MaskPairs::find(&predictions, &truths, None).unwrap();
        assert_eq!(
            found.pairs,
            [MaskPair { prediction: predictions.join("images/a.png"), truth: truths.join("a.png") }]
        );

        save(&predictions, "others/a.png", 2, &[0, 1]); // which of the two is meant?
        let error = MaskPairs::find(&predictions, &truths, None).unwrap_err().to_string();
        assert!(error.contains("predictions/images and ") && error.contains("predictions/others"), "{error}");
    }

    #[test]
    fn a_list_of_names_restricts_and_insists() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "a.png", 1, &[0]);
        save(folder.path(), "b.png", 1, &[0]);
        let names = ["b".to_string(), "missing".to_string()];
        let found = MaskPairs::find(folder.path(), folder.path(), Some(&names)).unwrap();
        assert_eq!(found.pairs.len(), 1);
        assert_eq!(found.without_prediction, [PathBuf::from("missing")]);
    }

    #[test]
    fn a_missing_folder_is_an_error_with_its_name() {
        let error = MaskPairs::find(Path::new("/nowhere/at/all"), Path::new("/"), None).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/at/all:"), "{error}");
    }
}
