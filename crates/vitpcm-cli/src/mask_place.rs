//! Finds masks or score files in the folder that an option names: directly in it or one level down, e.g. in `images` if
//! a data set's whole folder was segmented. Reports a match one level down in one line.

use crate::output::Messages;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vitpcm_masks::{MaskError, NameMatch};

/// The folder in which `files` (those of `folder`, by name) match the images' names; `None` if no level does.
pub(crate) fn place_of(
    folder: &Path,
    files: &BTreeMap<PathBuf, PathBuf>,
    images: &[PathBuf],
    messages: &Messages,
) -> Result<Option<PathBuf>, MaskError> {
    let names = files.keys().map(PathBuf::as_path);
    let way = NameMatch::of((Path::new(""), images.iter().map(PathBuf::as_path)), (folder, names))?;
    match way {
        NameMatch::Straight if images.iter().any(|name| files.contains_key(name)) => {}
        NameMatch::SecondBelow(_) => say(&way, Path::new(""), folder, messages),
        _ => return Ok(None),
    }
    Ok(Some(way.second_place(folder)))
}

/// The folder of true masks if a data set's own folder is named, whose images have the same names.
pub(crate) fn truth_place(folder: &Path, messages: &Messages) -> PathBuf {
    let masks = folder.join("masks");
    if masks.is_dir() && folder.join("images").is_dir() {
        messages.note(format!("{}: a data set; its true masks are in {}", folder.display(), masks.display()));
        return masks;
    }
    folder.to_path_buf()
}

/// Reports where files were found, if not in the obvious place.
pub fn say(way: &NameMatch, first: &Path, second: &Path, messages: &Messages) {
    way.remark(first, second).into_iter().for_each(|remark| messages.note(remark));
}

/// Where the results with these names are: the folder, or its only subfolder that has any.
pub(crate) fn results_place<'a>(folder: &Path, names: impl IntoIterator<Item = &'a str>) -> PathBuf {
    let mut folders = names.into_iter().map(|name| name.split_once('/').map(|(first, _)| first));
    match folders.next().flatten() {
        Some(first) if folders.all(|other| other == Some(first)) => folder.join(first),
        _ => folder.to_path_buf(),
    }
}
