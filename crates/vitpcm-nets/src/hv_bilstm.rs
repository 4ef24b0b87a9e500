//! HV-BiLSTM patch conditioning: one bidirectional LSTM along the rows of the grid, another along its columns.
//! The recurrence itself is `vitpcm_ops::hv_bilstm`.

use candle_core::Tensor;
use vitpcm_ops::{HvBiLstmWeights, LstmWeights, Products};

use crate::dropout::{DropoutSite, Mode};
use crate::error::Result;
use crate::parameters::Parameters;
use crate::variants::ParameterShape;

/// Units per direction in the paper.
pub const DEFAULT_LSTM_UNITS: usize = 192;

/// Names of the four directions' parameters: those of two PyTorch modules `LSTM(bidirectional=True)`.
const DIRECTIONS: [[&str; 2]; 4] =
    [["rows", ""], ["rows", "_reverse"], ["columns", ""], ["columns", "_reverse"]];

/// The conditioning layer.
#[derive(Debug, Clone)]
pub struct HvBiLstm {
    weights: HvBiLstmWeights,
}

impl HvBiLstm {
    /// Builds the layer from stored parameters.
    pub fn new(parameters: &Parameters) -> Result<Self> {
        let direction = |[module, suffix]: [&str; 2]| -> Result<LstmWeights> {
            let get = |part: &str| parameters.get(&parameter_name(module, part, suffix)).cloned();
            Ok(LstmWeights {
                weight_ih: get("weight_ih")?,
                weight_hh: get("weight_hh")?,
                bias_ih: get("bias_ih")?,
                bias_hh: get("bias_hh")?,
            })
        };
        let [row_forward, row_backward, column_forward, column_backward] = DIRECTIONS.map(direction);
        Ok(Self {
            weights: HvBiLstmWeights {
                row_forward: row_forward?,
                row_backward: row_backward?,
                column_forward: column_forward?,
                column_backward: column_backward?,
            },
        })
    }

    /// Names and shapes of the layer's parameters. Keeps both biases of PyTorch's LSTM, because the optimiser's
    /// trajectory depends on them.
    pub fn parameter_shapes(width: usize, units: usize) -> Vec<ParameterShape> {
        let mut shapes = Vec::new();
        for [module, suffix] in DIRECTIONS {
            let mut push = |part: &str, shape: &[usize]| {
                shapes.push(ParameterShape::new(&parameter_name(module, part, suffix), shape));
            };
            push("weight_ih", &[4 * units, width]);
            push("weight_hh", &[4 * units, units]);
            push("bias_ih", &[4 * units]);
            push("bias_hh", &[4 * units]);
        }
        shapes
    }

    /// Dropout, then the concatenated recurrences: rows forward, rows backward, columns forward, columns backward.
    ///
    /// # Shapes
    /// grid `[B, rows, columns, D]`; result `[B, rows, columns, 4·units]`
    pub fn forward(&self, grid: &Tensor, products: Products, mode: &mut Mode<'_>) -> Result<Tensor> {
        let grid = mode.dropout(grid.clone(), DropoutSite::Conditioning)?;
        Ok(vitpcm_ops::hv_bilstm(&grid, &self.weights, products)?)
    }
}

fn parameter_name(module: &str, part: &str, suffix: &str) -> String {
    format!("hv_bilstm.{module}.{part}_l0{suffix}")
}
