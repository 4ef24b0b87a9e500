//! Sums the tiles' rows into lattice vertices and blurs along the d+1 lattice axes. Values are rows of `lanes` numbers,
//! one per class; for up to 32 classes every loop over lanes has a compile-time length, so that it vectorises.

use rayon::prelude::*;

use crate::chains::FIRST;
use crate::large_buffer::zeros;
use crate::lattice::Lattice;
use crate::scattered_rows::ScatteredRows;
use crate::vectors::widest_vectors;

/// Vertices per task.
const CHUNK: usize = 512;

/// Padded number of classes.
pub(crate) fn lanes_for(num_classes: usize) -> usize {
    match num_classes {
        0..=2 => num_classes,
        3..=4 => 4,
        _ => num_classes.next_multiple_of(8),
    }
}

/// Calls `$function::<L>($arguments)` with `L` lanes if there is specialised code for that number, else with `L = 0`.
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

/// The two buffers for filtering a lattice.
#[derive(Default)]
pub(crate) struct LatticeValues {
    /// The tiles' rows, written by splatting.
    pub(crate) rows: Vec<f32>,
    /// The blurred vertices, read by slicing.
    pub(crate) vertices: Vec<f32>,
}

impl LatticeValues {
    pub(crate) fn new(lattice: &Lattice, lanes: usize) -> Self {
        Self { rows: zeros(lattice.num_rows() * lanes), vertices: zeros(lattice.num_vertices() * lanes) }
    }
}

/// From rows to blurred vertices.
pub(crate) fn blur(lattice: &Lattice, values: &mut LatticeValues, lanes: usize) {
    let LatticeValues { rows, vertices } = values;
    vertices.par_chunks_mut(CHUNK * lanes).enumerate().for_each(|(chunk, vertices)| {
        with_lanes!(lanes, sum_rows(lattice, rows, chunk * CHUNK, vertices, lanes));
    });
    let vertices = ScatteredRows::new(vertices);
    for axes in lattice.axis_groups() {
        (0..lattice.num_blocks).into_par_iter().for_each(|block| {
            for chains in &lattice.chains[axes.clone()] {
                with_lanes!(lanes, blur_chains(&vertices, chains.of_block(block), lanes));
            }
        });
    }
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
    fn blur_chains / blur_chains_inline(vertices: &ScatteredRows<'_>, links: &[u32], lanes: usize)
}

/// Blurs along chains in place, with [½ 1 ½]. Numbers of lanes without specialised code are processed eight at a time.
#[inline(always)]
fn blur_chains_inline<const L: usize>(vertices: &ScatteredRows<'_>, links: &[u32], lanes: usize) {
    if L == 0 {
        for lane in (0..lanes).step_by(8) {
            walk_chains::<8>(vertices, links, lanes, lane);
        }
    } else {
        walk_chains::<L>(vertices, links, L, 0);
    }
}

#[inline(always)]
fn walk_chains<const L: usize>(vertices: &ScatteredRows<'_>, links: &[u32], lanes: usize, first_lane: usize) {
    let Some((&link, links)) = links.split_first() else { return };
    let index = |link: u32| (link & !FIRST) as usize * lanes + first_lane;
    // SAFETY: one thread walks the chains of a block. Along one axis no vertex belongs to two chains, and chains along
    // axes that are walked without waiting for other blocks stay within their block, as asserted at construction.
    #[allow(unsafe_code)]
    let (load, store) = (
        |link| unsafe { vertices.load::<L>(index(link)) },
        |link, row| unsafe { vertices.store::<L>(index(link), row) },
    );
    let (mut before, mut here, mut here_link) = ([0.0; L], load(link), link);
    for &link in links {
        let behind = load(link);
        // Zero between the end of a chain and the first vertex of the next: cheaper than a branch, since chains are
        // short.
        let joined = if link & FIRST == 0 { 1.0 } else { 0.0 };
        let mut blurred = [0.0; L];
        for lane in 0..L {
            blurred[lane] = here[lane] + 0.5 * (before[lane] + joined * behind[lane]);
            before[lane] = joined * here[lane];
        }
        store(here_link, blurred);
        (here, here_link) = (behind, link);
    }
    for lane in 0..L {
        here[lane] += 0.5 * before[lane];
    }
    store(here_link, here);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::tiles::Tiles;

    /// Blurs lane by lane into a second buffer.
    fn blur_plainly(lattice: &Lattice, rows: &[f32], lanes: usize) -> Vec<f32> {
        let mut vertices = vec![0.0; lattice.num_vertices() * lanes];
        for (row, &vertex) in rows.chunks_exact(lanes).zip(&lattice.vertex_of_row) {
            (0..lanes).for_each(|lane| vertices[vertex as usize * lanes + lane] += row[lane]);
        }
        for chains in &lattice.chains {
            let source = vertices.clone();
            for pair in (0..lattice.num_blocks).flat_map(|block| chains.of_block(block).windows(2)) {
                if pair[1] & FIRST == 0 {
                    let [a, b] = [pair[0], pair[1]].map(|link| (link & !FIRST) as usize * lanes);
                    for lane in 0..lanes {
                        vertices[a + lane] += 0.5 * source[b + lane];
                        vertices[b + lane] += 0.5 * source[a + lane];
                    }
                }
            }
        }
        vertices
    }

    #[test]
    fn walking_chains_in_place_is_the_blur() {
        // Miri is a thousand times slower.
        let (width, height) = if cfg!(miri) { (20, 6) } else { (90, 70) };
        let tiles = Tiles::new(width, height);
        let image: Vec<u8> = (0..width * height * 3).map(|i| (i % width + i * 7 % 5) as u8).collect();
        for features in [
            Features::position(width, height, [1.0, 2.0]),
            Features::position_and_color(width, height, [9.0; 2], &image, &[5.0; 3]),
        ] {
            let lattice = Lattice::build(&features.unwrap(), &tiles).unwrap();
            for lanes in if cfg!(miri) { vec![1, 8] } else { vec![1, 4, 8, 40] } {
                let mut values = LatticeValues::new(&lattice, lanes);
                values.rows.iter_mut().enumerate().for_each(|(i, value)| *value = (i * 31 % 101) as f32);
                blur(&lattice, &mut values, lanes);
                // All sums are exact in f32.
                assert!(values.vertices == blur_plainly(&lattice, &values.rows, lanes));
            }
        }
    }
}
