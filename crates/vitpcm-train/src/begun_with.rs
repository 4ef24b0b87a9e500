//! The images that a run began with, `last/images.jsonl`: so that it goes on where some of them are gone since. Each keeps its
//! place in the order, empty like that of an image that cannot be read. Any other change of names or tags makes it another data
//! set. The list also tells files that were replaced under the same name; those are `file_record`'s.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vitpcm_data::{MaskedImage, TaggedImage};
use vitpcm_masks::{atomic_file, text_file};

use crate::error::{Result, TrainError};
use crate::file_record::FileRecord;

/// An image as a run remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownImage {
    pub(crate) image: String,
    /// Class indices; none where a run learns from masks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<u8>,
    /// Of the image and then of its masks, `null` for a file that was not there. Runs of earlier versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<Option<FileRecord>>,
}

impl KnownImage {
    fn has_name_and_tags_of(&self, other: &Self) -> bool {
        (&self.image, &self.tags) == (&other.image, &other.tags)
    }
}

impl From<&TaggedImage> for KnownImage {
    fn from(image: &TaggedImage) -> Self {
        Self { image: image.name.clone(), tags: image.tags.as_slice().to_vec(), files: Vec::new() }
    }
}

impl From<&MaskedImage> for KnownImage {
    fn from(image: &MaskedImage) -> Self {
        Self { image: image.name.clone(), tags: Vec::new(), files: Vec::new() }
    }
}

fn list_path(out: &Path) -> PathBuf {
    out.join("last").join("images.jsonl")
}

/// Whether a run folder has the list. Runs of earlier versions have none.
pub(crate) fn exists(out: &Path) -> bool {
    list_path(out).is_file()
}

/// Writes the list into a run folder, whole or not at all.
pub(crate) fn write(out: &Path, images: impl Iterator<Item = KnownImage>) -> Result<()> {
    let path = list_path(out);
    let folder = out.join("last");
    std::fs::create_dir_all(&folder).map_err(TrainError::io(&folder))?;
    let written = atomic_file::write(&path, |file| {
        for image in images {
            serde_json::to_writer(&mut *file, &image)?;
            file.write_all(b"\n")?;
        }
        Ok(())
    });
    written.map_err(TrainError::io(&path))
}

/// The bytes of a run folder's list; none where there is none.
pub(crate) fn read(out: &Path) -> Result<Vec<u8>> {
    let path = list_path(out);
    match exists(out) {
        true => text_file::read(&path).map(String::into_bytes).map_err(TrainError::io(&path)),
        false => Ok(Vec::new()),
    }
}

/// The images of a list.
pub(crate) fn parse(list: &[u8]) -> std::result::Result<Vec<KnownImage>, String> {
    let lines = list.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let known: std::result::Result<_, _> = lines.map(serde_json::from_slice).collect();
    known.map_err(|error| format!("last/images.jsonl: {error}"))
}

/// The images of a list, in its order, each with its position among those `found` now, where it still is. What was found but is
/// not on the list, or has other tags there, is an error in words, and so is a list of which less than half is left.
pub(crate) fn places(
    list: &[u8],
    found: impl Iterator<Item = KnownImage>,
) -> std::result::Result<Vec<(KnownImage, Option<usize>)>, String> {
    let known = parse(list)?;
    if known.is_empty() {
        let reason = "the run began with another data set: training images, tags or whether there are pseudo-masks differ";
        return Err(reason.to_owned());
    }
    // Both are in the data set's order.
    let mut found = found.enumerate().peekable();
    let mut place = |image: &KnownImage| {
        found.next_if(|(_, next)| next.has_name_and_tags_of(image)).map(|(index, _)| index)
    };
    let places: Vec<Option<usize>> = known.iter().map(&mut place).collect();
    if let Some((_, KnownImage { image, .. })) = found.next() {
        let fault = match known.iter().any(|known| known.image == image) {
            true => "had other tags",
            false => "was not in it",
        };
        return Err(format!("the run began with another data set: {image} {fault}"));
    }
    let (num_left, num_known) = (places.iter().flatten().count(), known.len());
    if 2 * num_left < num_known {
        return Err(format!(
            "only {num_left} of the {num_known} images that the run began with are there; is the data set complete?"
        ));
    }
    Ok(known.into_iter().zip(places).collect())
}

/// What to say where images are gone.
pub(crate) fn warning(num_gone: usize, num_images: usize) -> String {
    let (are, them) = if num_gone == 1 { ("is", "it") } else { ("are", "them") };
    format!(
        "{num_gone} of the {num_images} images that the run began with {are} gone; the run goes on without {them}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(names: &str) -> Vec<KnownImage> {
        let image = |name: &str| KnownImage {
            image: name.to_owned(),
            tags: vec![name.len() as u8],
            files: Vec::new(),
        };
        names.split_whitespace().map(image).collect()
    }

    #[track_caller]
    fn check(found: Vec<KnownImage>, expected: std::result::Result<&[Option<usize>], &str>) {
        let folder = tempfile::tempdir().unwrap();
        assert!(!exists(folder.path()) && read(folder.path()).unwrap().is_empty());
        write(folder.path(), images("a \"b\" c d").into_iter()).unwrap();
        let places = places(&read(folder.path()).unwrap(), found.into_iter());
        match (places, expected) {
            (Ok(places), Ok(expected)) => {
                let (known, places): (Vec<_>, Vec<_>) = places.into_iter().unzip();
                assert_eq!((known, places.as_slice()), (images("a \"b\" c d"), expected));
            }
            (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn images_that_are_gone_leave_their_places_and_nothing_else_may_change() {
        check(images("a \"b\" c d"), Ok(&[Some(0), Some(1), Some(2), Some(3)]));
        check(images("a c d"), Ok(&[Some(0), None, Some(1), Some(2)]));
        check(images("\"b\" c"), Ok(&[None, Some(0), Some(1), None]));
        check(images("c"), Err("only 1 of the 4"));
        check(images(""), Err("only 0 of the 4"));
        check(images("a c cc d"), Err("cc was not in it"));
        check(images("a \"b\" c d e"), Err("e was not in it"));
        let mut other = images("a \"b\" c d");
        other[2].tags.push(9);
        check(other, Err("c had other tags"));
    }

    #[test]
    fn a_damaged_list_is_said_to_be_one() {
        let reason = places(b"{\"image\":\"a\"}\n{\"ima", images("a").into_iter()).unwrap_err();
        assert!(reason.contains("last/images.jsonl"), "{reason}");
    }
}
