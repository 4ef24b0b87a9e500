//! Which lattice vertices lie before and behind each other along an axis.
//!
//! Vertices are numbered in the order of their keys and neighbours follow in the same order, so the neighbours of a short
//! chunk of vertices lie close together: a base for each chunk and 16 bits for each neighbour hold them. That halves the
//! second-largest table of a lattice but is slower to read by some 10 %, so only large lattices are stored so.

use rayon::prelude::*;

use crate::simplex::{Embedding, Side};

/// Vertices that share a base.
const CHUNK: usize = 256;

/// Vertices that one task handles, a multiple of [`CHUNK`].
const TASK: usize = 64 * CHUNK;

/// Lattices with as many vertices are stored in 16 bits a neighbour: images of several megapixels.
const NEAR_FROM: usize = 1 << 22;

/// Stands for no neighbour.
const NONE: u16 = u16::MAX;

pub(crate) struct Neighbors {
    num_vertices: usize,
    table: Table,
    /// The largest distance between the numbers of neighbours.
    reach: usize,
}

enum Table {
    /// Relative to a base for each chunk; before and behind.
    Near { bases: Vec<[u32; 2]>, offsets: Vec<[u16; 2]> },
    /// In small lattices, or where some chunk's neighbours are too far apart. The number of vertices stands for none.
    Far(Vec<[u32; 2]>),
}

impl Neighbors {
    /// `keys` are those of all vertices, ascending.
    pub(crate) fn along(axis: usize, embedding: &Embedding, keys: &[u64]) -> Self {
        let near = if keys.len() < NEAR_FROM { None } else { Self::near(axis, embedding, keys) };
        near.unwrap_or_else(|| Self::far(axis, embedding, keys))
    }

    fn near(axis: usize, embedding: &Embedding, keys: &[u64]) -> Option<Self> {
        let num_vertices = keys.len();
        // One entry more, for the row of zeros behind the vertices.
        let mut bases = vec![[0; 2]; num_vertices / CHUNK + 1];
        let mut offsets = vec![[NONE; 2]; num_vertices + 1];
        let reach = keys
            .par_chunks(TASK)
            .zip(bases.par_chunks_mut(TASK / CHUNK))
            .zip(offsets.par_chunks_mut(TASK))
            .enumerate()
            .map(|(task, ((chunk, bases), offsets))| {
                let mut found = vec![[0; 2]; chunk.len()];
                find(axis, Side::Before, embedding, keys, chunk, &mut found);
                find(axis, Side::Behind, embedding, keys, chunk, &mut found);
                let mut chunks = found.chunks(CHUNK).zip(bases).zip(offsets.chunks_mut(CHUNK));
                let fits = chunks.all(|((found, base), offsets)| shorten(found, num_vertices, base, offsets));
                fits.then(|| reach_of(&found, task * TASK, num_vertices))
            })
            .try_reduce(|| 0, |a, b| Some(a.max(b)))?;
        Some(Self { num_vertices, table: Table::Near { bases, offsets }, reach })
    }

    fn far(axis: usize, embedding: &Embedding, keys: &[u64]) -> Self {
        let num_vertices = keys.len();
        let mut table = vec![[num_vertices as u32; 2]; num_vertices + 1];
        table
            .par_chunks_mut(TASK)
            .zip(keys.par_chunks(TASK))
            .for_each(|(found, chunk)| find(axis, Side::Behind, embedding, keys, chunk, found));
        for vertex in 0..num_vertices {
            let behind = table[vertex][1] as usize;
            if behind != num_vertices {
                table[behind][0] = vertex as u32;
            }
        }
        let reach = reach_of(&table[..num_vertices], 0, num_vertices);
        Self { num_vertices, table: Table::Far(table), reach }
    }

    pub(crate) fn reach(&self) -> usize {
        self.reach
    }

    /// The vertices before and behind a vertex; the number of vertices where there is none, and for that number itself.
    #[inline(always)]
    pub(crate) fn of(&self, vertex: usize) -> [usize; 2] {
        match &self.table {
            Table::Near { bases, offsets } => {
                let (base, offset) = (bases[vertex / CHUNK], offsets[vertex]);
                [0, 1].map(|side| {
                    if offset[side] == NONE {
                        self.num_vertices
                    } else {
                        base[side] as usize + offset[side] as usize
                    }
                })
            }
            Table::Far(table) => table[vertex].map(|neighbor| neighbor as usize),
        }
    }
}

/// Finds the neighbours on one side of a chunk of vertices among all.
fn find(axis: usize, side: Side, embedding: &Embedding, keys: &[u64], chunk: &[u64], found: &mut [[u32; 2]]) {
    // Neighbours ascend with the keys, separately for those that wrap around and those that do not.
    let mut cursors = [None; 2];
    for (found, &key) in found.iter_mut().zip(chunk) {
        let (wanted, wraps) = embedding.neighbor(axis, side, key);
        let cursor = cursors[usize::from(wraps)]
            .get_or_insert_with(|| keys.partition_point(|&candidate| candidate < wanted));
        while *cursor < keys.len() && keys[*cursor] < wanted {
            *cursor += 1;
        }
        let exists = keys.get(*cursor) == Some(&wanted);
        found[side as usize] = if exists { *cursor } else { keys.len() } as u32;
    }
}

/// Stores neighbours relative to the first of each side; says whether they fit.
fn shorten(found: &[[u32; 2]], num_vertices: usize, base: &mut [u32; 2], offsets: &mut [[u16; 2]]) -> bool {
    let none = num_vertices as u32;
    let smallest = |side: usize| found.iter().map(|neighbors| neighbors[side]).min().unwrap_or(0);
    *base = [smallest(0), smallest(1)];
    found.iter().zip(offsets).all(|(neighbors, offsets)| {
        (0..2).all(|side| {
            if neighbors[side] == none {
                return true;
            }
            let offset = neighbors[side] - base[side];
            offsets[side] = offset.min(u32::from(NONE)) as u16;
            offset < u32::from(NONE)
        })
    })
}

fn reach_of(found: &[[u32; 2]], first: usize, num_vertices: usize) -> usize {
    let reaches = (first..).zip(found).map(|(vertex, neighbors)| {
        let distance = |neighbor: u32| match neighbor as usize {
            none if none == num_vertices => 0,
            neighbor => neighbor.abs_diff(vertex),
        };
        distance(neighbors[0]).max(distance(neighbors[1]))
    });
    reaches.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_tables_hold_the_same_neighbors() {
        let embedding = Embedding::new(&[[-200.0, 200.0]; 2]).unwrap();
        let mut keys: Vec<u64> = Vec::new();
        let mut next = vec![embedding.key_of_origin()];
        while keys.len() < 3000 {
            let key = next.remove(0);
            if !keys.contains(&key) {
                keys.push(key);
                next.extend((0..3).map(|axis| embedding.neighbor(axis, Side::Behind, key).0));
            }
        }
        keys.sort_unstable();
        for axis in 0..3 {
            let near = Neighbors::near(axis, &embedding, &keys).unwrap();
            let far = Neighbors::far(axis, &embedding, &keys);
            assert_eq!(near.reach, far.reach);
            for vertex in 0..=keys.len() {
                assert_eq!(near.of(vertex), far.of(vertex));
                let [before, behind] = near.of(vertex);
                assert!(before == keys.len() || near.of(before)[1] == vertex);
                assert!(behind == keys.len() || near.of(behind)[0] == vertex);
            }
        }
    }
}
