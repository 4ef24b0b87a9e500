//! Which file a path leads to, by what the file system knows it by: hard links, links, and names that differ in case
//! where that is ignored are one file.

use std::fs::File;
use std::io;
use std::path::Path;

/// A file or folder. Two paths that lead to the same one have equal identities, as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device; on Windows the volume's serial number.
    volume: u64,
    /// The inode; on Windows the file's index.
    number: u64,
}

impl FileIdentity {
    /// Of what a path leads to, after following links.
    pub fn of(path: &Path) -> io::Result<FileIdentity> {
        system::at(path).map(|(identity, _)| identity)
    }

    /// Of an open file.
    pub(crate) fn of_open(file: &File) -> io::Result<FileIdentity> {
        system::open(file).map(|(identity, _)| identity)
    }
}

/// How many names (hard links) the file at a path has.
pub(crate) fn num_names(path: &Path) -> io::Result<u64> {
    system::at(path).map(|(_, num_names)| num_names)
}

#[cfg(unix)]
mod system {
    use super::FileIdentity;
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    pub(super) fn at(path: &Path) -> io::Result<(FileIdentity, u64)> {
        std::fs::metadata(path).map(known)
    }

    pub(super) fn open(file: &File) -> io::Result<(FileIdentity, u64)> {
        file.metadata().map(known)
    }

    fn known(about: Metadata) -> (FileIdentity, u64) {
        (FileIdentity { volume: about.dev(), number: about.ino() }, about.nlink())
    }
}

#[cfg(windows)]
mod system {
    use super::FileIdentity;
    use std::fs::File;
    use std::io;
    use std::path::Path;
    use winapi_util::file::{Information, information};
    use winapi_util::{AsHandleRef, Handle};

    pub(super) fn at(path: &Path) -> io::Result<(FileIdentity, u64)> {
        information(Handle::from_path_any(path)?).map(known)
    }

    pub(super) fn open(file: &File) -> io::Result<(FileIdentity, u64)> {
        information(file.as_handle_ref()).map(known)
    }

    fn known(about: Information) -> (FileIdentity, u64) {
        let identity = FileIdentity { volume: about.volume_serial_number(), number: about.file_index() };
        (identity, about.number_of_links())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_known_by_every_name_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        fs::write(at("a.png"), "a").unwrap();
        fs::write(at("b.png"), "a").unwrap();
        fs::hard_link(at("a.png"), at("hard.png")).unwrap();
        let identity = |name: &str| FileIdentity::of(&at(name)).unwrap();
        assert_eq!(identity("a.png"), identity("hard.png"));
        assert_eq!(identity("a.png"), identity("deep/../a.png"));
        assert_eq!(identity("a.png"), FileIdentity::of_open(&File::open(at("a.png")).unwrap()).unwrap());
        assert_ne!(identity("a.png"), identity("b.png"));
        assert_ne!(identity("deep"), identity("."));
        assert_eq!((num_names(&at("a.png")).unwrap(), num_names(&at("b.png")).unwrap()), (2, 1));
        assert_eq!(FileIdentity::of(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
