//! One writer per folder: a second process on the same run or output folder is refused, with the name of the first.
//!
//! The operating system holds the lock, so a killed process leaves none. On shared file systems such a lock may cover
//! only one machine: there the writer's heartbeat, the time stamp of its lock file, tells whether a process on another
//! machine is alive.

use crate::atomic_file;
use crate::file_identity::{FileIdentity, num_names};
use crate::machine::{host, is_running};
use std::fmt::{self, Display, Formatter};
#[cfg(not(windows))]
use std::fs::TryLockError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The lock file in a folder; its writer removes it.
pub const LOCK_FILE: &str = ".vitpcm.lock";

/// Interval of the heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Time within which a writer fills its lock file after locking it.
const JUST_BEGUN: Duration = Duration::from_millis(100);
/// How long a taker waits for the holder to end: a job that starts again right after a crash or a kill may come before the
/// system has ended its predecessor.
const PATIENCE: Duration = Duration::from_secs(5);
/// Without a heartbeat for this long, a process on another machine counts as gone.
const SILENCE: Duration = Duration::from_secs(7);

/// The exclusive right to write into a folder, until dropped.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    path: PathBuf,
    /// Dropping it ends the heartbeat.
    _heartbeat: SyncSender<()>,
}

/// Why a folder cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum FolderLockError {
    /// Another process writes to it.
    #[error("{}: {holder} is writing here; wait for it to end, or choose another folder", folder.display())]
    Held {
        /// The folder.
        folder: PathBuf,
        /// The other process.
        holder: Holder,
    },
    /// The lock file could not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The process that holds a lock, from its lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub process: u32,
    /// Its machine.
    pub host: String,
    /// Its command.
    pub command: String,
    /// Its start time, in seconds since 1970.
    pub since: u64,
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Holder { process, host, command, since } = self;
        write!(f, "process {process} on {host} (vitpcm {command}, for {} s)", now().saturating_sub(*since))
    }
}

impl FolderLock {
    /// Locks an existing folder for `command`, and removes temporary files of killed processes. Waits a few seconds for a
    /// process that may be ending.
    pub fn take(folder: &Path, command: &str) -> Result<FolderLock, FolderLockError> {
        let path = folder.join(LOCK_FILE);
        let start = Instant::now();
        let lock = loop {
            match Self::take_file(folder, &path, command, SILENCE) {
                Err(FolderLockError::Held { .. }) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(JUST_BEGUN)
                }
                taken => break taken?,
            }
        };
        atomic_file::remove_leftovers(folder);
        Ok(lock)
    }

    fn take_file(
        folder: &Path,
        path: &Path,
        command: &str,
        silence: Duration,
    ) -> Result<FolderLock, FolderLockError> {
        let failed = |source: io::Error| FolderLockError::Io { path: path.to_path_buf(), source };
        let (mut file, is_locked) = open_and_lock(path).map_err(failed)?;
        let mut holder = Holder::read(&mut file);
        if matches!(is_locked, IsLocked::ByAnother) && holder.is_none() {
            std::thread::sleep(JUST_BEGUN);
            holder = Holder::read(&mut file);
        }
        let host = host();
        let is_held = match (&is_locked, &holder) {
            (IsLocked::ByAnother, _) => true,
            (_, None) => false,
            // If we got the lock, the process is gone; without locks, its process id decides.
            (IsLocked::ByUs, Some(holder)) if holder.host == host => false,
            (IsLocked::Unknown, Some(holder)) if holder.host == host => is_running(holder.process),
            (_, Some(_)) => is_beating(path, silence),
        };
        if is_held {
            let unknown =
                || Holder { process: 0, host: "this machine".into(), command: "?".into(), since: now() };
            let holder = holder.unwrap_or_else(unknown);
            return Err(FolderLockError::Held { folder: folder.to_path_buf(), holder });
        }
        let process = std::process::id();
        Holder { process, host, command: command.to_string(), since: now() }
            .write(&mut file)
            .map_err(failed)?;
        let (heartbeat, ended) = sync_channel(0);
        let beating = file.try_clone().map_err(failed)?;
        std::thread::spawn(move || {
            while ended.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                // A missed heartbeat (full disk, lost network) is made up by the next.
                let _ = beating.set_modified(SystemTime::now());
            }
        });
        Ok(FolderLock { file, path: path.to_path_buf(), _heartbeat: heartbeat })
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // In this order, nobody can hold both name and lock of a file that is about to be removed. A file that cannot
        // be removed is recognised as stale by the next process.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

enum IsLocked {
    ByUs,
    ByAnother,
    /// The file system has no locks.
    #[cfg_attr(windows, expect(dead_code, reason = "all file systems of Windows have them"))]
    Unknown,
}

/// Opens the lock file and tries to lock it. Retries if its owner removed it in between.
fn open_and_lock(path: &Path) -> io::Result<(File, IsLocked)> {
    loop {
        check_unshared(path)?;
        let (file, is_locked) = try_to_lock(path)?;
        if !matches!(is_locked, IsLocked::ByUs) || is_at(&file, path) {
            return Ok((file, is_locked));
        }
    }
}

#[cfg(not(windows))]
fn try_to_lock(path: &Path) -> io::Result<(File, IsLocked)> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let is_locked = match file.try_lock() {
        Ok(()) => IsLocked::ByUs,
        Err(TryLockError::WouldBlock) => IsLocked::ByAnother,
        Err(TryLockError::Error(_)) => IsLocked::Unknown,
    };
    Ok((file, is_locked))
}

/// A lock of Windows keeps others from reading who holds it. A file that is open for writing, and not shared for
/// writing, can be read, and has one writer as long as that lives.
#[cfg(windows)]
fn try_to_lock(path: &Path) -> io::Result<(File, IsLocked)> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_SHARE_READ_AND_DELETE: u32 = 0x1 | 0x4;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).share_mode(FILE_SHARE_READ_AND_DELETE);
    match options.open(path) {
        Ok(file) => Ok((file, IsLocked::ByUs)),
        Err(error) if error.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => {
            match File::open(path) {
                // Its owner has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => try_to_lock(path),
                opened => Ok((opened?, IsLocked::ByAnother)),
            }
        }
        Err(error) => Err(error),
    }
}

/// Refuses a link: the lock file is written in place, which would overwrite the link's target.
fn check_unshared(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() || num_names(path).is_ok_and(|num_names| num_names > 1) => {
            Err(io::Error::other("not a lock file of vitpcm but a link or a folder; remove it"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    matches!((FileIdentity::of_open(file), FileIdentity::of(path)), (Ok(ours), Ok(there)) if ours == there)
}

impl Holder {
    fn write(&self, file: &mut File) -> io::Result<()> {
        let Holder { process, host, command, since } = self;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{process}\n{host}\n{command}\n{since}\n").as_bytes())?;
        file.sync_all()
    }

    /// The content of a lock file; `None` if it is incomplete.
    fn read(file: &mut File) -> Option<Holder> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(4096).read_to_string(&mut text).ok()?;
        let lines: Vec<&str> = text.lines().collect();
        let &[process, host, command, since] = lines.as_slice() else { return None };
        let (process, since) = (process.parse().ok()?, since.parse().ok()?);
        Some(Holder { process, host: host.to_string(), command: command.to_string(), since })
    }
}

/// Whether a lock file's owner on another machine is alive. Opens the file each time, which makes network file systems
/// ask the server.
fn is_beating(path: &Path, silence: Duration) -> bool {
    let beat = || File::open(path).and_then(|file| file.metadata()?.modified()).ok();
    let before = beat();
    std::thread::sleep(silence);
    beat() != before
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(folder: &Path) -> Result<FolderLock, FolderLockError> {
        FolderLock::take_file(folder, &folder.join(LOCK_FILE), "test", Duration::from_millis(300))
    }

    fn leave(folder: &Path, process: u32, host: &str) {
        let text = format!("{process}\n{host}\ntrain\n1700000000\n");
        fs::write(folder.join(LOCK_FILE), text).unwrap();
    }

    #[test]
    fn a_folder_has_one_writer_and_the_second_is_told_who() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path()).unwrap();
        let error = take(folder.path()).unwrap_err();
        let FolderLockError::Held { holder, .. } = &error else { panic!("{error}") };
        assert_eq!((holder.process, holder.host.clone()), (std::process::id(), host()));
        assert!(error.to_string().contains(&format!("process {} on", std::process::id())), "{error}");
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing stays behind");
        take(folder.path()).unwrap();
    }

    #[test]
    fn a_holder_that_is_ending_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| FolderLock::take(folder.path(), "test"));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn what_a_killed_process_left_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        // Even if its process id now belongs to another process.
        for process in [u32::MAX, std::process::id()] {
            leave(folder.path(), process, &host());
            take(folder.path()).unwrap();
        }
        fs::write(folder.path().join(LOCK_FILE), "half a").unwrap();
        take(folder.path()).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_lock_file_that_is_a_link_is_refused_and_what_it_leads_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (diary, lock) = (folder.path().join("diary.txt"), folder.path().join(LOCK_FILE));
        fs::write(&diary, "dear diary").unwrap();
        for link in [std::os::unix::fs::symlink::<&Path, &Path>, fs::hard_link::<&Path, &Path>] {
            link(&diary, &lock).unwrap();
            let error = take(folder.path()).unwrap_err().to_string();
            assert!(error.contains(LOCK_FILE) && error.contains("link"), "{error}");
            assert_eq!(fs::read_to_string(&diary).unwrap(), "dear diary");
            fs::remove_file(&lock).unwrap();
        }
        // A dangling link must not create a file either.
        std::os::unix::fs::symlink("nowhere", &lock).unwrap();
        take(folder.path()).unwrap_err();
        assert!(!folder.path().join("nowhere").exists());
    }

    #[test]
    fn a_process_on_another_machine_holds_its_lock_as_long_as_its_heart_beats() {
        let folder = tempfile::tempdir().unwrap();
        leave(folder.path(), 7, "another-machine");
        take(folder.path()).unwrap();

        leave(folder.path(), 7, "another-machine");
        let path = folder.path().join(LOCK_FILE);
        let (stop, stopped) = sync_channel::<()>(0);
        let beating = std::thread::spawn(move || {
            let file = OpenOptions::new().append(true).open(path).unwrap();
            while stopped.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
                file.set_modified(SystemTime::now()).unwrap();
            }
        });
        let error = take(folder.path()).unwrap_err().to_string();
        drop(stop);
        beating.join().unwrap();
        assert!(error.contains("process 7 on another-machine (vitpcm train"), "{error}");
    }

    #[test]
    fn many_takers_at_once_get_it_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let Ok(_lock) = take(folder.path()) else { continue };
                        use std::sync::atomic::Ordering::SeqCst;
                        assert_eq!(holders.fetch_add(1, SeqCst), 0);
                        std::thread::yield_now();
                        holders.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
    }
}
