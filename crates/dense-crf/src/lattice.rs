//! The part of the permutohedral lattice that an image touches, and the tables that filtering needs: built once an image,
//! used by every iteration.
//!
//! Two levels. Each tile of pixels has *rows*, one for each vertex that its pixels touch, numbered from 0 so that a pixel's
//! vertex takes 16 bits. All tiles' rows lie one after the other in one buffer; a *vertex* of the lattice gathers the rows
//! of the tiles that touch it. Vertices are laid out once for each blur axis, along the lattice lines of that axis, so
//! that the blur is a three-tap filter over neighbouring entries that reads each vertex once from afar.

use rayon::prelude::*;

use crate::Error;
use crate::features::{Features, LANES, MAX_DIMENSION};
use crate::row_table::RowTable;
use crate::simplex::{Embedding, Simplices};
use crate::tiles::Tiles;

/// Barycentric coordinates are stored as 16-bit fractions of this. The rounding, 8e-6, changes marginals by less than
/// f32 sums in another order do on real images, and it halves the largest table.
pub(crate) const WEIGHT_ONE: f32 = 65535.0;

pub(crate) struct Lattice {
    dimension: usize,
    /// For each pixel in tile order and each vertex of its simplex: row within the tile (low half), weight (high half).
    pub(crate) corners: Vec<u32>,
    /// First row of each tile, and the number of rows at the end.
    pub(crate) row_starts: Vec<usize>,
    /// The vertex of each row.
    pub(crate) vertex_of_row: Vec<u32>,
    /// For each vertex its first entry in `rows_of_vertex`; and the number of rows at the end.
    pub(crate) vertex_starts: Vec<u32>,
    /// The rows of each vertex in ascending order.
    pub(crate) rows_of_vertex: Vec<u32>,
    /// For each axis, the vertices before and behind each vertex; the number of vertices where there is none, and for the
    /// row of zeros that lies there.
    pub(crate) neighbors: Vec<Vec<[u32; 2]>>,
    /// For each axis, the largest distance between the numbers of neighbours.
    pub(crate) reaches: Vec<usize>,
}

impl Lattice {
    pub(crate) fn build(features: &Features<'_>, tiles: &Tiles) -> Result<Self, Error> {
        let dimension = features.dimension();
        let embedding = Embedding::new(&features.bounds())?;
        let limit = i32::MAX as usize / (dimension + 1);
        if tiles.num_pixels() > limit {
            return Err(Error::TooLarge { what: "the number of pixels", got: tiles.num_pixels(), limit });
        }

        let (corners, keys_of_tiles) = embed_tiles(features, &embedding, tiles);
        let mut row_starts = Vec::with_capacity(tiles.len() + 1);
        row_starts.push(0);
        for keys in &keys_of_tiles {
            row_starts.push(row_starts[row_starts.len() - 1] + keys.len());
        }
        let (keys, vertex_starts, rows_of_vertex) = group_by_vertex(keys_of_tiles, &row_starts);
        let (neighbors, reaches) =
            (0..=dimension).into_par_iter().map(|axis| neighbors_along(axis, &embedding, &keys)).unzip();
        let mut vertex_of_row = vec![0; rows_of_vertex.len()];
        for (vertex, range) in vertex_starts.windows(2).enumerate() {
            for &row in &rows_of_vertex[range[0] as usize..range[1] as usize] {
                vertex_of_row[row as usize] = vertex as u32;
            }
        }
        Ok(Self {
            dimension,
            corners,
            row_starts,
            vertex_of_row,
            vertex_starts,
            rows_of_vertex,
            neighbors,
            reaches,
        })
    }

    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }

    pub(crate) fn num_vertices(&self) -> usize {
        self.vertex_starts.len() - 1
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.rows_of_vertex.len()
    }
}

/// The corners of every pixel, and for each tile the keys of its rows.
fn embed_tiles(features: &Features<'_>, embedding: &Embedding, tiles: &Tiles) -> (Vec<u32>, Vec<Vec<u64>>) {
    let num_corners = features.dimension() + 1;
    let mut corners = vec![0; tiles.num_pixels() * num_corners];
    let keys_of_tiles = tiles
        .split_mut(&mut corners, num_corners)
        .into_par_iter()
        .enumerate()
        .map_init(RowTable::new, |table, (tile, corners)| {
            table.clear();
            match features.dimension() {
                2 => embed_tile::<2>(features, embedding, tiles, tile, table, corners),
                5 => embed_tile::<5>(features, embedding, tiles, tile, table, corners),
                _ => embed_tile::<0>(features, embedding, tiles, tile, table, corners),
            }
        })
        .collect();
    (corners, keys_of_tiles)
}

fn embed_tile<const D: usize>(
    features: &Features<'_>,
    embedding: &Embedding,
    tiles: &Tiles,
    tile: usize,
    table: &mut RowTable,
    all_corners: &mut [u32],
) -> Vec<u64> {
    let num_corners = if D == 0 { features.dimension() + 1 } else { D + 1 };
    let mut keys = Vec::new();
    let mut block = [[0.0; LANES]; MAX_DIMENSION];
    let mut simplices = Simplices::default();
    // The last vertex seen with each remainder: often also that of the next pixel.
    let mut recent = [(u64::MAX, 0u32); MAX_DIMENSION + 1];
    let mut corners = all_corners.chunks_exact_mut(num_corners);
    for run in tiles.runs(tile) {
        let mut start = run.start;
        while start < run.end {
            let end = run.end.min(start + LANES);
            features.fill(start..end, &mut block);
            embedding.enclose::<D>(&block, &mut simplices);
            for (lane, corners) in (0..end - start).zip(&mut corners) {
                for remainder in 0..num_corners {
                    let key = simplices.keys[lane][remainder];
                    if recent[remainder].0 != key {
                        let (row, new) = table.insert(key);
                        if new {
                            keys.push(key);
                        }
                        recent[remainder] = (key, row);
                    }
                    let weight = simplices.weights[lane][remainder].clamp(0.0, 1.0) * WEIGHT_ONE + 0.5;
                    corners[remainder] = recent[remainder].1 | ((weight as u32) << 16);
                }
            }
            start = end;
        }
    }
    sort_rows(keys, all_corners)
}

/// Renumbers a tile's rows in the order of their keys: then neighbours along every axis of the lattice follow each other
/// in the same order as the rows do, and the blur reads memory in a few ascending streams.
fn sort_rows(keys: Vec<u64>, corners: &mut [u32]) -> Vec<u64> {
    let mut sorted: Vec<(u64, u16)> = keys.into_iter().zip(0..=u16::MAX).collect();
    sorted.sort_unstable();
    let mut new_rows = vec![0u16; sorted.len()];
    for (new_row, &(_, row)) in (0..=u16::MAX).zip(&sorted) {
        new_rows[row as usize] = new_row;
    }
    for corner in corners {
        *corner = (*corner & 0xffff_0000) | u32::from(new_rows[(*corner & 0xffff) as usize]);
    }
    sorted.into_iter().map(|(key, _)| key).collect()
}

/// The keys of all vertices, ascending; each vertex's first entry in the list of rows, and that list.
fn group_by_vertex(keys_of_tiles: Vec<Vec<u64>>, row_starts: &[usize]) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
    let tiles: Vec<(Vec<u64>, u32)> =
        keys_of_tiles.into_iter().zip(row_starts.iter().map(|&start| start as u32)).collect();
    let merged = merge_tiles(tiles);
    let mut keys = Vec::new();
    let mut starts = Vec::new();
    let mut rows = Vec::with_capacity(merged.len());
    for (key, row) in merged {
        if keys.last() != Some(&key) {
            keys.push(key);
            starts.push(rows.len() as u32);
        }
        rows.push(row);
    }
    starts.push(rows.len() as u32);
    (keys, starts, rows)
}

/// Merges the sorted keys of tiles, each with the number of its first row, into one list of keys and rows.
fn merge_tiles(mut tiles: Vec<(Vec<u64>, u32)>) -> Vec<(u64, u32)> {
    if tiles.len() <= 1 {
        return tiles
            .pop()
            .map_or(Vec::new(), |(keys, first_row)| keys.into_iter().zip(first_row..).collect());
    }
    let second_half = tiles.split_off(tiles.len() / 2);
    let (left, right) = rayon::join(|| merge_tiles(tiles), || merge_tiles(second_half));
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut i, mut j) = (0, 0);
    while i < left.len() && j < right.len() {
        // Rows on the left are the smaller ones, so that equal keys keep their rows in ascending order.
        let from_left = left[i].0 <= right[j].0;
        merged.push(if from_left { left[i] } else { right[j] });
        i += usize::from(from_left);
        j += usize::from(!from_left);
    }
    merged.extend_from_slice(&left[i..]);
    merged.extend_from_slice(&right[j..]);
    merged
}

/// For each vertex the ones before and behind it along an axis; where there is none, the number of vertices. The row of
/// zeros behind the last vertex has an entry, too. Also returns the largest distance between neighbours.
fn neighbors_along(axis: usize, embedding: &Embedding, keys: &[u64]) -> (Vec<[u32; 2]>, usize) {
    const CHUNK: usize = 1 << 14;
    let none = keys.len() as u32;
    let mut neighbors = vec![[none; 2]; keys.len() + 1];
    neighbors.par_chunks_mut(CHUNK).zip(keys.par_chunks(CHUNK)).for_each(|(neighbors, chunk)| {
        // Neighbours ascend with the keys, separately for those that wrap around and those that do not.
        let mut cursors = [None; 2];
        for (neighbors, &key) in neighbors.iter_mut().zip(chunk) {
            let (wanted, wraps) = embedding.behind(axis, key);
            let cursor = cursors[usize::from(wraps)]
                .get_or_insert_with(|| keys.partition_point(|&candidate| candidate < wanted));
            while *cursor < keys.len() && keys[*cursor] < wanted {
                *cursor += 1;
            }
            if keys.get(*cursor) == Some(&wanted) {
                neighbors[1] = *cursor as u32;
            }
        }
    });
    let mut reach = 0;
    for vertex in 0..none {
        let behind = neighbors[vertex as usize][1];
        if behind != none {
            neighbors[behind as usize][0] = vertex;
            reach = reach.max(vertex.abs_diff(behind));
        }
    }
    (neighbors, reach as usize)
}
