//! Reviews on disk, one JSON object per line, appended as images are done, so that an interrupted, killed or resumed
//! run keeps them and memory does not grow. Each rank has its own file.

use crate::json_lines::{self, JsonLines};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use vitpcm::Review;
use vitpcm_masks::atomic_file;

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    /// Time of writing in milliseconds since 1970: if an image is done more than once, the last time counts.
    at: u64,
    #[serde(flatten)]
    review: R,
}

fn stamped(review: &Review) -> Line<&Review> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Line { at: since_1970.as_millis() as u64, review }
}

/// An append-only file.
pub(crate) struct ReviewFile(JsonLines);

impl ReviewFile {
    /// Opens or creates a file.
    pub(crate) fn append_to(path: &Path) -> anyhow::Result<ReviewFile> {
        JsonLines::append_to(path).map(ReviewFile)
    }

    pub(crate) fn append(&mut self, review: &Review) -> anyhow::Result<()> {
        self.0.append(&stamped(review))
    }
}

/// Writes a file of few reviews atomically.
pub(crate) fn write_all(path: &Path, reviews: &[Review]) -> anyhow::Result<()> {
    let line = |review: &Review| json_lines::line(&stamped(review));
    let lines = reviews.iter().map(line).collect::<anyhow::Result<Vec<_>>>()?.concat();
    atomic_file::write(path, |file| file.write_all(&lines)).with_context(|| format!("{}", path.display()))
}

/// All reviews of a small file; none if it is missing.
pub(crate) fn read_all(path: &Path) -> anyhow::Result<Vec<Review>> {
    let mut reviews = Vec::new();
    json_lines::for_each(path, |_, line: Line<Review>| reviews.push(line.review))?;
    Ok(reviews)
}

/// Where a review is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    file: usize,
    offset: u64,
    at: u64,
    pub(crate) confidence: f32,
}

/// The part of a line that [`newest_places`] parses.
#[derive(Deserialize)]
struct Key {
    name: String,
    #[serde(alias = "sureness")]
    confidence: f32,
}

/// The newest review of each `wanted` name, over several files.
pub(crate) fn newest_places(
    paths: &[PathBuf],
    wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<HashMap<String, Place>> {
    let mut places: HashMap<String, Place> = HashMap::new();
    for (file, path) in paths.iter().enumerate() {
        json_lines::for_each(path, |offset, Line { at, review: Key { name, confidence } }| {
            if wanted(&name) && places.get(&name).is_none_or(|known| known.at <= at) {
                places.insert(name, Place { file, offset, at, confidence });
            }
        })?;
    }
    Ok(places)
}

/// Reads reviews at the given places, in order.
pub(crate) fn read_at<'a>(
    paths: &[PathBuf],
    places: impl IntoIterator<Item = &'a Place>,
    mut take: impl FnMut(Review),
) -> anyhow::Result<()> {
    let mut readers: HashMap<usize, BufReader<File>> = HashMap::new();
    let mut bytes = Vec::new();
    for place in places {
        let path = &paths[place.file];
        let mut read = || {
            let reader = match readers.entry(place.file) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(BufReader::new(File::open(path)?))
                }
            };
            // Seeks within the buffer if possible: places usually follow each other.
            let position = reader.stream_position()?;
            reader.seek_relative(place.offset as i64 - position as i64)?;
            bytes.clear();
            reader.read_until(b'\n', &mut bytes)
        };
        read().with_context(|| format!("{}", path.display()))?;
        if let Ok(line) = serde_json::from_slice::<Line<Review>>(&bytes) {
            take(line.review);
        }
    }
    Ok(())
}

impl Place {
    /// Sort key for reading a file from start to end.
    pub(crate) fn reading_order(&self) -> (usize, u64) {
        (self.file, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::review;
    use super::*;

    #[test]
    fn the_newest_review_of_an_image_counts_and_lines_cut_short_do_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["0.jsonl", "1.jsonl", "2.jsonl"].map(|name| folder.path().join(name));
        let mut first = ReviewFile::append_to(&paths[0]).unwrap();
        for name in ["a", "b", "c"] {
            first.append(&review(name, None, [1.0, 0.1, 0.2])).unwrap();
        }
        drop(first);
        // Simulates a kill in the middle of a line, then continues.
        let whole = std::fs::read(&paths[0]).unwrap();
        std::fs::write(&paths[0], &whole[..whole.len() - 20]).unwrap();
        let mut newer = review("a", None, [1.0, 0.1, 0.2]);
        newer.confidence = 0.25;
        ReviewFile::append_to(&paths[0]).unwrap().append(&newer).unwrap();
        ReviewFile::append_to(&paths[1]).unwrap().append(&review("d", None, [1.0, 0.1, 0.2])).unwrap();
        // As earlier versions wrote it.
        let named_before = std::fs::read_to_string(&paths[1]).unwrap().replace("confidence", "sureness");
        std::fs::write(&paths[1], named_before).unwrap();

        let places = newest_places(&paths, |name| name != "b").unwrap();
        let mut names: Vec<&String> = places.keys().collect();
        names.sort();
        assert_eq!(names, ["a", "d"]);
        assert_eq!(places["a"].confidence, 0.25);
        let mut found = Vec::new();
        read_at(&paths, [&places["d"], &places["a"]], |review| found.push(review)).unwrap();
        assert_eq!((found[0].name.as_str(), &found[1]), ("d", &newer));
    }

    #[test]
    fn few_reviews_are_written_and_read_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("validation.jsonl");
        assert!(read_all(&path).unwrap().is_empty());
        let reviews = [review("a", Some(vec![1]), [1.0, 0.1, 0.2]), review("b", None, [1.0, 0.3, 0.2])];
        write_all(&path, &reviews).unwrap();
        assert_eq!(read_all(&path).unwrap(), reviews);
    }
}
