//! The HV-BiLSTM: one product for the input projections of all directions, then a product and a kernel per step.

use candle_core::{DType, Result};

use super::column_sums::column_sums;
use super::elementwise::{Tail, add_bias};
use super::gemm::{Matrix, Product, Rounding, gemm};
use super::launch::{Argument, LSTM, Threads, launch};
use super::{Array, View};
use crate::cpu::lstm::{DIRECTIONS, GridShape};
use crate::hv_bilstm::Products;

/// The parameters of all directions, f32.
pub(crate) struct Parameters<'a> {
    /// `[16·U, D]`
    pub(crate) input: View<'a>,
    /// `[4, 4·U, U]`
    pub(crate) recurrent: View<'a>,
    /// The sum of both biases, `[16·U]`.
    pub(crate) bias: View<'a>,
}

/// State of a forward pass for backward.
pub(crate) struct Activations {
    gates: Array,
    cells: Array,
}

/// The requested gradients.
pub(crate) struct Gradients {
    pub(crate) grid: Array,
    pub(crate) input: Array,
    pub(crate) recurrent: Array,
    /// Of either bias.
    pub(crate) bias: Array,
}

/// Directions that step together: all four on a square grid.
struct Walk {
    shape: GridShape,
    first_direction: usize,
    num_directions: usize,
    sequences: usize,
    steps: usize,
}

impl Walk {
    fn all(shape: GridShape) -> Vec<Self> {
        let walk = |first_direction, num_directions, along: usize, steps| Self {
            shape,
            first_direction,
            num_directions,
            sequences: shape.batch * along,
            steps,
        };
        if shape.height == shape.width {
            vec![walk(0, 4, shape.height, shape.width)]
        } else {
            vec![walk(0, 2, shape.height, shape.width), walk(2, 2, shape.width, shape.height)]
        }
    }

    fn argument(&self, step: usize) -> Argument {
        let GridShape { batch, height, width, units } = self.shape;
        let members =
            [batch, height, width, units, self.first_direction, self.num_directions, self.sequences, step];
        Argument::Walk(members.map(|member| member as i32))
    }

    fn states(&self) -> usize {
        self.num_directions * self.sequences * self.shape.units
    }

    /// The recurrent weights of these directions, `[4·U, U]` each.
    fn recurrent(&self, parameters: &Parameters<'_>) -> Matrix {
        let (units, len) = (self.shape.units, self.shape.recurrent_len());
        let view = parameters.recurrent.skip(self.first_direction * len);
        Matrix::new(view.pointer, DType::F32, units).batched(len)
    }

    /// A compact array of `[directions, sequences, features]`.
    fn compact(&self, array: &Array, features: usize) -> Matrix {
        Matrix::new(array.pointer, DType::F32, features).batched(self.sequences * features)
    }
}

impl From<Products> for Rounding {
    fn from(products: Products) -> Self {
        match products {
            Products::Exact => Self::Exact,
            Products::Rounded => Self::Tf32,
        }
    }
}

/// The hidden states, and the state for backward.
pub(crate) fn forward(
    shape: GridShape,
    products: Products,
    grid: &View<'_>,
    parameters: &Parameters<'_>,
) -> Result<(Array, Activations)> {
    let grid = &grid.clone().expect(DType::F32)?;
    let (device, rounding) = (&grid.device, Rounding::from(products));
    let (units, all_gates) = (shape.units, DIRECTIONS * 4 * shape.units);
    let features = grid.len / shape.cells().max(1);
    let gates = Array::new(device, DType::F32, shape.gates_len())?;
    // SAFETY: the grid is [cells, D], the input weights [16·U, D], the gates [cells, 16·U].
    unsafe {
        gemm(
            device,
            Product { rounding, ..Product::new(shape.cells(), all_gates, features) },
            Matrix::new(grid.pointer, DType::F32, features),
            Matrix::new(parameters.input.pointer, DType::F32, features).transposed(),
            Matrix::new(gates.pointer, DType::F32, all_gates),
        )
    }?;
    add_bias(&gates, &parameters.bias, Tail::Bias)?;
    let cells = Array::new(device, DType::F32, shape.states_len())?;
    let hidden = Array::new(device, DType::F32, shape.states_len())?;
    for walk in Walk::all(shape) {
        let hidden_now = Array::new(device, DType::F32, walk.states())?;
        let recurrent = Array::new(device, DType::F32, 4 * walk.states())?;
        let product = Product {
            batch: walk.num_directions,
            rounding,
            ..Product::new(walk.sequences, 4 * units, units)
        };
        for step in 0..walk.steps {
            if step > 0 {
                let weights = walk.recurrent(parameters).transposed();
                let (from, to) = (walk.compact(&hidden_now, units), walk.compact(&recurrent, 4 * units));
                // SAFETY: the arrays have the sizes of the product.
                unsafe { gemm(device, product, from, weights, to) }?;
            }
            let arguments = [
                Argument::Pointer(gates.pointer),
                Argument::Pointer(recurrent.pointer),
                Argument::Pointer(cells.pointer),
                Argument::Pointer(hidden.pointer),
                Argument::Pointer(hidden_now.pointer),
                walk.argument(step),
            ];
            // SAFETY: gates and states have the grid's sizes, the others those of the walk.
            unsafe { launch(device, LSTM, "lstm_step", Threads::each(walk.states()), &arguments) }?;
        }
    }
    Ok((hidden, Activations { gates, cells }))
}

pub(crate) fn backward(
    shape: GridShape,
    products: Products,
    grid: &View<'_>,
    parameters: &Parameters<'_>,
    hidden: &View<'_>,
    activations: &Activations,
    grad_hidden: &View<'_>,
) -> Result<Gradients> {
    let grid = &grid.clone().expect(DType::F32)?;
    let (device, rounding) = (&grid.device, Rounding::from(products));
    let (units, all_gates) = (shape.units, DIRECTIONS * 4 * shape.units);
    let features = grid.len / shape.cells().max(1);
    let grad_gates = Array::new(device, DType::F32, shape.gates_len())?;
    for walk in Walk::all(shape) {
        let grad_state = Array::new(device, DType::F32, walk.states())?;
        let carried = Array::new(device, DType::F32, walk.states())?;
        let grad_gates_now = Array::new(device, DType::F32, 4 * walk.states())?;
        let product = Product {
            batch: walk.num_directions,
            rounding,
            ..Product::new(walk.sequences, units, 4 * units)
        };
        for step in (0..walk.steps).rev() {
            let is_last = step + 1 == walk.steps;
            if !is_last {
                let weights = walk.recurrent(parameters);
                let (from, to) = (walk.compact(&grad_gates_now, 4 * units), walk.compact(&carried, units));
                // SAFETY: the arrays have the sizes of the product.
                unsafe { gemm(device, product, from, weights, to) }?;
            }
            let arguments = [
                Argument::Pointer(activations.gates.pointer),
                Argument::Pointer(activations.cells.pointer),
                Argument::Pointer(grad_hidden.pointer),
                Argument::Pointer(carried.pointer),
                Argument::Pointer(grad_state.pointer),
                Argument::Pointer(grad_gates.pointer),
                Argument::Pointer(grad_gates_now.pointer),
                Argument::Int(i32::from(is_last)),
                walk.argument(step),
            ];
            // SAFETY: as in `forward`.
            unsafe { launch(device, LSTM, "lstm_step_backward", Threads::each(walk.states()), &arguments) }?;
        }
    }

    let before = Array::new(device, DType::F32, shape.states_len())?;
    let arguments = [
        Argument::Pointer(hidden.pointer),
        Argument::Pointer(before.pointer),
        Walk::all(shape)[0].argument(0),
    ];
    // SAFETY: both have the size of the grid's states.
    unsafe { launch(device, LSTM, "hidden_before", Threads::each(shape.states_len()), &arguments) }?;
    let recurrent = Array::new(device, DType::F32, DIRECTIONS * shape.recurrent_len())?;
    let product = Product { batch: DIRECTIONS, rounding, ..Product::new(4 * units, units, shape.cells()) };
    let gates_of_direction = Matrix::new(grad_gates.pointer, DType::F32, all_gates).batched(4 * units);
    let before_of_direction = Matrix::new(before.pointer, DType::F32, DIRECTIONS * units).batched(units);
    let to = Matrix::new(recurrent.pointer, DType::F32, units).batched(shape.recurrent_len());
    // SAFETY: directions are adjacent in every cell's row of gates and of states.
    unsafe { gemm(device, product, gates_of_direction.transposed(), before_of_direction, to) }?;
    let bias = column_sums(&grad_gates.view(), all_gates)?;

    let gates = Matrix::new(grad_gates.pointer, DType::F32, all_gates);
    let grad_grid = Array::new(device, DType::F32, grid.len)?;
    let input = Array::new(device, DType::F32, all_gates * features)?;
    // SAFETY: the gates are [cells, 16·U], the grid [cells, D], the input weights [16·U, D].
    unsafe {
        gemm(
            device,
            Product { rounding, ..Product::new(shape.cells(), features, all_gates) },
            gates,
            Matrix::new(parameters.input.pointer, DType::F32, features),
            Matrix::new(grad_grid.pointer, DType::F32, features),
        )?;
        gemm(
            device,
            Product { rounding, ..Product::new(all_gates, features, shape.cells()) },
            gates.transposed(),
            Matrix::new(grid.pointer, DType::F32, features),
            Matrix::new(input.pointer, DType::F32, features),
        )?;
    }
    Ok(Gradients { grid: grad_grid, input, recurrent, bias })
}
