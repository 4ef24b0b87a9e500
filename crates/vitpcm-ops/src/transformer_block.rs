//! Transformer blocks; all trained ones are a single node of the graph, which keeps only intermediate results that are
//! expensive to recompute.

use candle_core::{CustomOp1, DType, Result, Tensor, bail};

use crate::attention::{Attention, attention_of_layer, attention_to_go_back, has_attention_kernels};
use crate::dropout::{DropoutMask, dropped};
use crate::layer_norm::{gradients as norm_gradients, layer_norm_to};
use crate::linear::{bias_gradient, linear, linear_gelu, rounded, weight_gradient, x_gradient};
use crate::linear_tail::{BranchEnd, Keep, activate, activate_backward};
use crate::one_node::{ParameterGradients, one_node};

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

    /// A linear layer's weight without a graph, converted for products of this type.
    fn for_products(&self, dtype: DType) -> Result<Self> {
        Ok(Self { weight: rounded(&self.weight.detach(), dtype)?, bias: self.bias.detach() })
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
    /// After attention.
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

    /// Without a graph, with the linear layers' weights converted for products of this type: rounded once, until they
    /// change.
    pub fn for_products(&self, dtype: DType) -> Result<Self> {
        Ok(Self {
            norm1: self.norm1.detached(),
            qkv: self.qkv.for_products(dtype)?,
            projection: self.projection.for_products(dtype)?,
            scale1: self.scale1.as_ref().map(Tensor::detach),
            norm2: self.norm2.detached(),
            fc1: self.fc1.for_products(dtype)?,
            fc2: self.fc2.for_products(dtype)?,
            scale2: self.scale2.as_ref().map(Tensor::detach),
        })
    }

    fn attention_end(&self, options: &BlockOptions) -> BranchEnd<'_> {
        BranchEnd { layer: &self.projection, mask: options.dropout[0], scale: self.scale1.as_ref() }
    }

    fn mlp_end(&self, options: &BlockOptions) -> BranchEnd<'_> {
        BranchEnd { layer: &self.fc2, mask: options.dropout[2], scale: self.scale2.as_ref() }
    }
}

/// Settings of a block.
#[derive(Debug, Clone)]
pub struct BlockOptions {
    /// Heads of the attention.
    pub heads: usize,
    /// Epsilon of the norms.
    pub eps: f64,
    /// The type of activations; the residual stream stays f32. On the CPU f32.
    pub dtype: DType,
    /// The type that factors of linear layers' products are rounded to; on a GPU that of the activations.
    pub products: DType,
    /// Dropout after the projection, within the MLP and after it.
    pub dropout: [Option<DropoutMask>; 3],
}

/// A sequence of pre-norm transformer blocks. With `gradients`, the parameters' gradients may go there instead of into
/// candle's store; without, the blocks record a graph of single operations, or none if nothing is a variable.
///
/// # Shapes
/// x `[B, N, D]`, f32; result as x.
pub fn transformer_blocks(
    x: &Tensor,
    blocks: &[(&BlockWeights, BlockOptions)],
    gradients: Option<&ParameterGradients>,
) -> Result<Tensor> {
    let width = x.dim(2)?;
    let has_kernels =
        |(_, options): &(_, BlockOptions)| has_attention_kernels(x, width / options.heads.max(1));
    let has_kernels = blocks.iter().all(has_kernels);
    let mut x = x.clone();
    for (index, (weights, options)) in blocks.iter().enumerate() {
        let is_trained = weights.tensors().chain([&x]).any(Tensor::track_op);
        match gradients {
            Some(gradients) if is_trained && has_kernels => {
                return as_one_operation(&x, &blocks[index..], gradients);
            }
            _ => x = by_single_operations(&x, weights, options)?,
        }
    }
    Ok(x)
}

fn as_one_operation(
    x: &Tensor,
    blocks: &[(&BlockWeights, BlockOptions)],
    gradients: &ParameterGradients,
) -> Result<Tensor> {
    one_node("transformer-blocks", x, |x| {
        let mut y = x.clone();
        let mut kept = Vec::with_capacity(blocks.len());
        for (weights, options) in blocks {
            let block;
            (y, block) = Block::forward(&y, weights, options, gradients)?;
            kept.push(block);
        }
        let backward = move |grad_y: &Tensor| {
            kept.iter().rev().try_fold(grad_y.clone(), |grad, block| block.backward(&grad))
        };
        Ok((y, backward))
    })
}

fn by_single_operations(x: &Tensor, weights: &BlockWeights, options: &BlockOptions) -> Result<Tensor> {
    let attended = attention_of_layer(&weights.norm1.normalise(x, options)?, &weights.qkv, options.heads)?;
    let (x, _) = weights.attention_end(options).forward(x, &attended, Keep::Nothing)?;

    let normed = weights.norm2.normalise(&x, options)?;
    let hidden = linear_gelu(&normed, &weights.fc1.weight, Some(&weights.fc1.bias))?;
    let activated = dropped(hidden, options.dropout[1])?;
    let (y, _) = weights.mlp_end(options).forward(&x, &activated, Keep::Nothing)?;
    Ok(y)
}

/// State of a block's forward pass for backward. Norms, GELU and dropout are recomputed.
struct Block {
    x: Tensor,
    /// With their graph identity.
    parameters: BlockWeights,
    /// Without a graph, in the type of the products.
    weights: BlockWeights,
    options: BlockOptions,
    gradients: ParameterGradients,
    qkv: Tensor,
    attention: Attention,
    attended: Tensor,
    /// The attention branch after its dropout, if LayerScale needs it.
    attention_branch: Option<Tensor>,
    /// The residual stream between the two halves.
    middle: Tensor,
    /// GELU's input.
    hidden: Tensor,
    mlp_branch: Option<Tensor>,
}

impl Block {
    /// x has no graph.
    fn forward(
        x: &Tensor,
        parameters: &BlockWeights,
        options: &BlockOptions,
        gradients: &ParameterGradients,
    ) -> Result<(Tensor, Self)> {
        let weights = parameters.for_products(options.products)?;
        let Affine { weight, bias } = &weights.qkv;
        let qkv = linear(&weights.norm1.normalise(x, options)?, weight, Some(bias))?;
        let (attended, attention) = attention_to_go_back(&qkv, options.heads)?;
        let (middle, attention_branch) =
            weights.attention_end(options).forward(x, &attended, Keep::ForBackward)?;

        let normed = weights.norm2.normalise(&middle, options)?;
        let (hidden, activated) = activate(&normed, &weights.fc1, options.dropout[1])?;
        drop(normed);
        let (y, mlp_branch) = weights.mlp_end(options).forward(&middle, &activated, Keep::ForBackward)?;
        let block = Self {
            x: x.clone(),
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
        };
        Ok((y, block))
    }

    /// Stores the gradients of a norm's parameters and returns that of its input, including the residual path.
    fn norm_backward(
        &self,
        parameters: &Affine,
        weights: &Affine,
        input: &Tensor,
        grad: &Tensor,
        grad_around: &Tensor,
    ) -> Result<Tensor> {
        let eps = self.options.eps as f32;
        let (grad_input, weight, bias) =
            norm_gradients(input, &weights.weight, &weights.bias, eps, grad, Some(grad_around))?;
        self.gradients.add(&parameters.weight, weight)?;
        self.gradients.add(&parameters.bias, bias)?;
        Ok(grad_input)
    }

    /// Stores the gradients of a branch's end, except the linear layer's weight, and returns that of its product.
    fn branch_backward(
        &self,
        parameters: BranchEnd<'_>,
        weights: BranchEnd<'_>,
        branch: Option<&Tensor>,
        grad_y: &Tensor,
    ) -> Result<Tensor> {
        let grads = weights.backward(branch, grad_y, self.options.dtype)?;
        self.gradients.add(&parameters.layer.bias, grads.bias)?;
        if let (Some(parameter), Some(grad)) = (parameters.scale, grads.scale) {
            self.gradients.add(parameter, grad)?;
        }
        Ok(grads.product)
    }

    fn weight_backward(&self, parameters: &Affine, input: &Tensor, grad: &Tensor) -> Result<()> {
        let products = self.options.products;
        self.gradients.add(&parameters.weight, weight_gradient(input, &parameters.weight, products, grad)?)
    }

    /// Stores the gradients of all parameters and returns that of x.
    fn backward(&self, grad_y: &Tensor) -> Result<Tensor> {
        let (parameters, weights, options) = (&self.parameters, &self.weights, &self.options);
        let grad_middle = {
            let (of_parameters, of_weights) = (parameters.mlp_end(options), weights.mlp_end(options));
            let grad = self.branch_backward(of_parameters, of_weights, self.mlp_branch.as_ref(), grad_y)?;
            let grad_activated = x_gradient(&self.hidden, &weights.fc2.weight, &grad)?;
            let grads =
                activate_backward(&weights.fc1.bias, &self.hidden, grad_activated, options.dropout[1])?;
            self.weight_backward(&parameters.fc2, &grads.activated, &grad)?;
            drop((grad, grads.activated));
            self.gradients.add(&parameters.fc1.bias, grads.bias)?;
            let normed = weights.norm2.normalise(&self.middle, options)?;
            self.weight_backward(&parameters.fc1, &normed, &grads.hidden)?;
            let grad = x_gradient(&normed, &weights.fc1.weight, &grads.hidden)?;
            drop((normed, grads.hidden));
            self.norm_backward(&parameters.norm2, &weights.norm2, &self.middle, &grad, grad_y)?
        };

        let (of_parameters, of_weights) = (parameters.attention_end(options), weights.attention_end(options));
        let branch = self.attention_branch.as_ref();
        let grad = self.branch_backward(of_parameters, of_weights, branch, &grad_middle)?;
        self.weight_backward(&parameters.projection, &self.attended, &grad)?;
        let grad = x_gradient(&self.attended, &weights.projection.weight, &grad)?;
        let Some(grad) = self.attention.bwd(&self.qkv, &self.attended, &grad)? else {
            bail!("attention has a gradient")
        };
        self.gradients.add(&parameters.qkv.bias, bias_gradient(&weights.qkv.bias, &grad)?)?;
        let normed = weights.norm1.normalise(&self.x, options)?;
        self.weight_backward(&parameters.qkv, &normed, &grad)?;
        let grad = x_gradient(&normed, &weights.qkv.weight, &grad)?;
        drop(normed);
        self.norm_backward(&parameters.norm1, &weights.norm1, &self.x, &grad, &grad_middle)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::tensors::testing::{assert_close, noise};

    fn variable(dims: &[usize], seed: u64) -> Var {
        Var::from_tensor(&noise(dims, seed)).expect("a variable")
    }

    /// Mean square of the difference, relative.
    fn error(a: &Tensor, b: &Tensor) -> f32 {
        let square = |x: &Tensor| x.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        square(&(a - b).unwrap()) / square(b)
    }

    #[track_caller]
    fn assert_near(a: &Tensor, b: &Tensor) {
        let error = error(a, b);
        assert!(error < 1e-4, "{error}");
    }

    #[test]
    fn blocks_equal_their_single_operations_in_values_and_gradients() {
        let (width, mask) = (24, |position| Some(DropoutMask { key: 3, position, rate: 0.2 }));
        let mut seed = 0;
        let mut variables = Vec::new();
        let mut variable = |dims: &[usize]| {
            seed += 1;
            variables.push(self::variable(dims, seed));
            variables[variables.len() - 1].as_tensor().clone()
        };
        let mut weights = || {
            let mut affine =
                |out: usize, weight: &[usize]| Affine { weight: variable(weight), bias: variable(&[out]) };
            let (norm1, norm2) = (affine(width, &[width]), affine(width, &[width]));
            let (qkv, projection) = (affine(3 * width, &[3 * width, width]), affine(width, &[width, width]));
            let (fc1, fc2) = (affine(4 * width, &[4 * width, width]), affine(width, &[width, 4 * width]));
            let (scale1, scale2) = (Some(variable(&[width])), Some(variable(&[width])));
            BlockWeights { norm1, qkv, projection, scale1, norm2, fc1, fc2, scale2 }
        };
        let weights = [weights(), weights()];
        let x = self::variable(&[2, 7, width], 100);
        let dropouts = [[None; 3], [mask(0), mask(1000), mask(5000)]];
        for (dropout, products) in
            dropouts.into_iter().flat_map(|dropout| [(dropout, DType::F32), (dropout, DType::BF16)])
        {
            let options = BlockOptions { heads: 3, eps: 1e-6, dtype: DType::F32, products, dropout };
            let assert_close = if products == DType::F32 { assert_close } else { assert_near };
            let cotangent = noise(&[2, 7, width], 101);
            let blocks = weights.each_ref().map(|weights| (weights, options.clone()));
            let run = |gradients: Option<&ParameterGradients>| {
                let y = transformer_blocks(&x, &blocks, gradients).unwrap();
                let store = (&y * &cotangent).unwrap().sum_all().unwrap().backward().unwrap();
                (y, store)
            };
            let handed_over = ParameterGradients::default();
            let (block, of_block) = run(Some(&handed_over));
            let (single, of_single) = run(None);
            let handed_over = handed_over.take();
            assert_close(&block, &single);
            assert!(products == DType::F32 || error(&block, &single) > 0.0);
            assert_close(of_block.get(&x).unwrap(), of_single.get(&x).unwrap());
            for parameter in weights.iter().flat_map(BlockWeights::tensors) {
                assert_close(&handed_over[&parameter.id()], of_single.get(parameter).unwrap());
            }
        }
    }
}
