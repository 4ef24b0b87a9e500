//! Finds files with the same content. Length and the first kilobytes distinguish most files, so few are read in full.

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::Path;

/// Bytes compared before a whole file is read.
const HEAD_BYTES: u64 = 16 << 10;

/// The groups of two or more files with the same content, as ascending indices into `paths`, without empty and
/// unreadable files.
pub(crate) fn groups(paths: &[&Path]) -> Vec<Vec<usize>> {
    let length = |index: usize| std::fs::metadata(paths[index]).ok().map(|it| it.len()).filter(|&it| it > 0);
    let hash = |index: usize, limit: u64| content_hash(paths[index], limit).ok();
    let groups = subdivide(vec![(0..paths.len()).collect()], length);
    let groups = subdivide(groups, |index| hash(index, HEAD_BYTES));
    subdivide(groups, |index| hash(index, u64::MAX))
}

/// Splits every group by a key. Drops members without a key and groups of one.
fn subdivide<K: Ord + Send>(
    groups: Vec<Vec<usize>>,
    key: impl Fn(usize) -> Option<K> + Sync,
) -> Vec<Vec<usize>> {
    let members: Vec<(usize, usize)> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, indices)| indices.iter().map(move |&i| (group, i)))
        .collect();
    let keys: Vec<Option<K>> = members.par_iter().map(|&(_, index)| key(index)).collect();
    let mut divided: BTreeMap<(usize, K), Vec<usize>> = BTreeMap::new();
    for ((group, index), key) in members.into_iter().zip(keys) {
        if let Some(key) = key {
            divided.entry((group, key)).or_default().push(index);
        }
    }
    divided.into_values().filter(|group| group.len() > 1).collect()
}

/// 128 bits of hash of a file's first `limit` bytes, from two differently seeded hashes.
fn content_hash(path: &Path, limit: u64) -> std::io::Result<[u64; 2]> {
    let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
    hashers[1].write_u8(1);
    let mut file = File::open(path)?.take(limit);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(hashers.map(|hasher| hasher.finish()));
        }
        hashers.iter_mut().for_each(|hasher| hasher.write(&buffer[..length]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_agree_in_every_byte_are_grouped() {
        let folder = tempfile::tempdir().unwrap();
        let long = vec![7; HEAD_BYTES as usize + 10];
        let mut differs_at_the_end = long.clone();
        *differs_at_the_end.last_mut().unwrap() = 8;
        let contents = [&long[..], b"short", &differs_at_the_end, b"", b"shirt", &long, b"short", b""];
        let paths: Vec<_> = (0..contents.len()).map(|i| folder.path().join(i.to_string())).collect();
        for (path, content) in paths.iter().zip(contents) {
            std::fs::write(path, content).unwrap();
        }
        let gone = folder.path().join("gone");
        let paths: Vec<&Path> = paths.iter().chain([&gone, &gone]).map(|path| path.as_path()).collect();
        let mut found = groups(&paths);
        found.sort();
        assert_eq!(found, [vec![0, 5], vec![1, 6]]);
    }
}
