//! Reads small text files that a user names (class lists, split lists, settings) up to a size limit. Pipes are allowed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Default limit: several times the list of all files of ImageNet.
const MAX_BYTES: u64 = 1 << 30;

/// The value of the last [`raise_limit`], process-wide because readers are called deep in the stack.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// Raises all readers' limits in this process to at least `max_bytes`.
pub fn raise_limit(max_bytes: u64) {
    RAISED.store(max_bytes, Ordering::Relaxed);
}

/// The higher of a reader's own limit and the [raised](raise_limit) one.
pub fn limit(own: u64) -> u64 {
    own.max(RAISED.load(Ordering::Relaxed))
}

/// Reads a text.
pub fn read(path: &Path) -> io::Result<String> {
    read_within(path, limit(MAX_BYTES))
}

fn read_within(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(max_bytes + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max_bytes {
        return Err(io::Error::other(format!(
            "more than the {max_bytes} bytes of text that are read (--max-file-gigabytes)"
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_and_never_lowered() {
        assert_eq!(limit(7), 7);
        raise_limit(MAX_BYTES + 1);
        assert_eq!((limit(7), limit(MAX_BYTES + 2)), (MAX_BYTES + 1, MAX_BYTES + 2));
        raise_limit(0);
    }

    #[test]
    fn a_text_without_end_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.txt");
        std::fs::write(&path, "dog\ncat\n").unwrap();
        assert_eq!(read_within(&path, 8).unwrap(), "dog\ncat\n");
        assert!(read_within(&path, 7).unwrap_err().to_string().contains("more than the 7 bytes"));
    }
}
