//! Sums the tiles' rows into lattice vertices and blurs along the d+1 lattice axes. Values are rows of `lanes` numbers, one
//! a class; every loop over lanes has a length known at compile time for up to 32 classes, so that it becomes vector code.

use rayon::prelude::*;

use crate::lattice::{LINE_START, Lattice};

/// Vertices that one task handles: enough work for a task, little enough for the first-level cache.
const CHUNK: usize = 512;

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
    let lanes = if L == 0 { lanes } else { L };
    let LatticeValues { rows, vertices } = values;
    // The buffers swap roles with every axis and the result must end in `vertices`: with an odd number of axes the sum is
    // fused with the blur along the first, with an even number it is a pass of its own.
    let mut orders = lattice.orders.iter();
    if lattice.orders.len() % 2 == 1 {
        let first = orders.next().map_or(&[][..], Vec::as_slice);
        sum_and_blur_rows::<L>(lattice, rows, first, vertices, lanes);
    } else {
        sum_rows::<L>(lattice, rows, vertices, lanes);
    }
    let (mut source, mut target) = (vertices, rows);
    for order in orders {
        blur_axis::<L>(source, order, target, lanes);
        std::mem::swap(&mut source, &mut target);
    }
}

/// The sum of a vertex's rows.
#[inline(always)]
fn sum_into<const L: usize>(lattice: &Lattice, rows: &[f32], vertex: usize, out: &mut [f32], lanes: usize) {
    let lanes = if L == 0 { lanes } else { L };
    let sources = lattice.vertex_starts[vertex] as usize..lattice.vertex_starts[vertex + 1] as usize;
    let (&first, others) = lattice.rows_of_vertex[sources].split_first().unwrap_or((&0, &[]));
    out.copy_from_slice(&rows[first as usize * lanes..][..lanes]);
    for &row in others {
        let row = &rows[row as usize * lanes..][..lanes];
        for lane in 0..lanes {
            out[lane] += row[lane];
        }
    }
}

fn sum_rows<const L: usize>(lattice: &Lattice, rows: &[f32], vertices: &mut [f32], lanes: usize) {
    let lanes = if L == 0 { lanes } else { L };
    let (vertices, zeros) = vertices.split_at_mut(lattice.num_vertices() * lanes);
    zeros[..lanes].fill(0.0);
    vertices.par_chunks_mut(CHUNK * lanes).enumerate().for_each(|(chunk, out)| {
        for (i, out) in out.chunks_exact_mut(lanes).enumerate() {
            sum_into::<L>(lattice, rows, chunk * CHUNK + i, out, lanes);
        }
    });
}

fn sum_and_blur_rows<const L: usize>(
    lattice: &Lattice,
    rows: &[f32],
    order: &[u32],
    vertices: &mut [f32],
    lanes: usize,
) {
    let lanes = if L == 0 { lanes } else { L };
    let num_vertices = lattice.num_vertices();
    let (vertices, zeros) = vertices.split_at_mut(num_vertices * lanes);
    zeros[..lanes].fill(0.0);
    // Axis 0 refers to its own layout, so the neighbours of a chunk are the vertices just before and behind it.
    vertices.par_chunks_mut(CHUNK * lanes).enumerate().for_each_init(
        || vec![0.0; (CHUNK + 2) * lanes],
        |sums, (chunk, out)| {
            let begin = chunk * CHUNK;
            let end = begin + out.len() / lanes;
            for vertex in begin.saturating_sub(1)..(end + 1).min(num_vertices) {
                let sum = &mut sums[(vertex + 1 - begin) * lanes..][..lanes];
                sum_into::<L>(lattice, rows, vertex, sum, lanes);
            }
            for (i, out) in out.chunks_exact_mut(lanes).enumerate() {
                let vertex = begin + i;
                let before = if order[vertex] & LINE_START == 0 { 0.5 } else { 0.0 };
                let behind = match order.get(vertex + 1) {
                    Some(entry) if entry & LINE_START == 0 => 0.5,
                    _ => 0.0,
                };
                let taps = &sums[i * lanes..][..3 * lanes];
                for lane in 0..lanes {
                    out[lane] = taps[lanes + lane] + (before * taps[lane] + behind * taps[2 * lanes + lane]);
                }
            }
        },
    );
}

fn blur_axis<const L: usize>(source: &[f32], order: &[u32], target: &mut [f32], lanes: usize) {
    let lanes = if L == 0 { lanes } else { L };
    let zeros = order.len() as u32;
    let (target, target_zeros) = target.split_at_mut(order.len() * lanes);
    target_zeros[..lanes].fill(0.0);
    target.par_chunks_mut(CHUNK * lanes).enumerate().for_each(|(chunk, out)| {
        let begin = chunk * CHUNK;
        let num_out = out.len() / lanes;
        let position_at = |i: usize| order.get(i).map_or(zeros | LINE_START, |&entry| entry);
        let mut before = if begin == 0 { zeros } else { position_at(begin - 1) & !LINE_START };
        let mut here = position_at(begin);
        for (i, out) in out.chunks_exact_mut(lanes).enumerate().take(num_out) {
            let behind = position_at(begin + i + 1);
            let at_before = if here & LINE_START == 0 { before } else { zeros };
            let at_behind = if behind & LINE_START == 0 { behind } else { zeros };
            let at_here = here & !LINE_START;
            let tap_before = &source[at_before as usize * lanes..][..lanes];
            let tap_here = &source[at_here as usize * lanes..][..lanes];
            let tap_behind = &source[at_behind as usize * lanes..][..lanes];
            for lane in 0..lanes {
                out[lane] = tap_here[lane] + 0.5 * (tap_before[lane] + tap_behind[lane]);
            }
            before = at_here;
            here = behind;
        }
    });
}
