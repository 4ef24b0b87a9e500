//! The record of an output folder, `.vitpcm/record-RANK.jsonl`: which files were written and from which images. It
//! tells `--resume` which images are done, and distinguishes our files from those that a person edited or added. Each
//! rank appends to its own file; `results_folder` writes the lines.

use crate::json_lines;
use crate::outcome::usage;
use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The record's folder, within the output folder.
pub(crate) const FOLDER: &str = ".vitpcm";

/// The settings that determine a run's results: the model and the options, by name.
pub(crate) type Settings = BTreeMap<String, String>;

/// A line of the record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Line {
    /// A new run: images of earlier runs do not count as done.
    Begin(Run),
    /// Digests of files that are about to be put in place.
    Files(Vec<String>),
    /// An image whose results are in place.
    Image(DoneImage),
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) id: u64,
    pub(crate) command: String,
    pub(crate) settings: Settings,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct DoneImage {
    /// The run's id.
    pub(crate) run: u64,
    pub(crate) name: String,
    /// Milliseconds since 1970: if an image is done more than once, the last time counts.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) image: ImageState,
}

/// An image at the time its results were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageState {
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u64,
    /// Unknown for images whose results were found without a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    /// Its tags from a tag file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<Vec<usize>>,
}

impl ImageState {
    /// The state of an image with these tags, including its content's digest.
    pub(crate) fn of(path: &Path, tags: Option<&[usize]>) -> io::Result<ImageState> {
        let state = ImageState::without_content(path, tags)?;
        Ok(ImageState { sha256: Some(sha256_of_file(path)?), ..state })
    }

    /// The state without the content, so that the image need not be read.
    pub(crate) fn without_content(path: &Path, tags: Option<&[usize]>) -> io::Result<ImageState> {
        let about = std::fs::metadata(path)?;
        let (bytes, modified) = (about.len(), modified(&about));
        Ok(ImageState { bytes, modified, sha256: None, tags: tags.map(<[usize]>::to_vec) })
    }

    /// Whether the image at `path` is unchanged. It is read only if its time stamp differs, as it does for copies.
    fn is_still(&self, path: &Path, tags: Option<&[usize]>) -> bool {
        let Ok(now) = ImageState::without_content(path, tags) else { return false };
        let is_same_content = || {
            let known = self.sha256.as_deref();
            known.is_some_and(|known| sha256_of_file(path).is_ok_and(|found| found == known))
        };
        now.tags == self.tags
            && now.bytes == self.bytes
            && (now.modified == self.modified || is_same_content())
    }
}

/// The record of a folder.
#[derive(Default)]
pub(crate) struct FolderRecord {
    pub(crate) run: Option<Run>,
    images: HashMap<String, DoneImage>,
    /// Digests of file names and contents.
    pub(crate) files: HashSet<u128>,
}

impl FolderRecord {
    /// Reads the record of an output folder; empty if there is none.
    pub(crate) fn read(out: &Path) -> anyhow::Result<FolderRecord> {
        let mut record = FolderRecord::default();
        for path in record_files(out)? {
            json_lines::for_each(&path, |_, line| match line {
                Line::Begin(run) => record.run = Some(run),
                Line::Files(digests) => {
                    record.files.extend(digests.iter().filter_map(|hex| u128::from_str_radix(hex, 16).ok()));
                }
                Line::Image(image) => {
                    let is_newer = |known: &DoneImage| (known.run, known.at) <= (image.run, image.at);
                    if record.images.get(&image.name).is_none_or(is_newer) {
                        record.images.insert(image.name.clone(), image);
                    }
                }
            })?;
        }
        if record.run.is_none() && !(record.images.is_empty() && record.files.is_empty()) {
            let folder = out.join(FOLDER);
            return Err(usage(anyhow!(
                "{}: its record is damaged; remove it to keep the existing results as they are, \
                 or choose another --out",
                folder.display()
            )));
        }
        let id = record.run.as_ref().map(|run| run.id);
        record.images.retain(|_, image| Some(image.run) == id);
        Ok(record)
    }

    /// Whether there is a record; earlier versions wrote none.
    pub(crate) fn exists(&self) -> bool {
        self.run.is_some()
    }

    /// What the record says about an image.
    pub(crate) fn image(&self, name: &str, path: &Path, tags: Option<&[usize]>) -> Known {
        match self.images.get(name) {
            None => Known::No,
            Some(done) if done.image.is_still(path, tags) => Known::Same,
            Some(_) => Known::Changed,
        }
    }

    /// Whether vitpcm ever wrote a file of this name (a path below the output folder).
    pub(crate) fn has_written(&self, name: &str) -> bool {
        self.files.contains(&place_digest(name))
    }

    /// How the recorded run differs from one with these settings, if it has finished any images.
    pub(crate) fn differences(&self, command: &str, settings: &Settings) -> Vec<String> {
        let Some(run) = self.run.as_ref().filter(|_| !self.images.is_empty()) else { return Vec::new() };
        if run.command != command {
            return vec![format!("they were made by `{}`", run.command)];
        }
        let names = run.settings.keys().chain(settings.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        let value =
            |settings: &Settings, name: &String| settings.get(name).map_or("not given", |v| v).to_owned();
        let difference = |name: &String| {
            let (then, now) = (value(&run.settings, name), value(settings, name));
            (then != now).then(|| format!("{name} was {then} and is {now} now"))
        };
        names.into_iter().filter_map(difference).collect()
    }
}

/// What the record says about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing.
    No,
    /// Done, and the image is the same.
    Same,
    /// Done, but the image or its tags have changed since.
    Changed,
}

/// The record files of all ranks, the first rank's first.
pub(crate) fn record_files(out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = out.join(FOLDER);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("{}", folder.display())),
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    Ok(files)
}

/// The file that a rank appends to.
pub(crate) fn record_file(out: &Path, rank: usize) -> PathBuf {
    out.join(FOLDER).join(format!("record-{rank}.jsonl"))
}

fn modified(about: &Metadata) -> u64 {
    let since_1970 = about.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since_1970.map_or(0, |since| since.as_nanos() as u64)
}

/// The SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash_file(path, &mut hash)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn hash_file(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            length => hash.update(&buffer[..length]),
        }
    }
}

fn finished(hash: Sha256) -> u128 {
    let bytes = hash.finalize();
    u128::from_be_bytes(bytes[..16].try_into().expect("16 of 32 bytes"))
}

/// Digest of a file name below an output folder.
pub(crate) fn place_digest(name: &str) -> u128 {
    finished(Sha256::new_with_prefix(format!("place\0{name}")))
}

/// Digest of a name and the content of the file `at`.
pub(crate) fn content_digest(name: &str, at: &Path) -> io::Result<u128> {
    let mut hash = Sha256::new_with_prefix(format!("content\0{name}\0"));
    hash_file(at, &mut hash)?;
    Ok(finished(hash))
}

/// Digest of a name with the length and time stamp of the file `at`: for photographs, which take long to read.
pub(crate) fn stamp_digest(name: &str, at: &Path) -> io::Result<u128> {
    let about = std::fs::metadata(at)?;
    let stamp = format!("stamp\0{name}\0{}\0{}", about.len(), modified(&about));
    Ok(finished(Sha256::new_with_prefix(stamp)))
}
