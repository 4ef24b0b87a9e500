//! The recurrence of the HV-BiLSTM over a grid: rows forward, rows backward, columns forward, columns backward.
//! The input projections of all four directions are given; every block of sequences walks its whole length on
//! one thread, so that threads never wait for each other between steps.

use rayon::prelude::*;

use super::elementary::{sigmoid, tanh};
use super::matmul::{BlockProduct, Finish, Matrix, block_product, matmul};
use super::packed_panels::{PackedPanels, packed_len};
use super::scratch::Scratch;
use super::shared_target::SharedTarget;
use super::simd::{Kernel, Onto, Simd, SimdPath};

/// Rows forward, rows backward, columns forward, columns backward: 0 and 1 walk along rows, odd ones walk backwards.
pub(crate) const DIRECTIONS: usize = 4;

/// Sequences that walk together: the recurrent weights are read once a step for all of them.
const SEQUENCE_BLOCK: usize = 24;

/// The sizes of a grid of LSTMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GridShape {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) units: usize,
}

impl GridShape {
    pub(crate) fn cells(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Floats of input projections and of gates: four gates in four directions a cell.
    pub(crate) fn gates_len(&self) -> usize {
        self.cells() * DIRECTIONS * 4 * self.units
    }

    /// Floats of hidden and of cell states.
    pub(crate) fn states_len(&self) -> usize {
        self.cells() * DIRECTIONS * self.units
    }

    /// Floats of one direction's recurrent weights, `[4 · units, units]`.
    pub(crate) fn recurrent_len(&self) -> usize {
        4 * self.units * self.units
    }

    fn sequences(&self, direction: usize) -> usize {
        self.batch * if direction < 2 { self.height } else { self.width }
    }

    fn steps(&self, direction: usize) -> usize {
        if direction < 2 { self.width } else { self.height }
    }

    /// The cell that a sequence visits at a step.
    fn cell(&self, direction: usize, sequence: usize, step: usize) -> usize {
        let position = if direction.is_multiple_of(2) { step } else { self.steps(direction) - 1 - step };
        if direction < 2 {
            sequence * self.width + position
        } else {
            let (image, column) = (sequence / self.width, sequence % self.width);
            (image * self.height + position) * self.width + column
        }
    }

    /// The work, cut into (direction, first sequence, number of sequences).
    fn blocks(&self) -> Vec<(usize, usize, usize)> {
        let mut blocks = Vec::new();
        for direction in 0..DIRECTIONS {
            let sequences = self.sequences(direction);
            let cuts = sequences.div_ceil(SEQUENCE_BLOCK);
            for cut in 0..cuts {
                let first = cut * sequences / cuts;
                blocks.push((direction, first, (cut + 1) * sequences / cuts - first));
            }
        }
        blocks
    }
}

/// Runs the four directions. `gates` holds the input projections with both biases, `[cell, direction, gate, unit]`,
/// and is left with the gates after their activations (input, forget, cell, output); `recurrent` holds the weights
/// `[direction, gate · unit, unit]`; `hidden` receives `[cell, direction, unit]`, and so does `cells`, where the cell
/// states are wanted.
pub(crate) fn forward(
    path: SimdPath,
    shape: GridShape,
    recurrent: &[f32],
    gates: &mut [f32],
    hidden: &mut [f32],
    cells: Option<&mut [f32]>,
) {
    assert_eq!(gates.len(), shape.gates_len());
    assert_eq!(recurrent.len(), DIRECTIONS * shape.recurrent_len());
    assert_eq!(hidden.len(), shape.states_len());
    if hidden.is_empty() {
        return;
    }
    let units = shape.units;
    let packed_len = packed_len(path, units, 4 * units);
    let mut packed = Scratch::take(DIRECTIONS * packed_len);
    for (direction, packed) in packed.chunks_exact_mut(packed_len).enumerate() {
        let weights = &recurrent[direction * shape.recurrent_len()..];
        PackedPanels::pack(path, Matrix::row_major(weights, 4 * units, units).transposed(), packed);
    }
    let gates = SharedTarget::new(gates);
    let hidden = SharedTarget::new(hidden);
    let cells = cells.map(|cells| {
        assert_eq!(cells.len(), shape.states_len());
        SharedTarget::new(cells)
    });
    shape.blocks().into_par_iter().with_max_len(1).for_each(|(direction, first, sequences)| {
        let recurrent = &packed[direction * packed_len..][..packed_len];
        let walk = Walk { path, shape, direction, first, sequences };
        path.run(Forward { walk, recurrent, gates, hidden, cells });
    });
}

/// Some sequences of one direction.
#[derive(Clone, Copy)]
struct Walk {
    path: SimdPath,
    shape: GridShape,
    direction: usize,
    first: usize,
    sequences: usize,
}

impl Walk {
    /// Where the states of a sequence's cell begin; its gates begin at four times that.
    fn state_start(&self, sequence: usize, step: usize) -> usize {
        let cell = self.shape.cell(self.direction, self.first + sequence, step);
        (cell * DIRECTIONS + self.direction) * self.shape.units
    }
}

struct Forward<'a> {
    walk: Walk,
    /// Transposed and packed: `units` deep, `4 · units` columns.
    recurrent: &'a [f32],
    gates: SharedTarget<'a>,
    hidden: SharedTarget<'a>,
    cells: Option<SharedTarget<'a>>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let walk = self.walk;
        let units = walk.shape.units;
        let mut scratch = Scratch::take(walk.sequences * 6 * units);
        let (sums, rest) = scratch.split_at_mut(walk.sequences * 4 * units);
        let (hidden, cells) = rest.split_at_mut(walk.sequences * units);
        sums.fill(0.0);
        cells.fill(0.0);
        for step in 0..walk.shape.steps(walk.direction) {
            if step > 0 {
                // SAFETY: sums and hidden are this thread's own; the packed weights are as long as their sizes say.
                unsafe {
                    block_product(
                        simd,
                        BlockProduct {
                            rows: walk.sequences,
                            columns: 4 * units,
                            depth: units,
                            a: hidden.as_ptr(),
                            a_row_stride: units,
                            a_depth_stride: 1,
                            b: self.recurrent.as_ptr(),
                            b_panel_stride: units * walk.path.tile_columns(),
                            c: sums.as_mut_ptr(),
                            c_row_stride: 4 * units,
                            onto: Onto::Nothing,
                        },
                    );
                }
            }
            for sequence in 0..walk.sequences {
                let sums = &sums[sequence * 4 * units..][..4 * units];
                let cells = &mut cells[sequence * units..][..units];
                let hidden = &mut hidden[sequence * units..][..units];
                let start = walk.state_start(sequence, step);
                // SAFETY: each cell's gates and states in a direction belong to one sequence.
                unsafe {
                    advance(simd, sums, self.gates.slice(4 * start, 4 * units), cells, hidden);
                    self.hidden.slice(start, units).copy_from_slice(hidden);
                    if let Some(saved_cells) = &self.cells {
                        saved_cells.slice(start, units).copy_from_slice(cells);
                    }
                }
            }
        }
    }
}

/// One step of one sequence: adds the recurrent sums to the gates, activates them in place and moves the states on.
#[inline(always)]
fn advance<S: Simd>(simd: S, sums: &[f32], gates: &mut [f32], cells: &mut [f32], hidden: &mut [f32]) {
    let units = cells.len();
    let (input_gates, rest) = gates.split_at_mut(units);
    let (forget_gates, rest) = rest.split_at_mut(units);
    let (cell_gates, output_gates) = rest.split_at_mut(units);
    let mut start = 0;
    while start < units {
        let end = (start + S::LANES).min(units);
        let input = add_some(simd, &input_gates[start..end], &sums[start..end]);
        let forget = add_some(simd, &forget_gates[start..end], &sums[units + start..units + end]);
        let candidate = add_some(simd, &cell_gates[start..end], &sums[2 * units + start..2 * units + end]);
        let output = add_some(simd, &output_gates[start..end], &sums[3 * units + start..3 * units + end]);
        let (input, forget) = (sigmoid(simd, input), sigmoid(simd, forget));
        let (candidate, output) = (tanh(simd, candidate), sigmoid(simd, output));
        let kept = simd.mul(forget, load_some(simd, &cells[start..end]));
        let cell = simd.mul_add(input, candidate, kept);
        store_some(simd, &mut input_gates[start..end], input);
        store_some(simd, &mut forget_gates[start..end], forget);
        store_some(simd, &mut cell_gates[start..end], candidate);
        store_some(simd, &mut output_gates[start..end], output);
        store_some(simd, &mut cells[start..end], cell);
        store_some(simd, &mut hidden[start..end], simd.mul(output, tanh(simd, cell)));
        start = end;
    }
}

/// A vector, or what is left of one.
#[inline(always)]
fn load_some<S: Simd>(simd: S, source: &[f32]) -> S::V {
    if source.len() == S::LANES { simd.load(source) } else { simd.load_partial(source, 0.0) }
}

#[inline(always)]
fn add_some<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> S::V {
    simd.add(load_some(simd, a), load_some(simd, b))
}

#[inline(always)]
fn store_some<S: Simd>(simd: S, target: &mut [f32], value: S::V) {
    if target.len() == S::LANES { simd.store(target, value) } else { simd.store_partial(target, value) }
}

/// What the forward pass took and gave, and the gradient of what it gave.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) recurrent: &'a [f32],
    pub(crate) hidden: &'a [f32],
    pub(crate) gates: &'a [f32],
    pub(crate) cells: &'a [f32],
    pub(crate) grad_hidden: &'a [f32],
}

/// Back through time: the gradients of the input projections and, where asked for, of the recurrent weights.
pub(crate) fn backward(
    path: SimdPath,
    shape: GridShape,
    pass: Pass,
    grad_projected: &mut [f32],
    grad_recurrent: Option<&mut [f32]>,
) {
    let Pass { recurrent, hidden, gates, cells, grad_hidden } = pass;
    assert_eq!(recurrent.len(), DIRECTIONS * shape.recurrent_len());
    assert_eq!(hidden.len(), shape.states_len());
    assert_eq!(gates.len(), shape.gates_len());
    assert_eq!(cells.len(), shape.states_len());
    assert_eq!(grad_hidden.len(), shape.states_len());
    assert_eq!(grad_projected.len(), shape.gates_len());
    if hidden.is_empty() {
        return;
    }
    let units = shape.units;
    {
        let packed_len = packed_len(path, 4 * units, units);
        let mut packed = Scratch::take(DIRECTIONS * packed_len);
        for (direction, packed) in packed.chunks_exact_mut(packed_len).enumerate() {
            let weights = &recurrent[direction * shape.recurrent_len()..];
            PackedPanels::pack(path, Matrix::row_major(weights, 4 * units, units), packed);
        }
        let grad_projected = SharedTarget::new(grad_projected);
        shape.blocks().into_par_iter().with_max_len(1).for_each(|(direction, first, sequences)| {
            let recurrent = &packed[direction * packed_len..][..packed_len];
            let walk = Walk { path, shape, direction, first, sequences };
            path.run(Backward { walk, recurrent, pass, grad_projected });
        });
    }
    let Some(grad_recurrent) = grad_recurrent else { return };
    // The recurrent weights' gradient is a sum over all cells: one product a direction.
    let mut previous = Scratch::take(shape.cells() * units);
    let mut packed = Scratch::take(packed_len(path, shape.cells(), units));
    for (direction, grad) in grad_recurrent.chunks_exact_mut(shape.recurrent_len()).enumerate() {
        for sequence in 0..shape.sequences(direction) {
            for step in 0..shape.steps(direction) {
                let target = &mut previous[shape.cell(direction, sequence, step) * units..][..units];
                if step == 0 {
                    target.fill(0.0);
                } else {
                    let before = shape.cell(direction, sequence, step - 1);
                    target.copy_from_slice(&hidden[(before * DIRECTIONS + direction) * units..][..units]);
                }
            }
        }
        let previous = Matrix::row_major(&previous, shape.cells(), units);
        let previous = PackedPanels::pack(path, previous, &mut packed);
        let grad_gates = &grad_projected[direction * 4 * units..];
        let grad_gates = Matrix::strided(grad_gates, shape.cells(), 4 * units, DIRECTIONS * 4 * units);
        matmul(path, grad_gates.transposed(), &previous, grad, Onto::Nothing, Finish::Keep);
    }
}

struct Backward<'a> {
    walk: Walk,
    /// Packed: `4 · units` deep, `units` columns.
    recurrent: &'a [f32],
    pass: Pass<'a>,
    grad_projected: SharedTarget<'a>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let walk = self.walk;
        let units = walk.shape.units;
        let mut scratch = Scratch::take(walk.sequences * 6 * units);
        let (grad_gates, rest) = scratch.split_at_mut(walk.sequences * 4 * units);
        let (carried_hidden, carried_cells) = rest.split_at_mut(walk.sequences * units);
        carried_hidden.fill(0.0);
        carried_cells.fill(0.0);
        for step in (0..walk.shape.steps(walk.direction)).rev() {
            for sequence in 0..walk.sequences {
                let start = walk.state_start(sequence, step);
                let before = (step > 0).then(|| walk.state_start(sequence, step - 1));
                let grad_gates = &mut grad_gates[sequence * 4 * units..][..4 * units];
                retreat(
                    simd,
                    &self.pass.gates[4 * start..][..4 * units],
                    &self.pass.cells[start..start + units],
                    before.map(|before| &self.pass.cells[before..before + units]),
                    &self.pass.grad_hidden[start..start + units],
                    &carried_hidden[sequence * units..][..units],
                    &mut carried_cells[sequence * units..][..units],
                    grad_gates,
                );
                // SAFETY: each cell's gates in a direction belong to one sequence.
                unsafe { self.grad_projected.slice(4 * start, 4 * units).copy_from_slice(grad_gates) };
            }
            if step > 0 {
                // SAFETY: both scratch arrays are this thread's own; the packed weights are as long as their sizes say.
                unsafe {
                    block_product(
                        simd,
                        BlockProduct {
                            rows: walk.sequences,
                            columns: units,
                            depth: 4 * units,
                            a: grad_gates.as_ptr(),
                            a_row_stride: 4 * units,
                            a_depth_stride: 1,
                            b: self.recurrent.as_ptr(),
                            b_panel_stride: 4 * units * walk.path.tile_columns(),
                            c: carried_hidden.as_mut_ptr(),
                            c_row_stride: units,
                            onto: Onto::Nothing,
                        },
                    );
                }
            }
        }
    }
}

/// One step back of one sequence: the gates' gradients before their activations, and what is carried to the step
/// before through the cell state.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn retreat<S: Simd>(
    simd: S,
    gates: &[f32],
    cells: &[f32],
    cells_before: Option<&[f32]>,
    grad_hidden: &[f32],
    carried_hidden: &[f32],
    carried_cells: &mut [f32],
    grad_gates: &mut [f32],
) {
    let units = cells.len();
    let one = simd.splat(1.0);
    let mut start = 0;
    while start < units {
        let end = (start + S::LANES).min(units);
        let input = load_some(simd, &gates[start..end]);
        let forget = load_some(simd, &gates[units + start..units + end]);
        let candidate = load_some(simd, &gates[2 * units + start..2 * units + end]);
        let output = load_some(simd, &gates[3 * units + start..3 * units + end]);
        let squashed = tanh(simd, load_some(simd, &cells[start..end]));
        let before = match cells_before {
            Some(before) => load_some(simd, &before[start..end]),
            None => simd.splat(0.0),
        };
        let grad_hidden =
            simd.add(load_some(simd, &grad_hidden[start..end]), load_some(simd, &carried_hidden[start..end]));
        let slope = simd.sub(one, simd.mul(squashed, squashed));
        let carried = load_some(simd, &carried_cells[start..end]);
        let grad_cell = simd.mul_add(simd.mul(grad_hidden, output), slope, carried);
        let grad_input = simd.mul(simd.mul(grad_cell, candidate), simd.mul(input, simd.sub(one, input)));
        let grad_forget = simd.mul(simd.mul(grad_cell, before), simd.mul(forget, simd.sub(one, forget)));
        let grad_candidate =
            simd.mul(simd.mul(grad_cell, input), simd.sub(one, simd.mul(candidate, candidate)));
        let grad_output = simd.mul(simd.mul(grad_hidden, squashed), simd.mul(output, simd.sub(one, output)));
        store_some(simd, &mut grad_gates[start..end], grad_input);
        store_some(simd, &mut grad_gates[units + start..units + end], grad_forget);
        store_some(simd, &mut grad_gates[2 * units + start..2 * units + end], grad_candidate);
        store_some(simd, &mut grad_gates[3 * units + start..3 * units + end], grad_output);
        store_some(simd, &mut carried_cells[start..end], simd.mul(grad_cell, forget));
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{self, assert_close, assert_gradient, noise, sizes, widen};
    use super::*;

    #[test]
    fn the_recurrence_and_its_gradients_equal_the_naive_ones_on_any_grid() {
        for path in SimdPath::available() {
            for (batch, height, width, units) in
                sizes([(1, 1, 1, 1), (1, 3, 4, 5), (2, 5, 3, 16), (1, 2, 30, 7), (3, 11, 4, 33)])
            {
                let shape = GridShape { batch, height, width, units };
                let projected = noise(shape.gates_len(), 1);
                let recurrent = noise(DIRECTIONS * shape.recurrent_len(), 2);
                let cotangent = noise(shape.states_len(), 3);
                let mut hidden = vec![f32::NAN; shape.states_len()];
                let mut gates = projected.clone();
                let mut cells = vec![f32::NAN; shape.states_len()];
                forward(path, shape, &recurrent, &mut gates, &mut hidden, Some(&mut cells));
                let naive = |v: &[Vec<f64>]| naive::lstm_grid((batch, height, width, units), &v[0], &v[1]);
                let inputs = [widen(&projected), widen(&recurrent)];
                let what = format!("{path:?} {shape:?}");
                assert_close(&hidden, &naive(&inputs), 3e-6, &what);
                let mut grad_projected = vec![f32::NAN; projected.len()];
                let mut grad_recurrent = vec![f32::NAN; recurrent.len()];
                let pass = Pass {
                    recurrent: &recurrent,
                    hidden: &hidden,
                    gates: &gates,
                    cells: &cells,
                    grad_hidden: &cotangent,
                };
                backward(path, shape, pass, &mut grad_projected, Some(&mut grad_recurrent));
                assert_gradient(&grad_projected, &inputs, 0, &cotangent, &naive, &what);
                assert_gradient(&grad_recurrent, &inputs, 1, &cotangent, &naive, &what);
            }
        }
    }
}
