//! A whole transformer block as one node of the graph. Of its inside it keeps only what is dear to compute again, and its
//! parameters' gradients are handed over directly: candle's graph would add each of them to zeros first, and keep every
//! result of every operation until the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{
    CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor, TensorId, Var, bail,
};

use crate::add_scaled::{add_scaled, branch_gradient, scale_gradient};
use crate::attention::{Attention, attention, attention_to_go_back, has_attention_kernels};
use crate::dropout::{DropoutMask, dropped};
use crate::gelu::{Gelu, gelu};
use crate::layer_norm::{gradients as norm_gradients, layer_norm_to};
use crate::linear::{bias_gradient, linear, linear_gelu, weight_gradient, x_gradient};

/// A weight and its bias: of a linear layer `[out, in]` and `[out]`, of a norm `[d]` and `[d]`.
#[derive(Debug, Clone)]
pub struct Affine {
    /// The weight.
    pub weight: Tensor,
    /// The bias.
    pub bias: Tensor,
}

impl Affine {
    fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.detach() }
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, &self.weight, Some(&self.bias))
    }

    fn normalise(&self, x: &Tensor, options: &BlockOptions) -> Result<Tensor> {
        layer_norm_to(x, &self.weight, &self.bias, options.eps, options.dtype)
    }

    fn tensors(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }
}

/// The parameters of a pre-norm transformer block.
#[derive(Debug, Clone)]
pub struct BlockWeights {
    /// The norm before attention.
    pub norm1: Affine,
    /// To queries, keys and values.
    pub qkv: Affine,
    /// Behind attention.
    pub projection: Affine,
    /// LayerScale of attention's branch, `[d]`.
    pub scale1: Option<Tensor>,
    /// The norm before the MLP.
    pub norm2: Affine,
    /// The MLP's first layer.
    pub fc1: Affine,
    /// The MLP's second layer.
    pub fc2: Affine,
    /// LayerScale of the MLP's branch, `[d]`.
    pub scale2: Option<Tensor>,
}

impl BlockWeights {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let affine = [&self.norm1, &self.qkv, &self.projection, &self.norm2, &self.fc1, &self.fc2];
        affine.into_iter().flat_map(Affine::tensors).chain(&self.scale1).chain(&self.scale2)
    }

    fn detached(&self) -> Self {
        Self {
            norm1: self.norm1.detached(),
            qkv: self.qkv.detached(),
            projection: self.projection.detached(),
            scale1: self.scale1.as_ref().map(Tensor::detach),
            norm2: self.norm2.detached(),
            fc1: self.fc1.detached(),
            fc2: self.fc2.detached(),
            scale2: self.scale2.as_ref().map(Tensor::detach),
        }
    }
}

/// How a block is computed.
#[derive(Debug, Clone)]
pub struct BlockOptions {
    /// Heads of the attention.
    pub heads: usize,
    /// What the norms add to the variance.
    pub eps: f64,
    /// The type of products and activations; the residual stream stays f32.
    pub dtype: DType,
    /// Dropout after the projection, within the MLP and after it.
    pub dropout: [Option<DropoutMask>; 3],
}

/// The gradients of parameters that operations hand over directly.
#[derive(Debug, Clone, Default)]
pub struct ParameterGradients(Arc<Mutex<HashMap<TensorId, Tensor>>>);

impl ParameterGradients {
    /// All gradients that were handed over since the last call.
    pub fn take(&self) -> HashMap<TensorId, Tensor> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, parameter: &Tensor, gradient: Tensor) -> Result<()> {
        let mut gradients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = match gradients.get(&parameter.id()) {
            Some(before) => (before + gradient)?,
            None => gradient,
        };
        gradients.insert(parameter.id(), sum);
        Ok(())
    }
}

/// A pre-norm transformer block. Where `gradients` is given, the parameters' gradients may go there instead of into
/// candle's store; without, the block leaves a graph of single operations, or none where nothing is a variable.
///
/// # Shapes
/// x `[B, N, D]`, f32; result as x.
pub fn transformer_block(
    x: &Tensor,
    weights: &BlockWeights,
    options: &BlockOptions,
    gradients: Option<&ParameterGradients>,
) -> Result<Tensor> {
    let is_trained = weights.tensors().chain([x]).any(Tensor::track_op);
    let head_dim = x.dim(2)? / options.heads.max(1);
    match gradients {
        Some(gradients) if is_trained && has_attention_kernels(x, head_dim) => {
            as_one_operation(x, weights, options, gradients)
        }
        _ => by_single_operations(x, weights, options),
    }
}

fn as_one_operation(
    x: &Tensor,
    weights: &BlockWeights,
    options: &BlockOptions,
    gradients: &ParameterGradients,
) -> Result<Tensor> {
    // Without a variable before it the operation would have no place in the graph.
    let x = if x.track_op() { x.contiguous()? } else { Var::from_tensor(x)?.into_inner() };
    let block = Block::forward(&x.detach(), weights, options, gradients)?;
    x.apply_op1(block)
}

fn by_single_operations(x: &Tensor, weights: &BlockWeights, options: &BlockOptions) -> Result<Tensor> {
    let [after_attention, within_mlp, after_mlp] = options.dropout;
    let qkv = weights.qkv.apply(&weights.norm1.normalise(x, options)?)?;
    let attended = weights.projection.apply(&attention(&qkv, options.heads)?)?;
    let x = add_scaled(x, &dropped(attended, after_attention)?, weights.scale1.as_ref())?;

    let normed = weights.norm2.normalise(&x, options)?;
    let hidden = linear_gelu(&normed, &weights.fc1.weight, Some(&weights.fc1.bias))?;
    let out = weights.fc2.apply(&dropped(hidden, within_mlp)?)?;
    add_scaled(&x, &dropped(out, after_mlp)?, weights.scale2.as_ref())
}

/// A block on its way through the graph: what backward needs of forward. Norms, GELU and dropout are computed again.
struct Block {
    /// With their graph identity.
    parameters: BlockWeights,
    /// Without a graph.
    weights: BlockWeights,
    options: BlockOptions,
    gradients: ParameterGradients,
    qkv: Tensor,
    attention: Attention,
    attended: Tensor,
    /// Attention's branch behind its dropout, where LayerScale needs it.
    attention_branch: Option<Tensor>,
    /// The residual stream between the two halves.
    middle: Tensor,
    /// What goes into GELU.
    hidden: Tensor,
    mlp_branch: Option<Tensor>,
    /// The result, until the graph has taken it.
    y: Mutex<Option<Tensor>>,
}

impl Block {
    /// x has no graph.
    fn forward(
        x: &Tensor,
        parameters: &BlockWeights,
        options: &BlockOptions,
        gradients: &ParameterGradients,
    ) -> Result<Self> {
        let weights = parameters.detached();
        let [after_attention, within_mlp, after_mlp] = options.dropout;
        let qkv = weights.qkv.apply(&weights.norm1.normalise(x, options)?)?;
        let (attended, attention) = attention_to_go_back(&qkv, options.heads)?;
        let branch = dropped(weights.projection.apply(&attended)?, after_attention)?;
        let middle = add_scaled(x, &branch, weights.scale1.as_ref())?;
        let attention_branch = weights.scale1.is_some().then_some(branch);

        let hidden = weights.fc1.apply(&weights.norm2.normalise(&middle, options)?)?;
        let activated = dropped(gelu(&hidden)?, within_mlp)?;
        let branch = dropped(weights.fc2.apply(&activated)?, after_mlp)?;
        let y = add_scaled(&middle, &branch, weights.scale2.as_ref())?;
        let mlp_branch = weights.scale2.is_some().then_some(branch);
        Ok(Self {
            parameters: parameters.clone(),
            weights,
            options: options.clone(),
            gradients: gradients.clone(),
            qkv,
            attention,
            attended,
            attention_branch,
            middle,
            hidden,
            mlp_branch,
            y: Mutex::new(Some(y)),
        })
    }

    /// Hands over the gradients of a linear layer and returns that of its input.
    fn linear_backward(
        &self,
        parameters: &Affine,
        weights: &Affine,
        input: &Tensor,
        grad: &Tensor,
    ) -> Result<Tensor> {
        self.gradients.add(&parameters.weight, weight_gradient(input, &weights.weight, grad)?)?;
        self.gradients.add(&parameters.bias, bias_gradient(&weights.bias, grad)?)?;
        x_gradient(input, &weights.weight, grad)
    }

    /// Likewise of a norm, whose input the residual stream goes around.
    fn norm_backward(
        &self,
        parameters: &Affine,
        weights: &Affine,
        input: &Tensor,
        grad: &Tensor,
        grad_around: &Tensor,
    ) -> Result<Tensor> {
        let eps = self.options.eps as f32;
        let (grad_input, weight, bias) = norm_gradients(input, &weights.weight, &weights.bias, eps, grad)?;
        self.gradients.add(&parameters.weight, weight)?;
        self.gradients.add(&parameters.bias, bias)?;
        grad_input + grad_around
    }

    /// Likewise of a LayerScale.
    fn branch_backward(
        &self,
        scale: (Option<&Tensor>, Option<&Tensor>),
        branch: Option<&Tensor>,
        grad_y: &Tensor,
        mask: Option<DropoutMask>,
    ) -> Result<Tensor> {
        let (parameter, weight) = scale;
        if let (Some(parameter), Some(weight), Some(branch)) = (parameter, weight, branch) {
            self.gradients.add(parameter, scale_gradient(weight, branch, grad_y)?)?;
        }
        dropped(branch_gradient(weight, grad_y, self.options.dtype)?, mask)
    }

    fn backward(&self, x: &Tensor, grad_y: &Tensor) -> Result<Tensor> {
        let (parameters, weights, options) = (&self.parameters, &self.weights, &self.options);
        let [after_attention, within_mlp, after_mlp] = options.dropout;

        let scale = (parameters.scale2.as_ref(), weights.scale2.as_ref());
        let grad = self.branch_backward(scale, self.mlp_branch.as_ref(), grad_y, after_mlp)?;
        let activated = dropped(gelu(&self.hidden)?, within_mlp)?;
        let grad = self.linear_backward(&parameters.fc2, &weights.fc2, &activated, &grad)?;
        drop(activated);
        let grad = dropped(grad, within_mlp)?;
        let Some(grad) = Gelu.bwd(&self.hidden, &self.hidden, &grad)? else { bail!("GELU has a gradient") };
        let normed = weights.norm2.normalise(&self.middle, options)?;
        let grad = self.linear_backward(&parameters.fc1, &weights.fc1, &normed, &grad)?;
        drop(normed);
        let grad_middle =
            self.norm_backward(&parameters.norm2, &weights.norm2, &self.middle, &grad, grad_y)?;

        let scale = (parameters.scale1.as_ref(), weights.scale1.as_ref());
        let grad =
            self.branch_backward(scale, self.attention_branch.as_ref(), &grad_middle, after_attention)?;
        let grad =
            self.linear_backward(&parameters.projection, &weights.projection, &self.attended, &grad)?;
        let Some(grad) = self.attention.bwd(&self.qkv, &self.attended, &grad)? else {
            bail!("attention has a gradient")
        };
        let normed = weights.norm1.normalise(x, options)?;
        let grad = self.linear_backward(&parameters.qkv, &weights.qkv, &normed, &grad)?;
        self.norm_backward(&parameters.norm1, &weights.norm1, x, &grad, &grad_middle)
    }

    fn take_result(&self) -> Result<Tensor> {
        match self.y.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(y) => Ok(y),
            None => bail!("a transformer block was run twice"),
        }
    }
}

impl CustomOp1 for Block {
    fn name(&self) -> &'static str {
        "transformer-block"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = self.take_result()?;
        let (storage, layout) = y.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
            _ => bail!("a transformer block changed its device"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _: &candle_core::CudaStorage,
        _: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        let y = self.take_result()?;
        let (storage, layout) = y.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => bail!("a transformer block changed its device"),
        }
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.backward(&x.detach(), &grad_y.contiguous()?)?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::{random_bits, uniform};

    fn noise(dims: &[usize], seed: u64) -> Var {
        let count = dims.iter().product::<usize>() as u64;
        let values: Vec<f32> = (0..count).map(|i| uniform(random_bits(seed, i)) - 0.5).collect();
        Var::from_vec(values, dims, &Device::Cpu).expect("a variable")
    }

    #[test]
    fn a_block_equals_its_single_operations_in_values_and_gradients() {
        let (width, mask) = (24, |position| Some(DropoutMask { key: 3, position, rate: 0.2 }));
        let mut seed = 0;
        let mut variables = Vec::new();
        let mut variable = |dims: &[usize]| {
            seed += 1;
            variables.push(noise(dims, seed));
            variables[variables.len() - 1].as_tensor().clone()
        };
        let mut affine =
            |out: usize, weight: &[usize]| Affine { weight: variable(weight), bias: variable(&[out]) };
        let weights = BlockWeights {
            norm1: affine(width, &[width]),
            qkv: affine(3 * width, &[3 * width, width]),
            projection: affine(width, &[width, width]),
            norm2: affine(width, &[width]),
            fc1: affine(4 * width, &[4 * width, width]),
            fc2: affine(width, &[width, 4 * width]),
            scale1: Some(variable(&[width])),
            scale2: Some(variable(&[width])),
        };
        let x = noise(&[2, 7, width], 100);
        for dropout in [[None; 3], [mask(0), mask(1000), mask(5000)]] {
            let options = BlockOptions { heads: 3, eps: 1e-6, dtype: DType::F32, dropout };
            let cotangent = noise(&[2, 7, width], 101);
            let run = |gradients: Option<&ParameterGradients>| {
                let y = match gradients {
                    Some(gradients) => as_one_operation(&x, &weights, &options, gradients),
                    None => by_single_operations(&x, &weights, &options),
                };
                let y = y.unwrap();
                let store = (&y * cotangent.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
                (y, store)
            };
            let handed_over = ParameterGradients::default();
            let (block, of_block) = run(Some(&handed_over));
            let (single, of_single) = run(None);
            let handed_over = handed_over.take();
            assert_close(&block, &single);
            assert_close(of_block.get(&x).unwrap(), of_single.get(&x).unwrap());
            for parameter in weights.tensors() {
                assert_close(&handed_over[&parameter.id()], of_single.get(parameter).unwrap());
            }
        }
    }

    #[track_caller]
    fn assert_close(a: &Tensor, b: &Tensor) {
        assert_eq!(a.dims(), b.dims());
        let values = |tensor: &Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).unwrap();
        let (a, b) = (values(a), values(b));
        let largest = b.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * largest.max(1.0)));
    }
}
