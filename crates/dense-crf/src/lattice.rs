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
use crate::simplex::{Embedding, Simplices};
use crate::tiles::Tiles;
use crate::vertex_table::VertexTable;

/// Marks, in a blur order, the first vertex of a lattice line.
pub(crate) const LINE_START: u32 = 1 << 31;

/// Barycentric coordinates are stored as 16-bit fractions of this. The rounding, 8e-6, changes marginals by less than
/// f32 sums in another order do on real images, and it halves the largest table.
pub(crate) const WEIGHT_ONE: f32 = 65535.0;

pub(crate) struct Lattice {
    dimension: usize,
    /// For each pixel in tile order and each vertex of its simplex: row within the tile (low half), weight (high half).
    pub(crate) corners: Vec<u32>,
    /// First row of each tile, and the number of rows at the end.
    pub(crate) row_starts: Vec<usize>,
    /// For each row, where its vertex lies in the layout of the last axis.
    pub(crate) vertex_of_row: Vec<u32>,
    /// For each vertex in the layout of axis 0, its first entry in `rows_of_vertex`; and the number of rows at the end.
    pub(crate) vertex_starts: Vec<u32>,
    /// The rows of each vertex in ascending order.
    pub(crate) rows_of_vertex: Vec<u32>,
    /// For each axis, the vertices line by line, as positions in the layout of the axis before; [`LINE_START`] is set
    /// where a line begins. Axis 0 refers to itself.
    pub(crate) orders: Vec<Vec<u32>>,
}

impl Lattice {
    pub(crate) fn build(features: &Features<'_>, tiles: &Tiles) -> Result<Self, Error> {
        let dimension = features.dimension();
        let embedding = Embedding::new(&features.bounds())?;
        let limit = (LINE_START - 1) as usize / (dimension + 1);
        if tiles.num_pixels() > limit {
            return Err(Error::TooLarge { what: "the number of pixels", got: tiles.num_pixels(), limit });
        }

        let (corners, keys_of_tiles) = embed_tiles(features, &embedding, tiles);
        let mut row_starts = Vec::with_capacity(tiles.len() + 1);
        row_starts.push(0);
        for keys in &keys_of_tiles {
            row_starts.push(row_starts[row_starts.len() - 1] + keys.len());
        }
        let num_rows = row_starts[tiles.len()];

        let mut table = VertexTable::new(embedding.num_keys(), num_rows);
        let mut keys = Vec::new();
        let mut vertex_of_row = Vec::with_capacity(num_rows);
        for key in keys_of_tiles.into_iter().flatten() {
            let (vertex, new) = table.insert(key);
            if new {
                keys.push(key);
            }
            vertex_of_row.push(vertex);
        }

        let lines: Vec<Vec<u32>> =
            (0..=dimension).into_par_iter().map(|axis| lines_along(axis, &embedding, &table, &keys)).collect();
        drop((table, keys));
        let (orders, first_layout, last_layout) = chain_layouts(lines);

        let (vertex_starts, rows_of_vertex) = group_rows(&vertex_of_row, &first_layout);
        vertex_of_row.par_iter_mut().for_each(|vertex| *vertex = last_layout[*vertex as usize]);
        Ok(Self { dimension, corners, row_starts, vertex_of_row, vertex_starts, rows_of_vertex, orders })
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
        .map_init(
            || VertexTable::hashed(1 << 12),
            |table, (tile, corners)| {
                table.clear();
                match features.dimension() {
                    2 => embed_tile::<2>(features, embedding, tiles, tile, table, corners),
                    5 => embed_tile::<5>(features, embedding, tiles, tile, table, corners),
                    _ => embed_tile::<0>(features, embedding, tiles, tile, table, corners),
                }
            },
        )
        .collect();
    (corners, keys_of_tiles)
}

fn embed_tile<const D: usize>(
    features: &Features<'_>,
    embedding: &Embedding,
    tiles: &Tiles,
    tile: usize,
    table: &mut VertexTable,
    corners: &mut [u32],
) -> Vec<u64> {
    let num_corners = if D == 0 { features.dimension() + 1 } else { D + 1 };
    let mut keys = Vec::new();
    let mut block = [[0.0; LANES]; MAX_DIMENSION];
    let mut simplices = Simplices::default();
    // The last vertex seen with each remainder: often also that of the next pixel.
    let mut recent = [(u64::MAX, 0u32); MAX_DIMENSION + 1];
    let mut corners = corners.chunks_exact_mut(num_corners);
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
    keys
}

/// All vertices, line by line along an axis; lines in the order of their first vertex.
fn lines_along(axis: usize, embedding: &Embedding, table: &VertexTable, keys: &[u64]) -> Vec<u32> {
    const NONE: u32 = u32::MAX;
    let next: Vec<u32> =
        keys.par_iter().map(|&key| table.find(embedding.next_along(axis, key)).unwrap_or(NONE)).collect();
    let mut continues = vec![false; keys.len()];
    for &vertex in next.iter().filter(|&&vertex| vertex != NONE) {
        continues[vertex as usize] = true;
    }
    let mut order = Vec::with_capacity(keys.len());
    for first in 0..keys.len() as u32 {
        if !continues[first as usize] {
            order.push(first | LINE_START);
            let mut vertex = next[first as usize];
            while vertex != NONE {
                order.push(vertex);
                vertex = next[vertex as usize];
            }
        }
    }
    order
}

/// Turns lines of vertex numbers into positions in the layout of the axis before. Also returns where each vertex lies in
/// the layouts of the first and of the last axis.
fn chain_layouts(mut lines: Vec<Vec<u32>>) -> (Vec<Vec<u32>>, Vec<u32>, Vec<u32>) {
    let layouts: Vec<Vec<u32>> = lines
        .par_iter()
        .map(|order| {
            let mut layout = vec![0; order.len()];
            for (position, vertex) in order.iter().enumerate() {
                layout[(vertex & !LINE_START) as usize] = position as u32;
            }
            layout
        })
        .collect();
    for (axis, order) in lines.iter_mut().enumerate() {
        let before = &layouts[axis.saturating_sub(1)];
        order.par_iter_mut().for_each(|entry| {
            *entry = before[(*entry & !LINE_START) as usize] | (*entry & LINE_START);
        });
    }
    let mut layouts = layouts.into_iter();
    let first = layouts.next().unwrap_or_default();
    let last = layouts.last().unwrap_or_else(|| first.clone());
    (lines, first, last)
}

/// Groups rows by vertex (a counting sort): starts by position in the first layout, and the rows.
fn group_rows(vertex_of_row: &[u32], first_layout: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; first_layout.len() + 1];
    for &vertex in vertex_of_row {
        starts[first_layout[vertex as usize] as usize] += 1;
    }
    let mut end = 0;
    for start in &mut starts {
        end += *start;
        *start = end;
    }
    let mut rows = vec![0; vertex_of_row.len()];
    for (row, &vertex) in vertex_of_row.iter().enumerate().rev() {
        let start = &mut starts[first_layout[vertex as usize] as usize];
        *start -= 1;
        rows[*start as usize] = row as u32;
    }
    (starts, rows)
}
