//! Append-only files with one JSON object per line. If a kill cuts the last line short, readers skip it and the next
//! line starts on its own.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// An append-only file.
pub(crate) struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Opens or creates a file, positioned after its last whole line.
    pub(crate) fn append_to(path: &Path) -> anyhow::Result<JsonLines> {
        let open = || {
            let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
            let length = file.metadata()?.len();
            if length > 0 {
                let mut last = [0];
                file.seek(SeekFrom::Start(length - 1))?;
                file.read_exact(&mut last)?;
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                }
            }
            Ok::<_, std::io::Error>(file)
        };
        let file = open().with_context(|| format!("{}", path.display()))?;
        Ok(JsonLines { path: path.to_path_buf(), file })
    }

    pub(crate) fn append(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.file.write_all(&line(value)?).with_context(|| format!("{}", self.path.display()))
    }
}

/// A value as one line.
pub(crate) fn line(value: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Every line that parses, with its offset. A missing file has none.
pub(crate) fn for_each<T: for<'a> Deserialize<'a>>(
    path: &Path,
    mut take: impl FnMut(u64, T),
) -> anyhow::Result<()> {
    let mut reader = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    let (mut offset, mut bytes) = (0, Vec::new());
    loop {
        bytes.clear();
        let length = reader.read_until(b'\n', &mut bytes).with_context(|| format!("{}", path.display()))?;
        if length == 0 {
            return Ok(());
        }
        if let Ok(value) = serde_json::from_slice(&bytes) {
            take(offset, value);
        }
        offset += length as u64;
    }
}
