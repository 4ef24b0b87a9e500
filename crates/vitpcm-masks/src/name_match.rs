//! Matches the files of two folders by name: by equal relative paths; else, if one folder has the other's paths one
//! level down (`masks/images/a.png` for `a.jpg`), by those; else by file names. Every command that reads masks for
//! images or other masks uses it and reports the result with [`NameMatch::remark`].

use crate::MaskError;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How the names of two folders correspond. A name is a path below the folder, without extension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NameMatch {
    /// Equal relative paths.
    #[default]
    Straight,
    /// The first folder's files are in this subfolder of it.
    FirstBelow(PathBuf),
    /// The second folder's files are in this subfolder of it.
    SecondBelow(PathBuf),
    /// By file name alone, unique within each folder.
    FileNames,
}

impl NameMatch {
    /// Compares two folders' names. Equal paths decide if there are any, otherwise the rule with most matches.
    /// Subfolders that match equally well are an error that names them.
    pub fn of<'a>(
        (first_folder, first): (&Path, impl IntoIterator<Item = &'a Path>),
        (second_folder, second): (&Path, impl IntoIterator<Item = &'a Path>),
    ) -> Result<NameMatch, MaskError> {
        let first: HashSet<&Path> = first.into_iter().collect();
        let second: HashSet<&Path> = second.into_iter().collect();
        if first.iter().any(|name| second.contains(name)) {
            return Ok(NameMatch::Straight);
        }
        let below_first = sub_folders_with_most(&first, &second);
        let below_second = sub_folders_with_most(&second, &first);
        let is_by_name = num_same_file_names(&first, &second) > below_first.0.max(below_second.0);
        let (folder, below, is_first) = match below_first.0 >= below_second.0 {
            true => (first_folder, below_first.1, true),
            false => (second_folder, below_second.1, false),
        };
        match (is_by_name, &below[..]) {
            (true, _) => Ok(NameMatch::FileNames),
            (false, []) => Ok(NameMatch::Straight),
            (false, [only]) if is_first => Ok(NameMatch::FirstBelow(only.clone())),
            (false, [only]) => Ok(NameMatch::SecondBelow(only.clone())),
            (false, [one, other, ..]) => {
                Err(MaskError::AmbiguousFolders { one: folder.join(one), other: folder.join(other) })
            }
        }
    }

    /// The key of a name in the first folder; `None` if it lies outside the subfolder.
    pub fn first_key(&self, name: &Path) -> Option<PathBuf> {
        match self {
            NameMatch::FirstBelow(folder) => name.strip_prefix(folder).ok().map(Path::to_path_buf),
            _ => self.key(name),
        }
    }

    /// The key of a name in the second folder; `None` if it lies outside the subfolder.
    pub fn second_key(&self, name: &Path) -> Option<PathBuf> {
        match self {
            NameMatch::SecondBelow(folder) => name.strip_prefix(folder).ok().map(Path::to_path_buf),
            _ => self.key(name),
        }
    }

    fn key(&self, name: &Path) -> Option<PathBuf> {
        match self {
            NameMatch::FileNames => name.file_name().map(PathBuf::from),
            _ => Some(name.to_path_buf()),
        }
    }

    /// The folder with the first folder's files.
    pub fn first_place(&self, folder: &Path) -> PathBuf {
        match self {
            NameMatch::FirstBelow(below) => folder.join(below),
            _ => folder.to_path_buf(),
        }
    }

    /// The folder with the second folder's files.
    pub fn second_place(&self, folder: &Path) -> PathBuf {
        match self {
            NameMatch::SecondBelow(below) => folder.join(below),
            _ => folder.to_path_buf(),
        }
    }

    /// One line on where files were found, if not in the obvious place.
    pub fn remark(&self, first: &Path, second: &Path) -> Option<String> {
        let below = |folder: &Path, place: PathBuf| {
            Some(format!("{}: looked one level down, in {}", folder.display(), place.display()))
        };
        match self {
            NameMatch::Straight => None,
            NameMatch::FirstBelow(_) => below(first, self.first_place(first)),
            NameMatch::SecondBelow(_) => below(second, self.second_place(second)),
            NameMatch::FileNames => Some(format!(
                "{} and {}: their sub-folders differ, so files are matched by file name",
                first.display(),
                second.display()
            )),
        }
    }
}

/// The subfolders of `deep` that contain most names of `flat`, and how many: several in case of a tie.
fn sub_folders_with_most(deep: &HashSet<&Path>, flat: &HashSet<&Path>) -> (usize, Vec<PathBuf>) {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for name in deep {
        let mut parts = name.components();
        if let Some(folder) = parts.next()
            && flat.contains(parts.as_path())
        {
            *counts.entry(PathBuf::from(folder.as_os_str())).or_default() += 1;
        }
    }
    let most = counts.values().copied().max().unwrap_or(0);
    counts.retain(|_, count| *count == most);
    (most, counts.into_keys().collect())
}

/// The number of common file names; zero if a folder has one twice.
fn num_same_file_names(first: &HashSet<&Path>, second: &HashSet<&Path>) -> usize {
    let file_names = |names: &HashSet<&Path>| -> HashSet<OsString> {
        names.iter().filter_map(|name| name.file_name()).map(OsString::from).collect()
    };
    let (in_first, in_second) = (file_names(first), file_names(second));
    match in_first.len() == first.len() && in_second.len() == second.len() {
        true => in_first.intersection(&in_second).count(),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(first: &[&str], second: &[&str], expected: NameMatch) {
        let (first, second) = (first.iter().map(Path::new), second.iter().map(Path::new));
        let found = NameMatch::of((Path::new("masks"), first), (Path::new("truth"), second));
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn names_match_straight_away_or_one_level_down_or_by_file_name() {
        let below = |folder: &str| PathBuf::from(folder);
        check(&["a", "x/b"], &["a", "x/b"], NameMatch::Straight);
        check(&["a"], &["a", "images/a", "images/b"], NameMatch::Straight);
        check(&["images/a", "images/b"], &["a", "b"], NameMatch::FirstBelow(below("images")));
        check(&["a", "b"], &["images/a", "images/b"], NameMatch::SecondBelow(below("images")));
        // The same file names in two folders: only the paths can decide.
        check(&["x/a", "y/a"], &["images/x/a", "images/y/a"], NameMatch::SecondBelow(below("images")));
        // The subfolder with most matches.
        check(&["a", "b", "c"], &["old/a", "new/a", "new/b"], NameMatch::SecondBelow(below("new")));
        // Two levels down, or spread over folders.
        check(&["a", "b"], &["deep/images/a", "deep/images/b"], NameMatch::FileNames);
        check(&["a", "b"], &["x/a", "y/b"], NameMatch::FileNames);
        check(&["a", "b"], &["c"], NameMatch::Straight);
    }

    #[test]
    fn two_sub_folders_that_match_alike_are_named() {
        let names = |names: &'static [&'static str]| names.iter().map(Path::new);
        let second = (Path::new("masks"), names(&["new/a", "new/b", "old/a", "old/b"]));
        let error = NameMatch::of((Path::new("images"), names(&["a", "b"])), second).unwrap_err().to_string();
        assert!(error.contains("masks/new and masks/old"), "{error}");
    }

    #[test]
    fn a_remark_names_the_folder_that_was_looked_in() {
        let remark = |way: NameMatch| way.remark(Path::new("masks"), Path::new("truth"));
        assert_eq!(remark(NameMatch::Straight), None);
        let below = remark(NameMatch::FirstBelow("images".into())).unwrap();
        assert_eq!(below, "masks: looked one level down, in masks/images");
        assert!(remark(NameMatch::FileNames).unwrap().contains("by file name"));
    }
}
