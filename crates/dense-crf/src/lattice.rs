//! The part of the permutohedral lattice that an image touches, and the tables for filtering: built once per image,
//! used by every iteration.
//!
//! Two levels. Each tile of pixels has *rows*, one for each vertex that its pixels touch, numbered from 0 so that a pixel's
//! vertex takes 16 bits. All tiles' rows lie one after the other in one buffer; a *vertex* of the lattice gathers the rows
//! of the tiles that touch it. Vertices are sorted by their keys, hence by their place in the image, and cut into *blocks*
//! of whole places: axes of the colours never leave a block, which is blurred along all of them while it is in the cache.

use std::ops::Range;

use rayon::prelude::*;

use crate::Error;
use crate::blur::{LatticeValues, blur};
use crate::chains::Chains;
use crate::features::{Features, LANES, MAX_DIMENSION};
use crate::large_buffer::zeros;

use crate::row_table::RowTable;
use crate::simplex::{Embedding, PLACE_AXES, Simplices};
use crate::tiles::{Tiles, split_at_starts};

/// Barycentric coordinates are stored as 16-bit fractions of this. The rounding, 8e-6, changes marginals less than
/// reordering f32 sums does on real images, and it halves the largest table.
pub(crate) const WEIGHT_ONE: f32 = 65535.0;

/// Minimum of vertices per block: with 24 classes a fifth of a second-level cache.
const BLOCK: usize = 2048;

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
    /// The lines of neighbours along each of the d+1 axes.
    pub(crate) chains: Vec<Chains>,
    /// Blocks that the chains are grouped by.
    pub(crate) num_blocks: usize,
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
        let block_starts = block_starts(&embedding, &keys);
        let chains = (0..=dimension)
            .into_par_iter()
            .map(|axis| Chains::along(axis, &embedding, &keys, &block_starts))
            .collect();
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
            chains,
            num_blocks: block_starts.len() - 1,
        })
    }

    /// The filter applied to an image with `L` values per pixel, in tile order. `value_of` gives a pixel's values by
    /// its row-major index.
    pub(crate) fn filter<const L: usize>(
        &self,
        tiles: &Tiles,
        value_of: impl Fn(usize) -> [f32; L] + Sync,
    ) -> Vec<[f32; L]> {
        let num_corners = self.dimension + 1;
        let mut values = LatticeValues::new(self, L);
        let rows_of_tiles = split_at_starts(&mut values.rows, &self.row_starts, L);
        rows_of_tiles.into_par_iter().enumerate().for_each(|(tile, rows)| {
            let (rows, _) = rows.as_chunks_mut::<L>();
            let corners = tiles.slice(&self.corners, num_corners, tile).chunks_exact(num_corners);
            for (pixel, corners) in tiles.runs(tile).flatten().zip(corners) {
                let value = value_of(pixel);
                for corner in corners {
                    add_scaled(
                        &mut rows[(corner & 0xffff) as usize],
                        (corner >> 16) as f32 / WEIGHT_ONE,
                        &value,
                    );
                }
            }
        });
        blur(self, &mut values, L);
        let (blurred, _) = values.vertices.as_chunks::<L>();
        let mut out = vec![[0.0; L]; tiles.num_pixels()];
        tiles.split_mut(&mut out, 1).into_par_iter().enumerate().for_each(|(tile, out)| {
            let vertices = &self.vertex_of_row[self.row_starts[tile]..self.row_starts[tile + 1]];
            let corners = tiles.slice(&self.corners, num_corners, tile).chunks_exact(num_corners);
            for (out, corners) in out.iter_mut().zip(corners) {
                for corner in corners {
                    let vertex = vertices[(corner & 0xffff) as usize] as usize;
                    add_scaled(out, (corner >> 16) as f32, &blurred[vertex]);
                }
                out.iter_mut().for_each(|sum| *sum *= self.alpha() / WEIGHT_ONE);
            }
        });
        out
    }

    /// Compensates the gain of the blur, so that the kernel is 1 at distance 0 (a constant in Adams' code).
    pub(crate) fn alpha(&self) -> f32 {
        1.0 / (1.0 + (-(self.dimension as f32)).exp2())
    }

    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }

    /// Groups of axes to blur: those that lead from block to block one by one, all others together.
    pub(crate) fn axis_groups(&self) -> impl Iterator<Item = Range<usize>> {
        let num_axes = self.dimension + 1;
        let across = num_axes.min(PLACE_AXES);
        (0..across).map(|axis| axis..axis + 1).chain((across < num_axes).then_some(across..num_axes))
    }

    pub(crate) fn num_vertices(&self) -> usize {
        self.vertex_starts.len() - 1
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.rows_of_vertex.len()
    }
}

fn add_scaled<const L: usize>(sum: &mut [f32; L], factor: f32, value: &[f32; L]) {
    for lane in 0..L {
        sum[lane] += factor * value[lane];
    }
}

/// Cuts vertices into blocks that hold whole places; the last is the number of vertices.
fn block_starts(embedding: &Embedding, keys: &[u64]) -> Vec<usize> {
    let mut starts = vec![0];
    for vertex in 1..keys.len() {
        if vertex - starts[starts.len() - 1] >= BLOCK
            && embedding.place(keys[vertex]) != embedding.place(keys[vertex - 1])
        {
            starts.push(vertex);
        }
    }
    starts.push(keys.len());
    starts
}

/// The corners of every pixel, and for each tile the keys of its rows.
fn embed_tiles(features: &Features<'_>, embedding: &Embedding, tiles: &Tiles) -> (Vec<u32>, Vec<Vec<u64>>) {
    let num_corners = features.dimension() + 1;
    let mut corners = zeros(tiles.num_pixels() * num_corners);
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

/// Renumbers a tile's rows in key order: neighbours along every lattice axis then have the same order as the rows, and
/// the blur reads memory in a few ascending streams.
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
    // A new allocation, because collecting in place would keep the larger one of `sorted`.
    sorted.iter().map(|&(key, _)| key).collect()
}

/// The keys of all vertices, ascending; each vertex's first entry in the list of rows, and that list.
fn group_by_vertex(keys_of_tiles: Vec<Vec<u64>>, row_starts: &[usize]) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
    let tiles = keys_of_tiles.into_iter().zip(row_starts).map(|(keys, &start)| {
        let rows = (start as u32..).take(keys.len()).collect();
        KeyedRows { keys, rows }
    });
    let KeyedRows { mut keys, rows } = merge(tiles.collect());
    let num_vertices = keys.chunk_by(|a, b| a == b).count();
    let mut starts = Vec::with_capacity(num_vertices + 1);
    starts.push(0);
    starts.extend(keys.chunk_by(|a, b| a == b).scan(0, |end, chunk| {
        *end += chunk.len() as u32;
        Some(*end)
    }));
    keys.dedup();
    keys.shrink_to_fit();
    (keys, starts, rows)
}

/// Rows with the keys of their vertices, ascending.
#[derive(Default)]
struct KeyedRows {
    keys: Vec<u64>,
    rows: Vec<u32>,
}

/// Merges the rows of tiles; equal keys keep their rows in the order of tiles.
fn merge(mut parts: Vec<KeyedRows>) -> KeyedRows {
    if parts.len() <= 1 {
        return parts.pop().unwrap_or_default();
    }
    let second_half = parts.split_off(parts.len() / 2);
    let (left, right) = rayon::join(|| merge(parts), || merge(second_half));
    let len = left.keys.len() + right.keys.len();
    let mut merged = KeyedRows { keys: Vec::with_capacity(len), rows: Vec::with_capacity(len) };
    let (mut i, mut j) = (0, 0);
    while i < left.keys.len() && j < right.keys.len() {
        let from_left = left.keys[i] <= right.keys[j];
        merged.keys.push(if from_left { left.keys[i] } else { right.keys[j] });
        merged.rows.push(if from_left { left.rows[i] } else { right.rows[j] });
        i += usize::from(from_left);
        j += usize::from(!from_left);
    }
    for (part, from) in [(&left, i), (&right, j)] {
        merged.keys.extend_from_slice(&part.keys[from..]);
        merged.rows.extend_from_slice(&part.rows[from..]);
    }
    merged
}
