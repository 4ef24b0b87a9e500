//! Chains of neighbouring vertices along a lattice axis.
//!
//! Vertices are numbered in the order of their keys. A chain lists the vertices that follow each other along an axis, so the
//! blur walks it once, in place, and never touches vertices without a neighbour: a quarter of them in real images.

use rayon::prelude::*;

use crate::simplex::{Embedding, PLACE_AXES};

/// Vertices per task.
const TASK: usize = 1 << 14;

/// Marks the first vertex of a chain; the other bits are its number.
pub(crate) const FIRST: u32 = 1 << 31;

/// All chains along one axis, of two vertices or more, ascending by their first vertex.
pub(crate) struct Chains {
    /// One chain after the other.
    links: Vec<u32>,
    /// For each block of vertices its first link, and the number of links at the end. A chain belongs to the block of
    /// its first vertex.
    starts: Vec<u32>,
}

impl Chains {
    /// `keys` are those of all vertices, ascending; `block_starts` the first vertices of blocks, and the number of vertices at
    /// the end.
    pub(crate) fn along(axis: usize, embedding: &Embedding, keys: &[u64], block_starts: &[usize]) -> Self {
        let none = keys.len() as u32;
        let mut behind = vec![none; keys.len()];
        behind
            .par_chunks_mut(TASK)
            .zip(keys.par_chunks(TASK))
            .for_each(|(behind, chunk)| find_behind(axis, embedding, keys, chunk, behind));
        let mut has_before = vec![false; keys.len() + 1];
        behind.iter().for_each(|&vertex| has_before[vertex as usize] = true);

        let mut links = Vec::with_capacity(keys.len());
        let mut starts = vec![0];
        for block in block_starts.windows(2) {
            for first in block[0]..block[1] {
                if has_before[first] || behind[first] == none {
                    continue;
                }
                links.push(first as u32 | FIRST);
                let mut next = behind[first];
                while next != none {
                    // This allows threads to blur blocks along these axes without waiting for each other.
                    assert!(axis < PLACE_AXES || (block[0]..block[1]).contains(&(next as usize)));
                    links.push(next);
                    next = behind[next as usize];
                }
            }
            starts.push(links.len() as u32);
        }
        links.shrink_to_fit();
        Self { links, starts }
    }

    /// The chains that begin in a block, one after the other.
    pub(crate) fn of_block(&self, block: usize) -> &[u32] {
        &self.links[self.starts[block] as usize..self.starts[block + 1] as usize]
    }
}

/// Finds the successors of a chunk of vertices; skips vertices without one.
fn find_behind(axis: usize, embedding: &Embedding, keys: &[u64], chunk: &[u64], behind: &mut [u32]) {
    // Neighbours ascend with the keys, separately for those that wrap around and those that do not.
    let mut cursors = [None; 2];
    for (behind, &key) in behind.iter_mut().zip(chunk) {
        let (wanted, wraps) = embedding.behind(axis, key);
        let cursor = cursors[usize::from(wraps)]
            .get_or_insert_with(|| keys.partition_point(|&candidate| candidate < wanted));
        while *cursor < keys.len() && keys[*cursor] < wanted {
            *cursor += 1;
        }
        if keys.get(*cursor) == Some(&wanted) {
            *behind = *cursor as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_hold_every_pair_of_neighbors() {
        let embedding = Embedding::new(&[[-200.0, 200.0]; 2]).unwrap();
        let mut keys: Vec<u64> = Vec::new();
        let mut next = vec![embedding.key_of_origin()];
        while keys.len() < 1000 {
            let key = next.remove(0);
            if !keys.contains(&key) {
                keys.push(key);
                next.extend((0..3).map(|axis| embedding.behind(axis, key).0));
            }
        }
        // With gaps, so that chains break.
        keys.retain(|key| key % 7 != 0);
        keys.sort_unstable();
        let block_starts = [0, 100, 101, 600, keys.len()];
        for axis in 0..3 {
            let chains = Chains::along(axis, &embedding, &keys, &block_starts);
            let links = (0..4).flat_map(|block| chains.of_block(block).iter().copied());
            let links: Vec<u32> = links.collect();
            let mut pairs: Vec<(u64, u64)> = links
                .windows(2)
                .filter(|pair| pair[1] & FIRST == 0)
                .map(|pair| (keys[(pair[0] & !FIRST) as usize], keys[pair[1] as usize]))
                .collect();
            pairs.sort_unstable();
            let behind = |key: u64| embedding.behind(axis, key).0;
            let neighbors = keys.iter().map(|&key| (key, behind(key)));
            let expected: Vec<(u64, u64)> =
                neighbors.filter(|(_, behind)| keys.binary_search(behind).is_ok()).collect();
            assert_eq!(pairs, expected);
            for block in 0..4 {
                let firsts = chains.of_block(block).iter().filter(|&&link| link & FIRST != 0);
                let range = block_starts[block]..block_starts[block + 1];
                assert!(firsts.map(|link| (link & !FIRST) as usize).all(|first| range.contains(&first)));
            }
        }
    }
}
