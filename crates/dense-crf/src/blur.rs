//! Sums the tiles' rows into lattice vertices and blurs along the d+1 lattice axes. Values are rows of `lanes` numbers, one
//! a class; every loop over lanes has a length known at compile time for up to 32 classes, so that it becomes vector code.

use std::ops::Range;

use rayon::prelude::*;

use crate::lattice::Lattice;
use crate::neighbors::Neighbors;
use crate::vectors::widest_vectors;

/// Vertices that one task handles: enough work for a task, little enough for the first-level cache.
const CHUNK: usize = 512;

/// Memory for a window's two buffers, about the size of a core's second-level cache.
const WINDOW_BYTES: usize = 3 << 19;

/// Padded number of classes.
pub(crate) fn lanes_for(num_classes: usize) -> usize {
    match num_classes {
        0..=2 => num_classes,
        3..=4 => 4,
        _ => num_classes.next_multiple_of(8),
    }
}

/// Calls `$function::<L>($arguments)` with `L` lanes if that count has code of its own, else with `L = 0`.
macro_rules! with_lanes {
    ($lanes:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $lanes {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            4 => $function::<4>($($argument),*),
            8 => $function::<8>($($argument),*),
            16 => $function::<16>($($argument),*),
            24 => $function::<24>($($argument),*),
            32 => $function::<32>($($argument),*),
            _ => $function::<0>($($argument),*),
        }
    };
}
pub(crate) use with_lanes;

/// The two buffers that a lattice is filtered in.
#[derive(Default)]
pub(crate) struct LatticeValues {
    /// The tiles' rows: what splatting writes. Overwritten by the blur.
    pub(crate) rows: Vec<f32>,
    /// The vertices in the layout of the last axis: what slicing reads.
    pub(crate) vertices: Vec<f32>,
}

impl LatticeValues {
    pub(crate) fn new(lattice: &Lattice, lanes: usize) -> Self {
        // Both hold a row of zeros behind the vertices, the neighbour of vertices that have none.
        let num_padded = lattice.num_vertices() + 1;
        Self {
            rows: vec![0.0; lattice.num_rows().max(num_padded) * lanes],
            vertices: vec![0.0; num_padded * lanes],
        }
    }
}

/// From rows to blurred vertices.
pub(crate) fn blur(lattice: &Lattice, values: &mut LatticeValues, lanes: usize) {
    with_lanes!(lanes, blur_lanes(lattice, values, lanes));
}

fn blur_lanes<const L: usize>(lattice: &Lattice, values: &mut LatticeValues, lanes: usize) {
    match window_length(lattice, lanes) {
        Some(length) => blur_in_windows::<L>(lattice, values, length, lanes),
        None => blur_in_passes::<L>(lattice, values, lanes),
    }
}

/// How many vertices to blur along all axes at once so that it happens within the cache, if that pays: each axis needs its
/// reach more on both sides, and these margins are computed twice.
fn window_length(lattice: &Lattice, lanes: usize) -> Option<usize> {
    let capacity = WINDOW_BYTES / (2 * lanes * size_of::<f32>());
    let margin: usize = lattice.neighbors.iter().map(Neighbors::reach).sum();
    capacity.checked_sub(2 * margin).filter(|&length| length >= margin.max(1))
}

/// Sums and blurs window by window, from `rows` straight to `vertices`.
fn blur_in_windows<const L: usize>(
    lattice: &Lattice,
    values: &mut LatticeValues,
    length: usize,
    lanes: usize,
) {
    let num_vertices = lattice.num_vertices();
    let rows = &values.rows;
    let (vertices, zeros) = values.vertices.split_at_mut(num_vertices * lanes);
    zeros[..lanes].fill(0.0);
    vertices.par_chunks_mut(length * lanes).enumerate().for_each_init(
        || (Vec::new(), Vec::new()),
        |(source, target), (index, out)| {
            // Ranges of vertices after the sum and after each axis, from the last to the first.
            let mut range = index * length..((index + 1) * length).min(num_vertices);
            let mut ranges = Vec::with_capacity(lattice.neighbors.len());
            for reach in lattice.neighbors.iter().rev().map(Neighbors::reach) {
                let wider = range.start.saturating_sub(reach)..(range.end + reach).min(num_vertices);
                ranges.push(std::mem::replace(&mut range, wider));
            }
            let resize = |values: &mut Vec<f32>, range: &Range<usize>| {
                values.resize((range.len() + 1) * lanes, 0.0);
                values[range.len() * lanes..].fill(0.0);
            };
            resize(source, &range);
            sum_rows::<L>(lattice, rows, range.start, &mut source[..range.len() * lanes], lanes);
            for axis in &lattice.neighbors {
                let window =
                    Window { values: source, start: range.start, zeros: range.len(), none: num_vertices };
                range = ranges.pop().unwrap_or_default();
                if ranges.is_empty() {
                    blur_axis::<L>(window, axis, range.start, out, lanes);
                } else {
                    resize(target, &range);
                    blur_axis::<L>(window, axis, range.start, &mut target[..range.len() * lanes], lanes);
                    std::mem::swap(source, target);
                }
            }
        },
    );
}

/// Sums and blurs in passes over all vertices.
fn blur_in_passes<const L: usize>(lattice: &Lattice, values: &mut LatticeValues, lanes: usize) {
    let LatticeValues { rows, vertices } = values;
    let num_vertices = lattice.num_vertices();
    fill_vertices(num_vertices, vertices, lanes, |first, out| {
        sum_rows::<L>(lattice, rows, first, out, lanes)
    });
    let (mut source, mut target) = (vertices, rows);
    for group in axis_groups(lattice.neighbors.len()) {
        let window = Window { values: source, start: 0, zeros: num_vertices, none: num_vertices };
        match &lattice.neighbors[group] {
            [axis] => fill_vertices(num_vertices, target, lanes, |first, out| {
                blur_axis::<L>(window, axis, first, out, lanes);
            }),
            [axis, then] => fill_vertices(num_vertices, target, lanes, |first, out| {
                blur_two_axes::<L>(window, [axis, then], first, out, lanes);
            }),
            _ => unreachable!("groups hold one axis or two"),
        }
        std::mem::swap(&mut source, &mut target);
    }
}

/// Axes that are blurred in one pass, one or two of them. Two save the memory traffic of a pass and repeat some sums, which costs less. The
/// number of groups is even, so that the result ends in the buffer that it began in.
fn axis_groups(num_axes: usize) -> impl Iterator<Item = Range<usize>> {
    let num_groups = num_axes.div_ceil(2).next_multiple_of(2);
    (0..num_groups).map(move |group| group * num_axes / num_groups..(group + 1) * num_axes / num_groups)
}

/// Fills the vertices of a buffer chunk by chunk, and the row behind them with zeros.
fn fill_vertices(
    num_vertices: usize,
    values: &mut [f32],
    lanes: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) {
    let (vertices, zeros) = values.split_at_mut(num_vertices * lanes);
    zeros[..lanes].fill(0.0);
    let chunks = vertices.par_chunks_mut(CHUNK * lanes).enumerate();
    chunks.for_each(|(chunk, vertices)| fill(chunk * CHUNK, vertices));
}

widest_vectors! {
    fn sum_rows / sum_rows_inline(
        lattice: &Lattice, rows: &[f32], first: usize, vertices: &mut [f32], lanes: usize,
    )
}

/// The sums of the rows of vertices from `first` on.
#[inline(always)]
fn sum_rows_inline<const L: usize>(
    lattice: &Lattice,
    rows: &[f32],
    first: usize,
    vertices: &mut [f32],
    lanes: usize,
) {
    let lanes = if L == 0 { lanes } else { L };
    let starts = lattice.vertex_starts[first..].windows(2);
    for (out, range) in vertices.chunks_exact_mut(lanes).zip(starts) {
        let sources = &lattice.rows_of_vertex[range[0] as usize..range[1] as usize];
        let (&source, others) = sources.split_first().unwrap_or((&0, &[]));
        out.copy_from_slice(&rows[source as usize * lanes..][..lanes]);
        for &source in others {
            let row = &rows[source as usize * lanes..][..lanes];
            for lane in 0..lanes {
                out[lane] += row[lane];
            }
        }
    }
}

widest_vectors! {
    fn blur_axis / blur_axis_inline(
        source: Window<'_>, neighbors: &Neighbors, first: usize, vertices: &mut [f32], lanes: usize,
    )
}

#[inline(always)]
fn blur_axis_inline<const L: usize>(
    source: Window<'_>,
    neighbors: &Neighbors,
    first: usize,
    vertices: &mut [f32],
    lanes: usize,
) {
    let lanes = if L == 0 { lanes } else { L };
    for (vertex, out) in (first..).zip(vertices.chunks_exact_mut(lanes)) {
        let taps = Taps::<L>::at(source, neighbors, vertex, lanes);
        for (lane, out) in out.iter_mut().enumerate() {
            *out = taps.blurred(lane);
        }
    }
}

widest_vectors! {
    fn blur_two_axes / blur_two_axes_inline(
        source: Window<'_>, axes: [&Neighbors; 2], first: usize, vertices: &mut [f32], lanes: usize,
    )
}

#[inline(always)]
fn blur_two_axes_inline<const L: usize>(
    source: Window<'_>,
    [neighbors, then_neighbors]: [&Neighbors; 2],
    first: usize,
    vertices: &mut [f32],
    lanes: usize,
) {
    let lanes = if L == 0 { lanes } else { L };
    for (vertex, out) in (first..).zip(vertices.chunks_exact_mut(lanes)) {
        let [before, behind] = then_neighbors.of(vertex);
        let here = Taps::<L>::at(source, neighbors, vertex, lanes);
        let before = Taps::<L>::at(source, neighbors, before, lanes);
        let behind = Taps::<L>::at(source, neighbors, behind, lanes);
        for (lane, out) in out.iter_mut().enumerate() {
            *out = here.blurred(lane) + 0.5 * (before.blurred(lane) + behind.blurred(lane));
        }
    }
}

/// The values of some neighbouring vertices, and a row of zeros for neighbours that do not exist.
#[derive(Clone, Copy)]
struct Window<'a> {
    values: &'a [f32],
    /// The vertex of the first row.
    start: usize,
    /// The row of zeros.
    zeros: usize,
    /// The number that stands for no vertex.
    none: usize,
}

/// A vertex and its two neighbours along an axis.
struct Taps<'a, const L: usize> {
    before: &'a [f32],
    here: &'a [f32],
    behind: &'a [f32],
}

impl<'a, const L: usize> Taps<'a, L> {
    #[inline(always)]
    fn at(window: Window<'a>, neighbors: &Neighbors, vertex: usize, lanes: usize) -> Self {
        let lanes = if L == 0 { lanes } else { L };
        let row = |vertex: usize| {
            let row = if vertex == window.none { window.zeros } else { vertex - window.start };
            &window.values[row * lanes..][..lanes]
        };
        let [before, behind] = neighbors.of(vertex);
        Self { before: row(before), here: row(vertex), behind: row(behind) }
    }

    #[inline(always)]
    fn blurred(&self, lane: usize) -> f32 {
        self.here[lane] + 0.5 * (self.before[lane] + self.behind[lane])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::tiles::Tiles;

    #[test]
    fn windows_and_passes_give_the_same_bits() {
        let (width, height, lanes) = (90, 70, 4);
        let tiles = Tiles::new(width, height);
        let image: Vec<u8> =
            (0..width * height).map(|i| (i % width + 3 * (i / width) + i * 7 % 5) as u8).collect();
        for features in [
            Features::position(width, height, [1.0, 2.0]),
            Features::position_and_color(width, height, [9.0; 2], &image, &[5.0]),
        ] {
            let lattice = Lattice::build(&features.unwrap(), &tiles).unwrap();
            let filled = || {
                let mut values = LatticeValues::new(&lattice, lanes);
                values.rows.iter_mut().enumerate().for_each(|(i, value)| *value = (i * 31 % 101) as f32);
                values
            };
            let (mut windows, mut passes) = (filled(), filled());
            blur_in_windows::<4>(&lattice, &mut windows, 100, lanes);
            blur_in_passes::<4>(&lattice, &mut passes, lanes);
            assert_eq!(windows.vertices, passes.vertices);
        }
    }

    #[test]
    fn groups_of_axes_are_even_in_number_and_cover_all_axes() {
        for num_axes in 2..=16 {
            let groups: Vec<Range<usize>> = axis_groups(num_axes).collect();
            assert_eq!(groups.len() % 2, 0);
            assert!(groups.iter().all(|group| (1..=2).contains(&group.len())), "{groups:?}");
            assert!(groups.iter().cloned().flatten().eq(0..num_axes), "{groups:?}");
        }
    }
}
