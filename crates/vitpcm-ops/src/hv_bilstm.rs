//! HV-BiLSTM: one bidirectional LSTM along the rows of a grid, another along its columns, outputs side by side.

use candle_core::{Result, Tensor, bail};

use crate::composed::linear;

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

#[derive(Clone, Copy)]
enum Direction {
    Forward,
    Backward,
}

/// Runs the four LSTMs over the grid and concatenates their hidden states: rows forward, rows backward,
/// columns forward, columns backward.
///
/// # Shapes
/// grid `[B, H, W, D]`; result `[B, H, W, 4·U]`.
pub fn hv_bilstm(grid: &Tensor, weights: &HvBiLstmWeights) -> Result<Tensor> {
    let columns = grid.transpose(1, 2)?;
    let row_forward = along_rows(grid, &weights.row_forward, Direction::Forward)?;
    let row_backward = along_rows(grid, &weights.row_backward, Direction::Backward)?;
    let column_forward =
        along_rows(&columns, &weights.column_forward, Direction::Forward)?.transpose(1, 2)?;
    let column_backward =
        along_rows(&columns, &weights.column_backward, Direction::Backward)?.transpose(1, 2)?;
    Tensor::cat(&[row_forward, row_backward, column_forward, column_backward], 3)
}

fn along_rows(grid: &Tensor, weights: &LstmWeights, direction: Direction) -> Result<Tensor> {
    let (batch, height, width, _) = grid.dims4()?;
    let (gates, units) = weights.weight_hh.dims2()?;
    if gates != 4 * units {
        bail!("hv_bilstm: weight_hh is [{gates}, {units}], expected [4·U, U]");
    }
    let bias = (&weights.bias_ih + &weights.bias_hh)?;
    let projected = linear(grid, &weights.weight_ih, Some(&bias))?;
    let recurrent = weights.weight_hh.t()?;
    let mut hidden = Tensor::zeros((batch * height, units), grid.dtype(), grid.device())?;
    let mut cell = hidden.clone();
    let mut outputs = vec![hidden.clone(); width];
    for step in 0..width {
        let position = match direction {
            Direction::Forward => step,
            Direction::Backward => width - 1 - step,
        };
        let input = projected
            .narrow(2, position, 1)?
            .reshape((batch * height, 4 * units))?;
        let gates = (input + hidden.matmul(&recurrent)?)?;
        let gate = |index: usize| gates.narrow(1, index * units, units);
        let kept = (sigmoid(&gate(1)?)? * &cell)?;
        cell = (kept + (sigmoid(&gate(0)?)? * gate(2)?.tanh()?)?)?;
        hidden = (sigmoid(&gate(3)?)? * cell.tanh()?)?;
        outputs[position] = hidden.clone();
    }
    Tensor::stack(&outputs, 1)?.reshape((batch, height, width, units))
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}
