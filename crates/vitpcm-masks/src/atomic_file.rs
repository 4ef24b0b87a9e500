//! Atomic file writes: to a temporary file in the same folder, then renamed.

use crate::machine;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A file being written: [`AtomicFile::commit`] creates or replaces `path`.
///
/// If dropped before, the temporary file is removed and `path` stays as it was.
#[derive(Debug)]
pub struct AtomicFile {
    writer: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
}

/// Temporary files of this process that are neither committed nor removed.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all temporary files of this process, for a program that is about to exit. No further file can be started.
pub fn remove_unfinished() {
    let unfinished = unfinished();
    for temporary in unfinished.iter() {
        // A file that was just committed is already gone.
        let _ = fs::remove_file(temporary);
    }
    std::mem::forget(unfinished);
}

impl AtomicFile {
    /// Starts a file for `path`. If `path` is a link, its target is replaced. Folders, devices and pipes are refused.
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        let path = &replaceable(path)?;
        let temporary = temporary_beside(path)?;
        let mut unfinished = unfinished();
        let writer = BufWriter::new(File::create_new(&temporary)?);
        unfinished.insert(temporary.clone());
        drop(unfinished);
        Ok(AtomicFile { writer, temporary, path: path.to_path_buf() })
    }

    /// Syncs the file to disk and renames it into place.
    pub fn commit(mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

/// The real path behind `path`; an error if it is not a file, because a rename would destroy it.
fn replaceable(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_path_buf()),
        Err(error) => Err(error),
        Ok(known) if known.is_symlink() => match fs::metadata(path) {
            Ok(target) if target.is_file() => fs::canonicalize(path),
            Ok(_) => Err(not_a_file()),
            // A dangling link: nothing to lose.
            Err(_) => Ok(path.to_path_buf()),
        },
        Ok(known) if known.is_file() => Ok(path.to_path_buf()),
        Ok(_) => Err(not_a_file()),
    }
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // After a commit this does nothing. A leftover that cannot be removed must not hide the original error.
        let _ = fs::remove_file(&self.temporary);
        unfinished().remove(&self.temporary);
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.writer.seek(to)
    }
}

/// Calls `fill` with a writer and commits the file to `path`.
///
/// On failure the temporary file is removed and `path` stays as it was.
pub fn write(path: &Path, fill: impl FnOnce(&mut AtomicFile) -> io::Result<()>) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    fill(&mut file)?;
    file.commit()
}

/// Distinguishes this process from an earlier one with the same id, which is common in containers.
static LAUNCH: LazyLock<String> =
    LazyLock::new(|| format!("{:08x}n", RandomState::new().build_hasher().finish() as u32));

/// Removes temporary files that ended processes of this machine left below a folder.
pub(crate) fn remove_leftovers(folder: &Path) {
    let is_gone = |(process, launch): (u32, &str)| match process == std::process::id() {
        true => !launch.starts_with(LAUNCH.as_str()),
        false => !machine::is_running(process),
    };
    for entry in walkdir::WalkDir::new(folder).into_iter().flatten() {
        let writer = entry.file_name().to_str().and_then(writer_of);
        if entry.file_type().is_file() && writer.is_some_and(is_gone) {
            // One that stays does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The process id and the unique part of a temporary file's name: 71 and `5f00c3a1n3` of `.mask.png.71-5f00c3a1n3.tmp`.
/// Model files, whose crate does not depend on this one, use the same pattern.
fn writer_of(name: &str) -> Option<(u32, &str)> {
    let name = name.strip_prefix('.')?.strip_suffix(".tmp")?;
    let (process, own) = name.rsplit_once('.')?.1.split_once('-')?;
    let is_own = !own.is_empty() && own.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_own.then_some((process.parse().ok()?, own))
}

/// A unique name in the same folder, so that the rename stays on one file system.
///
/// Leftovers of killed processes are removed when their folder is next locked
/// ([`FolderLock::take`](crate::FolderLock::take)).
pub fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    let (process, count) = (std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    temporary.push(format!(".{process}-{}{count}.tmp", *LAUNCH));
    Ok(path.with_file_name(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn links_keep_and_what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("target"), "old").unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        write(&at("link"), |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "new");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());

        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        fs::create_dir(at("folder")).unwrap();
        for name in ["pipe", "folder"] {
            let error = write(&at(name), |file| file.write_all(b"new")).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{name}: {error}");
        }
        use std::os::unix::fs::FileTypeExt;
        assert!(fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
    }

    #[test]
    fn only_what_processes_that_are_gone_left_half_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("last")).unwrap();
        let own = temporary_beside(Path::new("a.png")).unwrap();
        let stay = [own.to_str().unwrap(), "last/mask.png", ".notes.tmp", ".a.b-c.tmp", "x.4294967295-0.tmp"];
        // The last one as from an earlier process with our id, in a previous start of a container.
        let predecessor = format!("last/.state.safetensors.{}-00c0ffeen12.tmp", std::process::id());
        let go = [".mask.png.4294967295-0.tmp", ".model.4294967294-a1B2c3.tmp", predecessor.as_str()];
        for name in stay.iter().chain(&go) {
            fs::write(folder.path().join(name), "half").unwrap();
        }
        remove_leftovers(folder.path());
        let is_there = |name: &&str| folder.path().join(name).exists();
        assert!(stay.iter().all(is_there) && !go.iter().any(is_there));
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_rubbish() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        write(&path, |file| file.write_all(b"old")).unwrap();
        let failure = write(&path, |file| {
            file.write_all(b"half of the new")?;
            Err(io::Error::other("disk full"))
        });
        assert_eq!(failure.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
