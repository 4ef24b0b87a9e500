//! HV-BiLSTM: one bidirectional LSTM along the rows of a grid, another along its columns, outputs side by side.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::lstm::{self as kernels, Activations, DIRECTIONS, GridShape};
use crate::cpu::simd::SimdPath;
use crate::linear::linear;
use crate::tensors::{Floats, floats, output, run_on_cpu, tensor};

/// The parameters of one direction, in PyTorch's layout and gate order (input, forget, cell, output).
#[derive(Debug, Clone)]
pub struct LstmWeights {
    /// Input projection, `[4·U, D]`.
    pub weight_ih: Tensor,
    /// Recurrent projection, `[4·U, U]`.
    pub weight_hh: Tensor,
    /// Bias of the input projection, `[4·U]`.
    pub bias_ih: Tensor,
    /// Bias of the recurrent projection, `[4·U]`; apart from `bias_ih` because optimisers see two parameters.
    pub bias_hh: Tensor,
}

/// The parameters of the four directions.
#[derive(Debug, Clone)]
pub struct HvBiLstmWeights {
    /// Along each row, left to right.
    pub row_forward: LstmWeights,
    /// Along each row, right to left.
    pub row_backward: LstmWeights,
    /// Along each column, top to bottom.
    pub column_forward: LstmWeights,
    /// Along each column, bottom to top.
    pub column_backward: LstmWeights,
}

impl HvBiLstmWeights {
    fn directions(&self) -> [&LstmWeights; DIRECTIONS] {
        [&self.row_forward, &self.row_backward, &self.column_forward, &self.column_backward]
    }
}

/// Runs the four LSTMs over the grid and concatenates their hidden states: rows forward, rows backward,
/// columns forward, columns backward.
///
/// # Shapes
/// grid `[B, H, W, D]`; result `[B, H, W, 4·U]`.
pub fn hv_bilstm(grid: &Tensor, weights: &HvBiLstmWeights) -> Result<Tensor> {
    let (batch, height, width, features) = grid.dims4()?;
    let units = weights.row_forward.weight_hh.dim(1)?;
    for direction in weights.directions() {
        let [input, recurrent, bias_ih, bias_hh] =
            [&direction.weight_ih, &direction.weight_hh, &direction.bias_ih, &direction.bias_hh]
                .map(Tensor::dims);
        let gates = 4 * units;
        if input != [gates, features]
            || recurrent != [gates, units]
            || bias_ih != [gates]
            || bias_hh != [gates]
        {
            bail!(
                "hv_bilstm: weights {input:?}, {recurrent:?} and biases {bias_ih:?}, {bias_hh:?} do not fit \
                 {features} features and {units} units in four directions of the same size"
            );
        }
    }
    let directions = weights.directions();
    let mut tensors = vec![grid];
    tensors.extend(
        directions.iter().flat_map(|lstm| [&lstm.weight_ih, &lstm.weight_hh, &lstm.bias_ih, &lstm.bias_hh]),
    );
    if !run_on_cpu(&tensors) {
        return composed::hv_bilstm(grid, weights);
    }
    let weight_ih = Tensor::cat(&directions.map(|lstm| &lstm.weight_ih), 0)?;
    let weight_hh = Tensor::cat(&directions.map(|lstm| &lstm.weight_hh), 0)?;
    let bias_ih = Tensor::cat(&directions.map(|lstm| &lstm.bias_ih), 0)?;
    let bias_hh = Tensor::cat(&directions.map(|lstm| &lstm.bias_hh), 0)?;
    let projected = linear(grid, &weight_ih, Some(&(bias_ih + bias_hh)?))?;
    let shape = GridShape { batch, height, width, units };
    let saved = if projected.track_op() || weight_hh.track_op() {
        Saved::Keep(Mutex::new(None))
    } else {
        Saved::Drop
    };
    projected.apply_op2(&weight_hh, Recurrence { shape, saved })
}

/// The recurrence of all four directions, from their input projections `[B, H, W, 16·U]` and recurrent weights
/// `[16·U, U]`.
struct Recurrence {
    shape: GridShape,
    saved: Saved,
}

/// Gates and cell states, which backward would otherwise have to walk again for.
enum Saved {
    Keep(Mutex<Option<Activations>>),
    Drop,
}

impl CustomOp2 for Recurrence {
    fn name(&self) -> &'static str {
        "hv-bilstm-recurrence"
    }

    fn cpu_fwd(
        &self,
        projected: &CpuStorage,
        projected_layout: &Layout,
        recurrent: &CpuStorage,
        recurrent_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let projected = floats(projected, projected_layout)?;
        let recurrent = floats(recurrent, recurrent_layout)?;
        let shape = self.shape;
        let mut hidden = output(shape.states_len());
        match &self.saved {
            Saved::Keep(saved) => {
                let mut activations =
                    Activations { gates: output(shape.gates_len()), cells: output(shape.states_len()) };
                let kept = Some(&mut activations);
                kernels::forward(SimdPath::detect(), shape, projected, recurrent, &mut hidden, kept);
                *saved.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(activations);
            }
            Saved::Drop => {
                kernels::forward(SimdPath::detect(), shape, projected, recurrent, &mut hidden, None);
            }
        }
        let dims = (shape.batch, shape.height, shape.width, DIRECTIONS * shape.units);
        Ok((CpuStorage::F32(hidden), dims.into()))
    }

    fn bwd(
        &self,
        projected: &Tensor,
        recurrent: &Tensor,
        hidden: &Tensor,
        grad_hidden: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Saved::Keep(saved) = &self.saved else {
            bail!("hv_bilstm was run on tensors without a graph");
        };
        let saved = saved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(activations) = &*saved else {
            bail!("hv_bilstm: backward before forward");
        };
        let grad_hidden = grad_hidden.contiguous()?;
        let mut grad_projected = output(projected.elem_count());
        let mut grad_recurrent = recurrent.track_op().then(|| output(recurrent.elem_count()));
        {
            let (weights, hidden, grad_hidden) =
                (Floats::of(recurrent)?, Floats::of(hidden)?, Floats::of(&grad_hidden)?);
            let pass = kernels::Pass {
                recurrent: weights.get()?,
                hidden: hidden.get()?,
                activations,
                grad_hidden: grad_hidden.get()?,
            };
            kernels::backward(
                SimdPath::detect(),
                self.shape,
                pass,
                &mut grad_projected,
                grad_recurrent.as_deref_mut(),
            );
        }
        let grad_projected =
            if projected.track_op() { Some(tensor(grad_projected, projected.dims())?) } else { None };
        let grad_recurrent = grad_recurrent.map(|grad| tensor(grad, recurrent.dims())).transpose()?;
        Ok((grad_projected, grad_recurrent))
    }
}
