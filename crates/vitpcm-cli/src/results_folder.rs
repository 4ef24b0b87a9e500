//! The output folder of `segment`, `refine` and `export`. Files are written to a staging folder and then moved into
//! place, but never over a file that vitpcm did not write or that was edited since.

use crate::file_guard::is_same_file;
use crate::folder_record::{
    self, DoneImage, FOLDER, FolderRecord, ImageState, Line, Run, Settings, content_digest, place_digest,
    record_file, record_files, stamp_digest,
};
use crate::json_lines::{self, JsonLines};
use crate::outcome::usage;
use crate::output::{self, Messages};
use anyhow::{Context, anyhow};
use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use vitpcm_exports::{Destination, ExportError, Folder, Photograph};
use vitpcm_masks::atomic_file;
use vitpcm_train::Ranks;

/// What happens to an existing file that we did not write or that was edited since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edited {
    /// It stays, and our version goes to `.vitpcm/new`.
    Stays,
    /// It is moved to `.vitpcm/replaced-N`.
    IsSetAside,
}

/// How a run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All images are processed.
    Fresh,
    /// Finished images are skipped.
    Resumed,
}

/// An open output folder.
pub(crate) struct ResultsFolder {
    out: PathBuf,
    run: u64,
    edited: Edited,
    /// Where existing files are moved to.
    aside: PathBuf,
    state: Mutex<State>,
}

struct State {
    lines: JsonLines,
    /// Digests of file names and contents.
    files: HashSet<u128>,
    /// Names of files that were not ours, and what happened to them.
    foreign: Vec<(String, Edited)>,
}

impl ResultsFolder {
    /// Opens a folder that the first rank has locked, with its record. All ranks call this together.
    pub(crate) fn open(
        out: &Path,
        record: FolderRecord,
        start: Start,
        (command, settings): (&str, Settings),
        ranks: &Ranks,
    ) -> anyhow::Result<ResultsFolder> {
        let FolderRecord { run, files, .. } = record;
        let folder = out.join(FOLDER);
        // A run with other settings that finished no image is not continued.
        let is_same = |run: &Run| run.command == command && run.settings == settings;
        let going_on = run.filter(|run| start == Start::Resumed && is_same(run));
        let (id, is_new) = match going_on {
            Some(run) => (run.id, false),
            None => (since_1970().as_nanos() as u64, true),
        };
        let id = match ranks.size() {
            1 => id,
            _ => {
                let bytes = ranks.broadcast(id.to_le_bytes().to_vec());
                u64::from_le_bytes(bytes.try_into().unwrap_or_default())
            }
        };
        if ranks.is_first() {
            std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
            if std::fs::symlink_metadata(&folder).is_ok_and(|known| known.is_symlink()) {
                return Err(usage(anyhow!(
                    "{}: it is a link; expected a folder of vitpcm's own",
                    folder.display()
                )));
            }
            remove_folder(&folder.join("staging"))?;
            if is_new {
                let run = Run { id, command: command.to_owned(), settings };
                begin(out, run, &files)?;
            }
        }
        ranks.barrier(); // no rank begins before that is done
        let aside = (1..).map(|n| folder.join(format!("replaced-{n}"))).find(|path| !path.exists());
        Ok(ResultsFolder {
            out: out.to_path_buf(),
            run: id,
            edited: match start {
                Start::Fresh => Edited::IsSetAside,
                Start::Resumed => Edited::Stays,
            },
            aside: aside.unwrap_or_else(|| folder.join("replaced")),
            state: Mutex::new(State {
                lines: JsonLines::append_to(&record_file(out, ranks.rank()))?,
                files,
                foreign: Vec::new(),
            }),
        })
    }

    /// Where files are written before they are moved into place, under the same relative names.
    pub(crate) fn staging(&self) -> PathBuf {
        self.own_folder("staging")
    }

    /// Writes a file of the folder.
    pub(crate) fn write_file(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let staged = self.staged(name).with_context(|| format!("{}", self.out.join(name).display()))?;
        output::write_file(&staged, bytes)?;
        self.publish(&[name.to_owned()])
    }

    /// A path in the staging folder; creates its parent folders.
    pub(crate) fn staged(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.staging().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        Ok(path)
    }

    /// Moves staged files into place.
    pub(crate) fn publish(&self, names: &[String]) -> anyhow::Result<()> {
        self.publish_over(names, self.edited)
    }

    /// Moves staged files over damaged ones.
    pub(crate) fn publish_over_damage(&self, names: &[String]) -> anyhow::Result<()> {
        self.publish_over(names, Edited::IsSetAside)
    }

    fn publish_over(&self, names: &[String], edited: Edited) -> anyhow::Result<()> {
        names.iter().try_for_each(|name| {
            self.put_in_place(name, content_digest, edited)
                .with_context(|| format!("{}", self.out.join(name).display()))
        })
    }

    /// Records that an image's results are in place.
    pub(crate) fn image_is_done(&self, name: &str, image: ImageState) -> anyhow::Result<()> {
        let at = since_1970().as_millis() as u64;
        let image = DoneImage { run: self.run, name: name.to_owned(), at, image };
        self.state().lines.append(&Line::Image(image))
    }

    /// Reports which files were not ours, and where they or our versions are.
    pub(crate) fn say_what_was_edited(&self, messages: &Messages) {
        let state = self.state();
        for edited in [Edited::Stays, Edited::IsSetAside] {
            let names =
                || state.foreign.iter().filter(|(_, what)| *what == edited).map(|(name, _)| name.as_str());
            let (count, shown) = (names().count(), names().take(3).collect::<Vec<_>>().join(", "));
            if count == 0 {
                continue;
            }
            let what = match edited {
                Edited::Stays => {
                    format!(
                        "left as they are; vitpcm's own versions are in {}",
                        self.own_folder("new").display()
                    )
                }
                Edited::IsSetAside => format!("moved to {}", self.aside.display()),
            };
            let more = if count > 3 { ", …" } else { "" };
            messages.note(format!(
                "{}: changed since vitpcm wrote them, or not written by it: {shown}{more} ({count} in all); {what}",
                self.out.display()
            ));
        }
    }

    fn own_folder(&self, name: &str) -> PathBuf {
        self.out.join(FOLDER).join(name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a staged file into place, unless a file that is not ours is there. `digest` identifies its content.
    fn put_in_place(
        &self,
        name: &str,
        digest: fn(&str, &Path) -> io::Result<u128>,
        edited: Edited,
    ) -> io::Result<()> {
        let (staged, place) = (self.staging().join(name), self.out.join(name));
        let own = digest(name, &staged)?;
        let found = match std::fs::symlink_metadata(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            _ => Some([content_digest(name, &place).ok(), stamp_digest(name, &place).ok()]),
        };
        if found.is_some_and(|found| found.contains(&Some(own))) {
            self.note_files([place_digest(name), own])?;
            return std::fs::remove_file(&staged);
        }
        let is_ours = |found: [Option<u128>; 2]| {
            let state = self.state();
            found.iter().flatten().any(|digest| state.files.contains(digest))
        };
        // Recorded first, so that a file left by a kill is still known to be ours.
        if found.is_none_or(is_ours) {
            self.note_files([place_digest(name), own])?;
            return move_file(&staged, &place);
        }
        self.state().foreign.push((name.to_owned(), edited));
        match edited {
            Edited::Stays => move_file(&staged, &self.own_folder("new").join(name)),
            Edited::IsSetAside => {
                move_file(&place, &self.aside.join(name))?;
                self.note_files([place_digest(name), own])?;
                move_file(&staged, &place)
            }
        }
    }

    fn note_files(&self, digests: [u128; 2]) -> io::Result<()> {
        let mut state = self.state();
        let new: Vec<u128> = digests.into_iter().filter(|digest| !state.files.contains(digest)).collect();
        if new.is_empty() {
            return Ok(());
        }
        state.lines.append(&Line::Files(hex(&new))).map_err(io::Error::other)?;
        state.files.extend(new);
        Ok(())
    }
}

impl Drop for ResultsFolder {
    fn drop(&mut self) {
        // Empty folders and failed files; the next run removes what cannot be removed now.
        let _ = remove_folder(&self.staging());
    }
}

/// Writes the record of a new run, including the files of earlier ones, and deletes the old records.
fn begin(out: &Path, run: Run, files: &HashSet<u128>) -> anyhow::Result<()> {
    let path = record_file(out, 0);
    let files: Vec<u128> = files.iter().copied().collect();
    let lines = [json_lines::line(&Line::Begin(run))?, json_lines::line(&Line::Files(hex(&files)))?].concat();
    output::write_file(&path, &lines)?;
    for other in record_files(out)?.into_iter().filter(|other| *other != path) {
        std::fs::remove_file(&other).with_context(|| format!("{}", other.display()))?;
    }
    Ok(())
}

fn hex(digests: &[u128]) -> Vec<String> {
    digests.iter().map(|digest| format!("{digest:032x}")).collect()
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn remove_folder(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Moves a file and creates folders. A results folder may be a link to another disk, which needs a copy.
fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to.parent().unwrap_or(to))?;
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            let mut source = std::fs::File::open(from)?;
            atomic_file::write(to, |file| io::copy(&mut source, file).map(drop))?;
            std::fs::remove_file(from)
        }
        result => result,
    }
}

/// An export's folder within a results folder.
pub(crate) struct ExportFolder<'a> {
    results: &'a ResultsFolder,
    /// Its name with a `/`, or empty for the results folder itself.
    prefix: String,
    staging: Folder,
    current: String,
}

impl<'a> ExportFolder<'a> {
    pub(crate) fn new(results: &'a ResultsFolder, name: &str) -> Self {
        let prefix = if name.is_empty() { String::new() } else { format!("{name}/") };
        let staging = Folder::new(results.staging().join(name));
        ExportFolder { results, prefix, staging, current: String::new() }
    }

    fn put_in_place(
        &self,
        path: &str,
        digest: fn(&str, &Path) -> io::Result<u128>,
    ) -> Result<(), ExportError> {
        let name = format!("{}{path}", self.prefix);
        let result = self.results.put_in_place(&name, digest, self.results.edited);
        result.map_err(|source| ExportError::Io { path: self.results.out.join(name), source })
    }
}

impl Destination for ExportFolder<'_> {
    fn begin(&mut self, path: &str) -> Result<(), ExportError> {
        path.clone_into(&mut self.current);
        self.staging.begin(path)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.staging.write(bytes)
    }

    fn end(&mut self) -> Result<(), ExportError> {
        self.staging.end()?;
        self.put_in_place(&self.current, content_digest)
    }

    fn place(&mut self, path: &str, photograph: Photograph<'_>) -> Result<(), ExportError> {
        let source = match photograph {
            Photograph::Elsewhere => return Ok(()),
            Photograph::Bytes(bytes) => return self.file(path, bytes),
            Photograph::Link(source) | Photograph::Copy(source) => source,
        };
        let place = self.results.out.join(&self.prefix).join(path);
        if is_same_file(source, &place) || is_copy(source, &place) {
            let name = format!("{}{path}", self.prefix);
            let noted = stamp_digest(&name, &place)
                .and_then(|stamp| self.results.note_files([place_digest(&name), stamp]));
            return noted.map_err(|source| ExportError::Io { path: place, source });
        }
        self.staging.place(path, photograph)?;
        self.put_in_place(path, stamp_digest)
    }
}

/// Whether two files have the same content.
fn is_copy(source: &Path, copy: &Path) -> bool {
    let length = |path: &Path| std::fs::metadata(path).map(|about| about.len()).ok();
    let content = |path: &Path| folder_record::sha256_of_file(path).ok();
    length(copy).is_some_and(|bytes| length(source) == Some(bytes)) && content(source) == content(copy)
}
