//! What a run remembers of its training files, so that one that is replaced under the same name is noticed when the run is
//! resumed. Size and time of modification decide where both are the same; where only the time differs, as after copying a data
//! set, the content decides, by its CRC-32.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use vitpcm_data::{ImageLimits, read_image};

use crate::begun_with::{self, KnownImage};
use crate::error::{Result, TrainError};
use crate::run_start::Start;

/// How many images a message names.
const MOST_NAMES: usize = 20;

/// A file as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRecord {
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u64,
    crc32: u32,
}

impl FileRecord {
    /// Of a file as it is now; `None` where there is none, or it cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let about = std::fs::metadata(path).ok()?;
        Some(Self { bytes: about.len(), modified: modified(&about), crc32: content_sum(path).ok()? })
    }

    /// Whether a file is still the same.
    fn is_of(&self, path: &Path) -> bool {
        let Ok(about) = std::fs::metadata(path) else { return false };
        self.bytes == about.len()
            && (self.modified == modified(&about) || content_sum(path).is_ok_and(|sum| sum == self.crc32))
    }
}

fn modified(about: &Metadata) -> u64 {
    let since_1970 = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since_1970.map_or(0, |time| time.as_nanos() as u64)
}

fn content_sum(path: &Path) -> io::Result<u32> {
    let (mut file, mut buffer, mut sum) = (File::open(path)?, vec![0; 1 << 16], crc32fast::Hasher::new());
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum.finalize()),
            length => sum.update(&buffer[..length]),
        }
    }
}

/// An image of a run with its files as they are found now: the image, empty where it is gone, then its masks.
pub(crate) type FoundImage = (KnownImage, Vec<PathBuf>);

/// Writes the list of the images that a run begins with.
pub(crate) fn remember(out: &Path, images: &[FoundImage]) -> Result<()> {
    let with_records = |(image, paths): &FoundImage| KnownImage { files: records(paths), ..image.clone() };
    let images: Vec<KnownImage> = images.par_iter().map(with_records).collect();
    begun_with::write(out, images.into_iter())
}

fn records(paths: &[PathBuf]) -> Vec<Option<FileRecord>> {
    paths.iter().map(|path| FileRecord::of(path)).collect()
}

/// Compares the images of a resumed run, in the order of its list, with what the run remembers of them. Images that changed
/// are refused; where the user accepts them, they are remembered as they are now, and what to say about them is returned.
pub(crate) fn check(
    out: &Path,
    start: Start,
    images: &[FoundImage],
    limits: &ImageLimits,
) -> Result<Option<String>> {
    let refuse = |reason: String| TrainError::RunFolder { path: out.to_owned(), reason };
    let mut known = begun_with::parse(&begun_with::read(out)?).map_err(refuse)?;
    let num_images = known.len().min(images.len());
    let has_changed = |&index: &usize| has_changed(&known[index].files, &images[index].1, limits);
    let changed: Vec<usize> = (0..num_images).into_par_iter().filter(has_changed).collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let mut names: Vec<&str> = changed.iter().map(|&index| known[index].image.as_str()).collect();
    let more = match names.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.truncate(MOST_NAMES);
    let summary = format!(
        "{} of the {num_images} training images, or their masks, changed since the run began: {}{more}",
        changed.len(),
        names.join(", ")
    );
    if start != Start::ResumeWithChangedImages {
        return Err(refuse(format!(
            "{summary}; restore them, train again in another folder, or continue with the changed ones by \
             --accept-changed-images"
        )));
    }
    for index in changed {
        known[index].files = records(&images[index].1);
    }
    begun_with::write(out, known.into_iter())?;
    Ok(Some(format!("{summary}; the run continues with the changed ones")))
}

/// Whether one of an image's files is another than the run remembers, if it remembers any. An image that is gone or cannot be
/// decoded is left to the loader, which names it and leaves it out.
fn has_changed(records: &[Option<FileRecord>], paths: &[PathBuf], limits: &ImageLimits) -> bool {
    let is_same = |(record, path): (&Option<FileRecord>, &PathBuf)| match record {
        Some(record) => record.is_of(path),
        None => !path.exists(),
    };
    !records.iter().zip(paths).all(is_same) && read_image(&paths[0], limits).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn another_time_is_no_change_and_another_content_of_the_same_size_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let write = |content: &str, seconds: u64| {
            std::fs::write(&path, content).unwrap();
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        write("as it was", 1);
        let record = FileRecord::of(&path).unwrap();
        assert!(record.is_of(&path));
        write("as it was", 2);
        assert!(record.is_of(&path));
        write("replaced!", 2);
        assert!(!record.is_of(&path));
        write("longer than it was", 1);
        assert!(!record.is_of(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(!record.is_of(&path) && FileRecord::of(&path).is_none());
    }
}
