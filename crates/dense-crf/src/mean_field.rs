//! Mean-field inference (Krähenbühl and Koltun, "Efficient inference in fully connected CRFs with Gaussian edge
//! potentials", 2011, algorithm 1), one tile of pixels at a time.
//!
//! An iteration is one pass over tiles and one blur for each term. The tile pass slices the messages out of the blurred
//! lattices, adds the unary, takes the softmax and splats the new marginals straight into the tile's rows: marginals live
//! only in a small block, never as an image, until the last pass hands them to the caller.

use rayon::prelude::*;

use crate::blur::{LatticeValues, blur, with_lanes};
use crate::pairwise::{Compatibility, Term};
use crate::tiles::{Tiles, split_at_starts};
use crate::vectors::widest_vectors;

/// Pixels that go through slice, softmax and splat together; their marginals stay in the first-level cache.
const BLOCK: usize = 64;

/// The mean field of one image: unary and terms over the classes that are present.
pub(crate) struct MeanField<'a> {
    pub(crate) tiles: &'a Tiles,
    /// Negated unary energies in tile order, `lanes` values a pixel; −∞ in the padding.
    pub(crate) logits: &'a [f32],
    pub(crate) lanes: usize,
    pub(crate) terms: Vec<(&'a Term, Potential)>,
}

/// A label compatibility over the classes present, as factors of the messages in the logits.
pub(crate) enum Potential {
    Scalar(f32),
    /// One factor a lane.
    PerClass(Vec<f32>),
    /// `lanes × lanes`, symmetric.
    Matrix(Vec<f32>),
}

impl Potential {
    /// `classes` lists the classes present, one a lane.
    pub(crate) fn new(
        compatibility: &Compatibility,
        classes: &[usize],
        num_classes: usize,
        lanes: usize,
    ) -> Self {
        match compatibility {
            Compatibility::Potts(weight) => Self::Scalar(*weight),
            Compatibility::Diagonal(costs) => {
                let mut factors = vec![0.0; lanes];
                for (factor, &class) in factors.iter_mut().zip(classes) {
                    *factor = -costs[class];
                }
                Self::PerClass(factors)
            }
            Compatibility::Matrix(costs) => {
                let mut factors = vec![0.0; lanes * lanes];
                for (row, &a) in classes.iter().enumerate() {
                    for (column, &b) in classes.iter().enumerate() {
                        factors[row * lanes + column] =
                            -0.5 * (costs[a * num_classes + b] + costs[b * num_classes + a]);
                    }
                }
                Self::Matrix(factors)
            }
        }
    }
}

/// Receives the marginals of a tile, `lanes` values a pixel: first pixel within the tile, and the values.
pub(crate) trait TileSink: Send {
    fn take<const L: usize>(&mut self, first_pixel: usize, marginals: &[f32]);
}

/// Buffers of one thread.
struct Scratch {
    block: Vec<f32>,
    row: Vec<f32>,
    /// For each term the blurred values of the tile's rows.
    sliced: Vec<Vec<f32>>,
}

impl MeanField<'_> {
    /// Runs the iterations and hands each tile's marginals to its sink.
    pub(crate) fn run<S: TileSink>(&self, iterations: usize, sinks: Vec<S>) {
        if iterations == 0 || self.terms.is_empty() {
            self.tile_pass(None, sinks);
            return;
        }
        let mut values: Vec<LatticeValues> =
            self.terms.iter().map(|(term, _)| LatticeValues::new(&term.lattice, self.lanes)).collect();
        for iteration in 0..iterations {
            let (mut rows, vertices): (Vec<_>, Vec<_>) = values
                .iter_mut()
                .map(|values| (values.rows.as_mut_slice(), values.vertices.as_slice()))
                .unzip();
            let splats = self.splats(&mut rows);
            self.tile_pass((iteration > 0).then_some(&vertices), splats);
            for ((term, _), values) in self.terms.iter().zip(&mut values) {
                blur(&term.lattice, values, self.lanes);
            }
        }
        let vertices: Vec<&[f32]> = values.iter().map(|values| values.vertices.as_slice()).collect();
        self.tile_pass(Some(&vertices), sinks);
    }

    /// One pass over all tiles: messages from the blurred vertices (none at first), softmax, and on to the sinks.
    fn tile_pass<S: TileSink>(&self, vertices: Option<&Vec<&[f32]>>, sinks: Vec<S>) {
        sinks.into_par_iter().enumerate().for_each_init(
            || Scratch {
                block: vec![0.0; BLOCK * self.lanes],
                row: vec![0.0; self.lanes],
                sliced: vec![Vec::new(); self.terms.len()],
            },
            |scratch, (tile, sink)| {
                with_lanes!(self.lanes, pass_tile(self, tile, vertices, sink, scratch));
            },
        );
    }

    /// Sinks that splat each tile's marginals into its rows of every term.
    fn splats<'v>(&'v self, rows: &'v mut [&mut [f32]]) -> Vec<Splat<'v>> {
        let mut splats: Vec<Splat<'v>> =
            (0..self.tiles.len()).map(|tile| Splat { field: self, tile, rows: Vec::new() }).collect();
        for ((term, _), rows) in self.terms.iter().zip(rows) {
            let parts = split_at_starts(rows, &term.lattice.row_starts, self.lanes);
            for (splat, part) in splats.iter_mut().zip(parts) {
                splat.rows.push(part);
            }
        }
        splats
    }
}

widest_vectors! {
    fn pass_tile / pass_tile_inline(
        field: &MeanField<'_>,
        tile: usize,
        vertices: Option<&Vec<&[f32]>>,
        sink: impl TileSink,
        scratch: &mut Scratch,
    )
}

#[inline(always)]
fn pass_tile_inline<const L: usize>(
    field: &MeanField<'_>,
    tile: usize,
    vertices: Option<&Vec<&[f32]>>,
    mut sink: impl TileSink,
    scratch: &mut Scratch,
) {
    let lanes = if L == 0 { field.lanes } else { L };
    let tiles = field.tiles;
    if let Some(vertices) = vertices {
        for (((term, _), vertices), sliced) in field.terms.iter().zip(vertices).zip(&mut scratch.sliced) {
            let rows = term.lattice.row_starts[tile]..term.lattice.row_starts[tile + 1];
            sliced.resize(rows.len() * lanes, 0.0);
            for (row, &vertex) in sliced.chunks_exact_mut(lanes).zip(&term.lattice.vertex_of_row[rows]) {
                row.copy_from_slice(&vertices[vertex as usize * lanes..][..lanes]);
            }
        }
    }
    let logits = tiles.slice(field.logits, lanes, tile);
    for (index, logits) in logits.chunks(BLOCK * lanes).enumerate() {
        let block = &mut scratch.block[..logits.len()];
        block.copy_from_slice(logits);
        if vertices.is_some() {
            for ((term, potential), sliced) in field.terms.iter().zip(&scratch.sliced) {
                let place = Place { tile, first_pixel: index * BLOCK };
                add_messages::<L>(term, potential, sliced, tiles, place, block, &mut scratch.row);
            }
        }
        softmax::<L>(block, lanes);
        sink.take::<L>(index * BLOCK, block);
    }
}

/// Where a block of pixels begins.
struct Place {
    tile: usize,
    first_pixel: usize,
}

/// Adds a term's messages to a block of logits.
#[inline(always)]
fn add_messages<const L: usize>(
    term: &Term,
    potential: &Potential,
    sliced: &[f32],
    tiles: &Tiles,
    place: Place,
    block: &mut [f32],
    row: &mut [f32],
) {
    let lanes = row.len();
    let lanes = if L == 0 { lanes } else { L };
    let num_corners = term.lattice.dimension() + 1;
    let corners = tiles.slice(&term.lattice.corners, num_corners, place.tile);
    let corners = corners[place.first_pixel * num_corners..].chunks_exact(num_corners);
    let scale_after = term.scale_after(tiles, place.tile);
    let mut fixed = [0.0; L];
    let message = if L == 0 { row } else { &mut fixed[..] };
    for (i, (logits, corners)) in block.chunks_exact_mut(lanes).zip(corners).enumerate() {
        message.fill(0.0);
        for corner in corners {
            let weight = (corner >> 16) as f32;
            let values = &sliced[(corner & 0xffff) as usize * lanes..][..lanes];
            for lane in 0..lanes {
                message[lane] += weight * values[lane];
            }
        }
        let scale = scale_after(place.first_pixel + i);
        match potential {
            Potential::Scalar(factor) => {
                for lane in 0..lanes {
                    logits[lane] += factor * scale * message[lane];
                }
            }
            Potential::PerClass(factors) => {
                for lane in 0..lanes {
                    logits[lane] += factors[lane] * (scale * message[lane]);
                }
            }
            Potential::Matrix(factors) => {
                for (&message, factors) in message.iter().zip(factors.chunks_exact(lanes)) {
                    for lane in 0..lanes {
                        logits[lane] += factors[lane] * (scale * message);
                    }
                }
            }
        }
    }
}

/// Splats a tile's marginals into its rows of every term.
struct Splat<'a> {
    field: &'a MeanField<'a>,
    tile: usize,
    rows: Vec<&'a mut [f32]>,
}

impl TileSink for Splat<'_> {
    #[inline(always)]
    fn take<const L: usize>(&mut self, first_pixel: usize, marginals: &[f32]) {
        let place = Place { tile: self.tile, first_pixel };
        let lanes = self.field.lanes;
        for ((term, _), rows) in self.field.terms.iter().zip(&mut self.rows) {
            if first_pixel == 0 {
                rows.fill(0.0);
            }
            splat::<L>(term, self.field.tiles, &place, marginals, rows, lanes);
        }
    }
}

#[inline(always)]
fn splat<const L: usize>(
    term: &Term,
    tiles: &Tiles,
    place: &Place,
    marginals: &[f32],
    rows: &mut [f32],
    lanes: usize,
) {
    let lanes = if L == 0 { lanes } else { L };
    let num_corners = term.lattice.dimension() + 1;
    let corners = tiles.slice(&term.lattice.corners, num_corners, place.tile);
    let corners = corners[place.first_pixel * num_corners..].chunks_exact(num_corners);
    let scale_before = term.scale_before(tiles, place.tile);
    for (i, (marginals, corners)) in marginals.chunks_exact(lanes).zip(corners).enumerate() {
        let scale = scale_before(place.first_pixel + i);
        for corner in corners {
            let weight = (corner >> 16) as f32 * scale;
            let row = &mut rows[(corner & 0xffff) as usize * lanes..][..lanes];
            for lane in 0..lanes {
                row[lane] += weight * marginals[lane];
            }
        }
    }
}

#[inline(always)]
fn softmax<const L: usize>(block: &mut [f32], lanes: usize) {
    let lanes = if L == 0 { lanes } else { L };
    for row in block.chunks_exact_mut(lanes) {
        let largest = reduce(row, f32::NEG_INFINITY, |a, b| if a > b { a } else { b });
        row.iter_mut().for_each(|value| *value -= largest);
    }
    block.iter_mut().for_each(|value| *value = exp(*value));
    for row in block.chunks_exact_mut(lanes) {
        let factor = 1.0 / reduce(row, 0.0, |a, b| a + b);
        row.iter_mut().for_each(|value| *value *= factor);
    }
}

/// Reduces a row in four interleaved parts, the same way on every machine, so that it becomes vector code.
#[inline(always)]
fn reduce(row: &[f32], start: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let (quads, rest) = row.as_chunks::<4>();
    let mut parts = [start; 4];
    for quad in quads {
        for lane in 0..4 {
            parts[lane] = combine(parts[lane], quad[lane]);
        }
    }
    let whole = combine(combine(parts[0], parts[1]), combine(parts[2], parts[3]));
    rest.iter().fold(whole, |a, &b| combine(a, b))
}

/// `eˣ` for x ≤ 0 within 2 units in the last place, in a form that compilers turn into vector code. Below −60, and for −∞, exactly
/// 0, so that no marginal becomes a denormal number, which would slow every sum that it enters.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // 2ⁿ·eʳ with n the nearest integer to x/ln 2; adding ROUNDING leaves n in the low bits.
    const ROUNDING: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -60.0 { x } else { -60.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUNDING;
    let n = shifted - ROUNDING;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor's series of eʳ on |r| ≤ ln 2 / 2; the first term left out is below 2⁻²⁴ relative.
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r / 720.0)))));
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x > -60.0 { series * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_standard_library() {
        for i in 0..60_000 {
            let x = -0.001 * i as f32;
            let expected = x.exp();
            assert!((exp(x) - expected).abs() <= 3e-7 * expected, "exp({x}) = {} not {expected}", exp(x));
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-61.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }
}
