//! Opens and reads annotation files, whole or item by item: only regular files up to a size limit. A pipe would block
//! for ever, and an oversized file would exhaust memory.

use crate::text_encoding::utf8_text;
use serde::Deserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use vitpcm_masks::text_file;

/// Size limit: several times COCO's, LVIS' and Open Images' annotations.
const MAX_BYTES: u64 = 8 << 30;

/// Opens a file of annotations.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let (found, max_bytes) = (about.len(), text_file::limit(MAX_BYTES));
    if found > max_bytes {
        return Err(io::Error::other(format!(
            "{found} bytes, more than the {max_bytes} that are read (--max-file-gigabytes)"
        )));
    }
    File::open(path)
}

/// Reads a file of annotations.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(text_file::limit(MAX_BYTES)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a JSON list or object item by item; stops at a malformed item. Items of an object come with their keys.
pub(crate) fn read_json_items(
    path: &Path,
    what: &'static str,
    each: impl FnMut(Option<String>, Value),
) -> Result<(), String> {
    let file = open(path).and_then(utf8_text).map_err(|e| e.to_string())?;
    let mut deserializer = serde_json::Deserializer::from_reader(file);
    let parsed = deserializer.deserialize_any(Items { what, each }).and_then(|()| deserializer.end());
    parsed.map_err(|e| e.to_string())
}

struct Items<F> {
    what: &'static str,
    each: F,
}

impl<'de, F: FnMut(Option<String>, Value)> Visitor<'de> for Items<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element()? {
            (self.each)(None, item);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some((key, item)) = items.next_entry()? {
            (self.each)(Some(key), item);
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_or_far_too_long_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("tags.csv");
        // A sparse file, which takes no space.
        File::create(&long).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let pipe = folder.path().join("pipe.csv");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let message = |path: &Path| read(path).unwrap_err().to_string();
        assert!(message(&long).contains("more than the"), "{}", message(&long));
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            assert_eq!(message(path), "not a regular file");
        }
    }
}
