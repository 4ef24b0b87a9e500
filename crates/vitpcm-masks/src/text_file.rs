//! Small text files that a user names, class lists, split lists, settings, read up to a bounded length. Pipes are welcome.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The longest text that is read: several times the list of all files of ImageNet.
const MAX_BYTES: u64 = 1 << 30;

/// Reads a text.
pub fn read(path: &Path) -> io::Result<String> {
    read_within(path, MAX_BYTES)
}

fn read_within(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(max_bytes + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("more than the {max_bytes} bytes of text that are read")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_end_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.txt");
        std::fs::write(&path, "dog\ncat\n").unwrap();
        assert_eq!(read_within(&path, 8).unwrap(), "dog\ncat\n");
        assert!(read_within(&path, 7).unwrap_err().to_string().contains("more than the 7 bytes"));
    }
}
