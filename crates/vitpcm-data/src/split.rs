//! Splits: named sets of images, from lists, folders, or a seeded random fraction.

use crate::file_index::{file_name, without_extension};
use crate::{DataError, Problem, ProblemKind, annotation_file};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A named set of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// `train`, `val`, `test`, `trainaug`, `train2014`, …
    pub name: String,
    /// Positions in [`Dataset::images`](crate::Dataset::images), ascending.
    pub indices: Vec<usize>,
}

/// Source of the splits.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SplitBy {
    /// What the data set provides: the layout's own lists, files or columns; else `train.txt` and similar lists in the
    /// folder or its `splits` folder; else folders named `train`, `val` or `test`.
    #[default]
    Found,
    /// Every `NAME.txt` of this folder: one image per line, with or without folder and extension.
    Lists(PathBuf),
    /// The first folder of each image's name.
    Folder,
    /// A fraction of the images for validation, the rest for training. The choice depends on the image's name and the
    /// seed only, so images added later do not move others.
    Share {
        /// From 0 to 1.
        validation: f64,
        /// The seed.
        seed: u64,
    },
}

/// `train`, `val` or `test` for the usual spellings.
pub(crate) fn canonical(name: &str) -> Option<&'static str> {
    match name.to_lowercase().as_str() {
        "train" | "training" => Some("train"),
        "val" | "valid" | "validation" => Some("val"),
        "test" | "testing" => Some("test"),
        _ => None,
    }
}

/// A split's normalised name: usual spellings are unified, others kept.
pub(crate) fn tidy(name: &str) -> String {
    canonical(name).map_or_else(|| name.to_string(), str::to_string)
}

/// Collects `(split, image)` pairs: splits in the order train…, val…, test…, others; indices ascending, without
/// duplicates.
pub(crate) fn gather(members: impl IntoIterator<Item = (String, usize)>) -> Vec<Split> {
    let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
    for (name, index) in members {
        by_name.entry(name).or_default().push(index);
    }
    let mut splits: Vec<Split> = by_name
        .into_iter()
        .map(|(name, mut indices)| {
            indices.sort_unstable();
            indices.dedup();
            Split { name, indices }
        })
        .collect();
    splits.sort_by_key(|split| (rank(&split.name), split.name.clone()));
    splits
}

fn rank(name: &str) -> usize {
    ["train", "val", "test"].iter().position(|prefix| name.starts_with(prefix)).unwrap_or(3)
}

pub(crate) fn by_share(names: &[&str], validation: f64, seed: u64) -> Result<Vec<Split>, DataError> {
    if !(0.0..=1.0).contains(&validation) {
        return Err(DataError::BadShare(validation));
    }
    let split_of = |name: &str| {
        if unit_hash(name, seed) < validation { "val" } else { "train" }
    };
    Ok(gather(names.iter().enumerate().map(|(index, name)| (split_of(name).to_string(), index))))
}

/// Splits by the first folder of each name; images outside folders are in no split.
pub(crate) fn by_folder(names: &[&str]) -> Vec<Split> {
    let in_folders = names.iter().enumerate().filter(|(_, name)| name.contains('/'));
    gather(in_folders.map(|(index, name)| (tidy(first_folder(name)), index)))
}

pub(crate) fn first_folder(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

/// Splits by list files. A line names an image with or without folder and extension; text after a space is ignored,
/// unless the whole line is a name.
pub(crate) fn by_lists(
    names: &[&str],
    lists: Vec<(String, PathBuf)>,
    problems: &mut Vec<Problem>,
) -> Vec<Split> {
    let mut index_of: HashMap<&str, Option<usize>> = HashMap::new();
    for (index, &name) in names.iter().enumerate() {
        let spellings = [name, without_extension(name), file_name(name), without_extension(file_name(name))];
        for spelling in spellings {
            // An ambiguous spelling resolves to neither image.
            let slot = index_of.entry(spelling).or_insert(Some(index));
            *slot = slot.filter(|&first| first == index);
        }
    }
    for (index, &name) in names.iter().enumerate() {
        index_of.insert(name, Some(index));
    }
    let find = |line: &str| {
        let line = line.replace('\\', "/");
        let below = line.trim_start_matches("./").trim_start_matches('/');
        let below = below.strip_prefix("images/").unwrap_or(below);
        index_of.get(below).copied().flatten()
    };
    let mut members = Vec::new();
    for (split, path) in lists {
        let lines = match read_list(&path) {
            Ok(lines) => lines,
            Err(error) => {
                problems.push(Problem::new(ProblemKind::UnreadableAnnotation, &path, error.to_string()));
                continue;
            }
        };
        for (number, line) in lines {
            match find(&line).or_else(|| find(line.split_whitespace().next()?)) {
                Some(index) => members.push((split.clone(), index)),
                None => {
                    let detail = format!("line {number} names `{line}`, which is no image of the data set");
                    problems.push(Problem::new(ProblemKind::TagWithoutImage, &path, detail));
                }
            }
        }
    }
    gather(members)
}

/// `train.txt` and similar lists in a folder.
pub(crate) fn usual_list_files(folder: &Path) -> Vec<(String, PathBuf)> {
    let lists = list_files(folder).unwrap_or_default();
    let is_usual = |name: &str| canonical(name).is_some() || matches!(name, "trainval" | "trainaug");
    lists.into_iter().filter(|(name, _)| is_usual(name)).collect()
}

/// A number in [0, 1) that depends only on name and seed, the same on every machine and in every version: FNV-1a over
/// the bytes, then SplitMix64's finaliser, because FNV's high bits are poor.
pub(crate) fn unit_hash(name: &str, seed: u64) -> f64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in seed.to_le_bytes().into_iter().chain(name.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// The `*.txt` files of a folder as (split name, path), sorted by name.
pub(crate) fn list_files(folder: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let path = item.map_err(|e| DataError::io(folder, e))?.path();
        let is_text = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"));
        if let (true, Some(stem)) = (is_text && path.is_file(), path.file_stem()) {
            found.push((tidy(&stem.to_string_lossy()), path.clone()));
        }
    }
    found.sort();
    Ok(found)
}

/// The first column of a list file, with line numbers from 1. Invalid UTF-8 is replaced, as in file names.
pub(crate) fn read_list(path: &Path) -> std::io::Result<Vec<(usize, String)>> {
    let bytes = annotation_file::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim).enumerate();
    Ok(lines.filter(|(_, line)| !line.is_empty()).map(|(i, line)| (i + 1, line.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_share_is_stable_when_images_are_added() {
        let names: Vec<String> = (0..2000).map(|i| format!("image {i}.jpg")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let few = by_share(&all[..1000], 0.25, 7).unwrap();
        let more = by_share(&all, 0.25, 7).unwrap();
        let kept: Vec<usize> = more[1].indices.iter().copied().filter(|&i| i < 1000).collect();
        assert_eq!((few[1].name.as_str(), &few[1].indices), ("val", &kept));
        // 250 expected of 1000; four standard deviations are 55.
        assert!((195..=305).contains(&kept.len()), "{}", kept.len());
        assert_ne!(by_share(&all[..1000], 0.25, 8).unwrap(), few);
    }

    #[test]
    fn shares_of_none_and_all_are_exact_and_others_are_refused() {
        assert_eq!(
            by_share(&["a", "b"], 0.0, 0).unwrap(),
            gather([("train".into(), 0), ("train".into(), 1)])
        );
        assert_eq!(by_share(&["a", "b"], 1.0, 0).unwrap(), gather([("val".into(), 0), ("val".into(), 1)]));
        assert!(by_share(&["a"], 1.5, 0).is_err() && by_share(&["a"], f64::NAN, 0).is_err());
    }

    #[test]
    fn splits_are_ordered_train_val_test_others() {
        let names = ["zebra", "test", "val2014", "trainaug", "train"];
        let splits = gather(names.iter().map(|name| (name.to_string(), 0)));
        let order: Vec<&str> = splits.iter().map(|split| split.name.as_str()).collect();
        assert_eq!(order, ["train", "trainaug", "val2014", "test", "zebra"]);
    }
}
