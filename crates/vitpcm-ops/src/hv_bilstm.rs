//! HV-BiLSTM: one bidirectional LSTM along the rows of a grid and one along its columns, with concatenated outputs.

use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

use crate::composed;
use crate::cpu::bf16::Factors;
use crate::cpu::linear::{self, LinearShape};
use crate::cpu::lstm::{self, DIRECTIONS, GridShape};
use crate::cpu::matmul::Finish;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::SimdPath;
#[cfg(feature = "cuda")]
use crate::cuda::{self, View};
use crate::tensors::{Floats, floats, has_kernels, output, tensor};

/// Precision of matrix products; states, gates and sums are f32 in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// Full f32.
    #[default]
    Exact,
    /// Rounded factors: on NVIDIA GPUs to TF32 (10-bit fraction), four times finer than bf16; on CPUs, those of the
    /// input projections to bf16.
    Rounded,
}

/// The parameters of one direction, in PyTorch's layout and gate order (input, forget, cell, output).
#[derive(Debug, Clone)]
pub struct LstmWeights {
    /// Input projection, `[4·U, D]`.
    pub weight_ih: Tensor,
    /// Recurrent projection, `[4·U, U]`.
    pub weight_hh: Tensor,
    /// Bias of the input projection, `[4·U]`.
    pub bias_ih: Tensor,
    /// Bias of the recurrent projection, `[4·U]`; separate from `bias_ih` because the optimiser treats them as two
    /// parameters.
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
pub fn hv_bilstm(grid: &Tensor, weights: &HvBiLstmWeights, products: Products) -> Result<Tensor> {
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
    let are_f32 = tensors.iter().all(|tensor| tensor.dtype() == DType::F32);
    if !has_kernels(&tensors) || !are_f32 {
        return composed::hv_bilstm(grid, weights);
    }
    let weight_ih = Tensor::cat(&directions.map(|lstm| &lstm.weight_ih), 0)?;
    // Recurrent weights of all directions and their two biases as one argument, because an operation takes at most
    // three.
    let mut rest = Vec::new();
    rest.extend(directions.map(|lstm| lstm.weight_hh.flatten_all()).into_iter().collect::<Result<Vec<_>>>()?);
    rest.extend(directions.map(|lstm| lstm.bias_ih.clone()));
    rest.extend(directions.map(|lstm| lstm.bias_hh.clone()));
    let rest = Tensor::cat(&rest, 0)?;
    let shape = GridShape { batch, height, width, units };
    let saved = match tensors.iter().any(|tensor| tensor.track_op()) {
        #[cfg(feature = "cuda")]
        true if grid.device().is_cuda() => Saved::OnCuda(Box::default()),
        true => Saved::Keep(Mutex::new(None)),
        false => Saved::Drop,
    };
    grid.contiguous()?.apply_op3(&weight_ih, &rest, HvBiLstm { shape, features, products, saved })
}

/// The whole HV-BiLSTM, from the grid, the input weights `[16·U, D]` and the other parameters.
struct HvBiLstm {
    shape: GridShape,
    features: usize,
    products: Products,
    saved: Saved,
}

/// Gates and cell states, which backward would otherwise have to recompute.
enum Saved {
    Keep(Mutex<Option<Activations>>),
    Drop,
    #[cfg(feature = "cuda")]
    OnCuda(Box<std::sync::OnceLock<cuda::lstm::Activations>>),
}

struct Activations {
    gates: Scratch,
    cells: Scratch,
}

impl HvBiLstm {
    /// Number of gates of all directions.
    fn gates(&self) -> usize {
        DIRECTIONS * 4 * self.shape.units
    }

    /// The sum of both biases, which follow the recurrent weights.
    #[cfg(feature = "cuda")]
    fn bias_on_cuda(&self, rest: &View<'_>) -> Result<cuda::Array> {
        let biases = rest.skip(DIRECTIONS * self.shape.recurrent_len());
        cuda::column_sums::column_sums(&biases, self.gates())
    }

    #[cfg(feature = "cuda")]
    fn backward_on_cuda(
        &self,
        activations: Option<&cuda::lstm::Activations>,
        grid: &Tensor,
        weight_ih: &Tensor,
        rest: &Tensor,
        hidden: &Tensor,
        grad_hidden: &Tensor,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let Some(activations) = activations else {
            bail!("hv_bilstm: backward before forward");
        };
        let grad_hidden = grad_hidden.contiguous()?;
        let rest_view = View::of(rest)?;
        let bias = self.bias_on_cuda(&rest_view)?;
        let parameters =
            cuda::lstm::Parameters { input: View::of(weight_ih)?, recurrent: rest_view, bias: bias.view() };
        let grads = cuda::lstm::backward(
            self.shape,
            self.products,
            &View::of(grid)?,
            &parameters,
            &View::of(hidden)?,
            activations,
            &View::of(&grad_hidden)?,
        )?;
        let recurrent = grads.recurrent.into_tensor(DIRECTIONS * self.shape.recurrent_len());
        let bias = grads.bias.into_tensor(self.gates());
        Ok((
            grads.grid.into_tensor(grid.dims()),
            grads.input.into_tensor(weight_ih.dims()),
            Tensor::cat(&[&recurrent, &bias, &bias], 0)?,
        ))
    }

    /// Of the input projections on the CPU.
    fn factors(&self) -> Factors {
        match self.products {
            Products::Exact => Factors::F32,
            Products::Rounded => Factors::Bf16,
        }
    }

    /// The input projections of all directions, as one linear layer.
    fn projection(&self) -> LinearShape {
        LinearShape { rows: self.shape.cells(), in_features: self.features, out_features: self.gates() }
    }
}

impl CustomOp3 for HvBiLstm {
    fn name(&self) -> &'static str {
        "hv-bilstm"
    }

    fn cpu_fwd(
        &self,
        grid: &CpuStorage,
        grid_layout: &Layout,
        weight_ih: &CpuStorage,
        weight_ih_layout: &Layout,
        rest: &CpuStorage,
        rest_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = self.shape;
        let path = SimdPath::detect();
        let weight_ih = floats(weight_ih, weight_ih_layout)?;
        let (recurrent, biases) = floats(rest, rest_layout)?.split_at(DIRECTIONS * shape.recurrent_len());
        let (bias_ih, bias_hh) = biases.split_at(self.gates());
        let bias: Vec<f32> = bias_ih.iter().zip(bias_hh).map(|(ih, hh)| ih + hh).collect();
        let mut gates = Scratch::take(shape.gates_len());
        let grid = floats(grid, grid_layout)?;
        linear::forward(
            path,
            self.factors(),
            self.projection(),
            grid,
            weight_ih,
            Finish::Bias(&bias),
            &mut gates,
        );
        let mut hidden = output(shape.states_len());
        match &self.saved {
            Saved::Keep(saved) => {
                let mut cells = Scratch::take(shape.states_len());
                lstm::forward(path, shape, recurrent, &mut gates, &mut hidden, Some(&mut cells));
                *saved.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                    Some(Activations { gates, cells });
            }
            _ => lstm::forward(path, shape, recurrent, &mut gates, &mut hidden, None),
        }
        let dims = (shape.batch, shape.height, shape.width, DIRECTIONS * shape.units);
        Ok((CpuStorage::F32(hidden), dims.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        grid: &candle_core::CudaStorage,
        grid_layout: &Layout,
        weight_ih: &candle_core::CudaStorage,
        weight_ih_layout: &Layout,
        rest: &candle_core::CudaStorage,
        rest_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let shape = self.shape;
        let (input, rest) = (View::new(weight_ih, weight_ih_layout)?, View::new(rest, rest_layout)?);
        let bias = self.bias_on_cuda(&rest)?;
        let parameters = cuda::lstm::Parameters { input, recurrent: rest, bias: bias.view() };
        let (hidden, activations) =
            cuda::lstm::forward(shape, self.products, &View::new(grid, grid_layout)?, &parameters)?;
        if let Saved::OnCuda(saved) = &self.saved {
            saved.get_or_init(|| activations);
        }
        let dims = (shape.batch, shape.height, shape.width, DIRECTIONS * shape.units);
        Ok((hidden.into_storage(), dims.into()))
    }

    fn bwd(
        &self,
        grid: &Tensor,
        weight_ih: &Tensor,
        rest: &Tensor,
        hidden: &Tensor,
        grad_hidden: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        #[cfg(feature = "cuda")]
        if let Saved::OnCuda(saved) = &self.saved {
            let grads = self.backward_on_cuda(saved.get(), grid, weight_ih, rest, hidden, grad_hidden)?;
            return Ok((Some(grads.0), Some(grads.1), Some(grads.2)));
        }
        let Saved::Keep(saved) = &self.saved else {
            bail!("hv_bilstm was run on tensors without a graph");
        };
        let saved = saved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(Activations { gates, cells }) = &*saved else {
            bail!("hv_bilstm: backward before forward");
        };
        let shape = self.shape;
        let path = SimdPath::detect();
        let grad_hidden = grad_hidden.contiguous()?;
        let mut grad_gates = Scratch::take(shape.gates_len());
        let mut grad_rest = rest.track_op().then(|| output(rest.elem_count()));
        {
            let (rest, hidden, grad_hidden) =
                (Floats::of(rest)?, Floats::of(hidden)?, Floats::of(&grad_hidden)?);
            let pass = lstm::Pass {
                recurrent: &rest.get()?[..DIRECTIONS * shape.recurrent_len()],
                hidden: hidden.get()?,
                gates,
                cells,
                grad_hidden: grad_hidden.get()?,
            };
            match &mut grad_rest {
                Some(grad_rest) => {
                    let (recurrent, biases) = grad_rest.split_at_mut(DIRECTIONS * shape.recurrent_len());
                    lstm::backward(path, shape, pass, &mut grad_gates, Some(recurrent));
                    let (bias_ih, bias_hh) = biases.split_at_mut(self.gates());
                    linear::backward_bias(&grad_gates, bias_ih);
                    bias_hh.copy_from_slice(bias_ih);
                }
                None => lstm::backward(path, shape, pass, &mut grad_gates, None),
            }
        }
        let grad_rest = grad_rest.map(|grad| tensor(grad, rest.dims())).transpose()?;
        let mut grad_grid = grid.track_op().then(|| output(grid.elem_count()));
        if let Some(grad_grid) = &mut grad_grid {
            let weight_ih = Floats::of(weight_ih)?;
            linear::backward_x(
                path,
                self.factors(),
                self.projection(),
                weight_ih.get()?,
                &grad_gates,
                grad_grid,
            );
        }
        let mut grad_weight_ih = weight_ih.track_op().then(|| output(weight_ih.elem_count()));
        if let Some(grad_weight_ih) = &mut grad_weight_ih {
            let grid = Floats::of(grid)?;
            linear::backward_weight(
                path,
                self.factors(),
                self.projection(),
                grid.get()?,
                &grad_gates,
                grad_weight_ih,
            );
        }
        let grad_grid = grad_grid.map(|grad| tensor(grad, grid.dims())).transpose()?;
        let grad_weight_ih = grad_weight_ih.map(|grad| tensor(grad, weight_ih.dims())).transpose()?;
        Ok((grad_grid, grad_weight_ih, grad_rest))
    }
}
