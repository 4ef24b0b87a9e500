//! Mean-field inference (Krähenbühl and Koltun, "Efficient inference in fully connected CRFs with Gaussian edge
//! potentials", 2011, algorithm 1), one tile of pixels at a time.
//!
//! An iteration is one pass over tiles and one blur for each lattice. The tile pass takes the messages from the blurred
//! lattices and the last marginals, adds the unary, takes the softmax and splats the new marginals straight into the tile's
//! rows, one run of pixels at a time. Only a stencil needs the marginals as an image.

use rayon::prelude::*;

use crate::blur::{LatticeValues, blur, with_lanes};
use crate::large_buffer::zeros;
use crate::lattice::Lattice;
use crate::pairwise::{Compatibility, LatticeFilter};
use crate::stencil::{self, Bordered, Stencil};
use crate::tiles::{TILE_SIDE, Tiles, split_at_starts};
use crate::vectors::widest_vectors;

/// The mean field of one image: unary and terms over the classes that are present.
pub(crate) struct MeanField<'a> {
    pub(crate) tiles: &'a Tiles,
    /// Negated unary energies in tile order, `lanes` values per pixel; −∞ in the padding.
    pub(crate) logits: &'a [f32],
    pub(crate) lanes: usize,
    pub(crate) stencils: Vec<(&'a Stencil, Potential)>,
    pub(crate) lattices: Vec<(&'a LatticeFilter, Potential)>,
}

/// A label compatibility over the classes present, as factors of the messages in the logits.
pub(crate) enum Potential {
    Scalar(f32),
    /// One factor per lane.
    PerClass(Vec<f32>),
    /// `lanes × lanes`, symmetric.
    Matrix(Vec<f32>),
}

impl Potential {
    /// `classes` lists the classes present, one per lane.
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

/// Receives the marginals of a tile, `lanes` values per pixel, run by run along the image rows.
pub(crate) trait TileSink: Send {
    fn take<const L: usize>(&mut self, run: usize, marginals: &[f32]);
}

/// The results of the last iteration.
struct Filtered<'a> {
    /// The marginals as an image with a border, for stencils.
    marginals: &'a [f32],
    /// The blurred vertices of each lattice.
    vertices: Vec<&'a [f32]>,
}

/// Buffers of one thread.
struct Scratch {
    run: Vec<f32>,
    row: Vec<f32>,
    /// For each lattice the blurred values of the tile's rows.
    sliced: Vec<Vec<f32>>,
}

impl MeanField<'_> {
    /// Runs the iterations and passes each tile's marginals to its sink. Calls `goes_on` before every iteration;
    /// returns `None`, without calling the sinks, as soon as it is false.
    pub(crate) fn run<S: TileSink>(
        &self,
        iterations: usize,
        sinks: Vec<S>,
        goes_on: impl Fn() -> bool,
    ) -> Option<()> {
        if iterations == 0 {
            self.tile_pass(None, sinks);
            return Some(());
        }
        let mut values: Vec<LatticeValues> =
            self.lattices.iter().map(|(filter, _)| LatticeValues::new(&filter.lattice, self.lanes)).collect();
        let image_len = if self.stencils.is_empty() { 0 } else { self.bordered().len() };
        let [mut last, mut next] = [zeros(image_len), zeros(image_len)];
        for iteration in 0..iterations {
            if !goes_on() {
                return None;
            }
            let (rows, vertices) = values
                .iter_mut()
                .map(|values| (values.rows.as_mut_slice(), values.vertices.as_slice()))
                .unzip();
            let filtered = Filtered { marginals: &last, vertices };
            self.tile_pass((iteration > 0).then_some(&filtered), self.splats(rows, &mut next));
            for ((filter, _), values) in self.lattices.iter().zip(&mut values) {
                blur(&filter.lattice, values, self.lanes);
            }
            std::mem::swap(&mut last, &mut next);
        }
        let vertices = values.iter().map(|values| values.vertices.as_slice()).collect();
        self.tile_pass(Some(&Filtered { marginals: &last, vertices }), sinks);
        Some(())
    }

    fn bordered(&self) -> Bordered {
        Bordered::new(self.tiles.width(), self.tiles.height(), self.lanes)
    }

    /// One pass over all tiles: messages from the last iteration (none at first), softmax, and on to the sinks.
    fn tile_pass<S: TileSink>(&self, filtered: Option<&Filtered<'_>>, sinks: Vec<S>) {
        sinks.into_par_iter().enumerate().for_each_init(
            || Scratch {
                run: vec![0.0; TILE_SIDE * self.lanes],
                row: vec![0.0; self.lanes],
                sliced: vec![Vec::new(); self.lattices.len()],
            },
            |scratch, (tile, sink)| {
                with_lanes!(self.lanes, pass_tile(self, tile, filtered, sink, scratch));
            },
        );
    }

    /// Sinks that splat each tile's marginals into its rows of every lattice, and write them to the image for stencils.
    fn splats<'v>(&'v self, rows_of_lattices: Vec<&'v mut [f32]>, image: &'v mut [f32]) -> Vec<Splat<'v>> {
        let mut splats: Vec<Splat<'v>> = (0..self.tiles.len())
            .map(|tile| Splat { field: self, tile, rows: Vec::new(), image_runs: Vec::new() })
            .collect();
        for ((filter, _), rows) in self.lattices.iter().zip(rows_of_lattices) {
            let parts = split_at_starts(rows, &filter.lattice.row_starts, self.lanes);
            for (splat, part) in splats.iter_mut().zip(parts) {
                splat.rows.push(part);
            }
        }
        if !self.stencils.is_empty() {
            let bordered = self.bordered();
            let runs = self.tiles.split_runs_mut(bordered.inner(image), bordered.pitch, self.lanes);
            for (splat, runs) in splats.iter_mut().zip(runs) {
                splat.image_runs = runs;
            }
        }
        splats
    }
}

widest_vectors! {
    fn pass_tile / pass_tile_inline(
        field: &MeanField<'_>,
        tile: usize,
        filtered: Option<&Filtered<'_>>,
        sink: impl TileSink,
        scratch: &mut Scratch,
    )
}

#[inline(always)]
fn pass_tile_inline<const L: usize>(
    field: &MeanField<'_>,
    tile: usize,
    filtered: Option<&Filtered<'_>>,
    mut sink: impl TileSink,
    scratch: &mut Scratch,
) {
    let lanes = if L == 0 { field.lanes } else { L };
    let tiles = field.tiles;
    if let Some(filtered) = filtered {
        let lattices = field.lattices.iter().zip(&filtered.vertices).zip(&mut scratch.sliced);
        for (((filter, _), vertices), sliced) in lattices {
            let lattice = &filter.lattice;
            let rows = lattice.row_starts[tile]..lattice.row_starts[tile + 1];
            sliced.resize(rows.len() * lanes, 0.0);
            for (row, &vertex) in sliced.chunks_exact_mut(lanes).zip(&lattice.vertex_of_row[rows]) {
                row.copy_from_slice(&vertices[vertex as usize * lanes..][..lanes]);
            }
        }
    }
    let [columns, rows] = tiles.area(tile);
    let logits = tiles.slice(field.logits, lanes, tile).chunks_exact(columns.len() * lanes);
    for (index, (y, logits)) in rows.zip(logits).enumerate() {
        let run = &mut scratch.run[..logits.len()];
        run.copy_from_slice(logits);
        if let Some(filtered) = filtered {
            for (stencil, potential) in &field.stencils {
                let around =
                    Around { image: filtered.marginals, bordered: field.bordered(), x: columns.start, y };
                add_stencil::<L>(stencil, potential, around, run, &mut scratch.row);
            }
            for ((filter, potential), sliced) in field.lattices.iter().zip(&scratch.sliced) {
                let place = Place { tiles, tile, first_pixel: index * columns.len() };
                add_slice::<L>(filter, potential, sliced, place, run, &mut scratch.row);
            }
        }
        softmax::<L>(run, lanes);
        sink.take::<L>(index, run);
    }
}

/// Adds a pixel's message, scaled, to its logits.
#[inline(always)]
fn add_message(potential: &Potential, message: &[f32], scale: f32, logits: &mut [f32]) {
    let lanes = message.len();
    let logits = &mut logits[..lanes];
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

/// The marginals around a run of pixels.
struct Around<'a> {
    image: &'a [f32],
    bordered: Bordered,
    x: usize,
    y: usize,
}

/// Adds a stencil's messages to a run of logits.
#[inline(always)]
fn add_stencil<const L: usize>(
    stencil: &Stencil,
    potential: &Potential,
    around: Around<'_>,
    run: &mut [f32],
    row: &mut [f32],
) {
    let lanes = if L == 0 { row.len() } else { L };
    let mut fixed = [0.0; L];
    let message = if L == 0 { row } else { &mut fixed[..] };
    let weights = &stencil.weights_of_row(around.y)[around.x..];
    for (x, (logits, weights)) in (around.x..).zip(run.chunks_exact_mut(lanes).zip(weights)) {
        message.fill(0.0);
        let mut corner = around.bordered.corner_of(x, around.y);
        for weights in weights.as_chunks::<{ stencil::SIDE }>().0 {
            let neighbors = &around.image[corner..][..stencil::SIDE * lanes];
            // Sums seven taps as a tree: sequential additions would wait for each other.
            for lane in 0..lanes {
                let tap = |tap: usize| weights[tap] * neighbors[tap * lanes + lane];
                message[lane] += ((tap(0) + tap(1)) + (tap(2) + tap(3))) + ((tap(4) + tap(5)) + tap(6));
            }
            corner += around.bordered.pitch;
        }
        add_message(potential, message, 1.0, logits);
    }
}

/// The start of a run of pixels.
#[derive(Clone, Copy)]
struct Place<'a> {
    tiles: &'a Tiles,
    tile: usize,
    first_pixel: usize,
}

impl<'a> Place<'a> {
    /// The corners of the pixels from here on.
    #[inline(always)]
    fn corners(&self, lattice: &'a Lattice) -> std::slice::ChunksExact<'a, u32> {
        let num_corners = lattice.dimension() + 1;
        let corners = self.tiles.slice(&lattice.corners, num_corners, self.tile);
        corners[self.first_pixel * num_corners..].chunks_exact(num_corners)
    }
}

/// Adds a lattice's messages to a run of logits.
#[inline(always)]
fn add_slice<const L: usize>(
    filter: &LatticeFilter,
    potential: &Potential,
    sliced: &[f32],
    place: Place<'_>,
    run: &mut [f32],
    row: &mut [f32],
) {
    let lanes = if L == 0 { row.len() } else { L };
    let scale_after = filter.scale_after(place.tiles, place.tile);
    let mut fixed = [0.0; L];
    let message = if L == 0 { row } else { &mut fixed[..] };
    let pixels = run.chunks_exact_mut(lanes).zip(place.corners(&filter.lattice));
    for (pixel, (logits, corners)) in (place.first_pixel..).zip(pixels) {
        message.fill(0.0);
        for corner in corners {
            let weight = (corner >> 16) as f32;
            let values = &sliced[(corner & 0xffff) as usize * lanes..][..lanes];
            for lane in 0..lanes {
                message[lane] += weight * values[lane];
            }
        }
        add_message(potential, message, scale_after(pixel), logits);
    }
}

/// Writes a tile's marginals to where the next iteration needs them.
struct Splat<'a> {
    field: &'a MeanField<'a>,
    tile: usize,
    /// The tile's rows of each lattice.
    rows: Vec<&'a mut [f32]>,
    /// The tile's part of the image for stencils, if there are any.
    image_runs: Vec<&'a mut [f32]>,
}

impl TileSink for Splat<'_> {
    #[inline(always)]
    fn take<const L: usize>(&mut self, run: usize, marginals: &[f32]) {
        if let Some(image_run) = self.image_runs.get_mut(run) {
            image_run.copy_from_slice(marginals);
        }
        let lanes = if L == 0 { self.field.lanes } else { L };
        let place =
            Place { tiles: self.field.tiles, tile: self.tile, first_pixel: run * (marginals.len() / lanes) };
        for ((filter, _), rows) in self.field.lattices.iter().zip(&mut self.rows) {
            if run == 0 {
                rows.fill(0.0);
            }
            splat::<L>(filter, place, marginals, rows, lanes);
        }
    }
}

#[inline(always)]
fn splat<const L: usize>(
    filter: &LatticeFilter,
    place: Place<'_>,
    marginals: &[f32],
    rows: &mut [f32],
    lanes: usize,
) {
    let lanes = if L == 0 { lanes } else { L };
    let scale_before = filter.scale_before(place.tiles, place.tile);
    let pixels = marginals.chunks_exact(lanes).zip(place.corners(&filter.lattice));
    for (pixel, (marginals, corners)) in (place.first_pixel..).zip(pixels) {
        let scale = scale_before(pixel);
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

/// Reduces a row in four interleaved parts, the same on every machine, so that it vectorises.
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

/// `eˣ` for x ≤ 0 within 2 units in the last place, in a form that vectorises. Below −60, and for −∞, exactly 0, so
/// that no marginal is a denormal number, which would slow down every sum.
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
