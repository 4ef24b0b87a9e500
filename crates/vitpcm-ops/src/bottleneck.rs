//! A ResNet's bottleneck blocks; all trained ones are a single node of the graph. Parameter gradients are accumulated
//! where they are computed, and so is the gradient of a block's input.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::conv::{ConvNorm, Residual, conv_norm};
use crate::linear::rounded;
use crate::one_node::{ParameterGradients, one_node};
use crate::tensors::has_kernels;

/// A convolution with its norm and activation.
#[derive(Debug, Clone)]
pub struct ConvLayer {
    weight: Tensor,
    /// The weight rounded for products, until it changes.
    for_products: Option<Tensor>,
    norm: ConvNorm,
}

impl ConvLayer {
    /// Where its weight is.
    pub fn device(&self) -> &Device {
        self.weight.device()
    }

    /// A layer; the weight is `[O, k, k, C]`.
    pub fn new(weight: Tensor, norm: ConvNorm) -> Self {
        Self { weight, for_products: None, norm }
    }

    /// The same layer with its weight rounded once, until it changes.
    pub fn for_products(&self, dtype: DType) -> Result<Self> {
        Ok(Self { for_products: Some(rounded(&self.weight.detach(), dtype)?), ..self.clone() })
    }

    /// See [`conv_norm`].
    pub fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        match &self.for_products {
            Some(weight) if !self.weight.track_op() => conv_norm(x, weight, &self.norm, residual),
            _ => conv_norm(x, &self.weight, &self.norm, residual),
        }
    }

    /// The layer without a graph for values of this type, with the identity of its weight for the gradient.
    fn detached(&self, dtype: DType) -> Result<Trained> {
        let weight = match &self.for_products {
            Some(weight) => weight.clone(),
            None => rounded(&self.weight.detach(), dtype)?,
        };
        let weight = weight.contiguous()?;
        let [scale, shift] = [&self.norm.scale, &self.norm.shift].map(|part| part.detach().contiguous());
        let norm = ConvNorm { scale: scale?, shift: shift?, ..self.norm.clone() };
        Ok(Trained { parameter: self.weight.clone(), weight, norm })
    }
}

/// A block: 1×1, 3×3 and 1×1 convolutions, and a shortcut.
#[derive(Debug, Clone)]
pub struct Bottleneck {
    /// The convolutions.
    pub layers: [ConvLayer; 3],
    /// The convolution on the shortcut, if any.
    pub around: Option<ConvLayer>,
}

impl Bottleneck {
    /// The same block with its weights rounded once, until they change.
    pub fn for_products(&self, dtype: DType) -> Result<Self> {
        let [first, second, third] = self.layers.each_ref().map(|layer| layer.for_products(dtype));
        let around = self.around.as_ref().map(|layer| layer.for_products(dtype)).transpose()?;
        Ok(Self { layers: [first?, second?, third?], around })
    }

    fn is_trained(&self) -> bool {
        self.layers.iter().chain(&self.around).any(|layer| layer.weight.track_op())
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let around = match &self.around {
            Some(layer) => layer.forward(x, None)?,
            None => x.clone(),
        };
        let [first, second, third] = &self.layers;
        third.forward(&second.forward(&first.forward(x, None)?, None)?, Some(&around))
    }
}

/// A sequence of bottleneck blocks. With `gradients`, the weights' gradients may go there instead of into candle's
/// store; without, the blocks record a graph of single operations, or none if nothing is a variable.
///
/// # Shapes
/// x `[B, H, W, C]`; result `[B, H', W', C']`, in the type of x.
pub fn bottlenecks(
    x: &Tensor,
    blocks: &[Bottleneck],
    gradients: Option<&ParameterGradients>,
) -> Result<Tensor> {
    let mut x = x.clone();
    for (index, block) in blocks.iter().enumerate() {
        match gradients {
            Some(gradients) if (x.track_op() || block.is_trained()) && has_kernels(&[&x]) => {
                return as_one_node(&x, &blocks[index..], gradients);
            }
            _ => x = block.forward(&x)?,
        }
    }
    Ok(x)
}

fn as_one_node(x: &Tensor, blocks: &[Bottleneck], gradients: &ParameterGradients) -> Result<Tensor> {
    let gradients = gradients.clone();
    one_node("bottlenecks", x, |x| {
        let mut y = x.clone();
        let mut kept = Vec::with_capacity(blocks.len());
        for block in blocks {
            let pass = Pass::forward(&y, block)?;
            y = pass.y.clone();
            kept.push(pass);
        }
        let backward = move |grad_y: &Tensor| {
            kept.iter().rev().try_fold(grad_y.clone(), |grad, pass| pass.backward(&grad, &gradients))
        };
        Ok((y, backward))
    })
}

/// A layer prepared for the graph's node.
struct Trained {
    parameter: Tensor,
    weight: Tensor,
    norm: ConvNorm,
}

impl Trained {
    fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        conv_norm(x, &self.weight, &self.norm, residual)
    }

    /// Stores the weight's gradient; returns those of the convolution's result and of a residual.
    fn backward(
        &self,
        x: &Tensor,
        y: &Tensor,
        grad_y: &Tensor,
        residual: Residual,
        gradients: &ParameterGradients,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (grad, grad_residual) = self.norm.product_gradient(y, grad_y, residual)?;
        if self.parameter.track_op() {
            gradients.add_onto(&self.parameter, |onto| {
                self.norm.weight_gradient(x, &self.parameter, &grad, onto)
            })?;
        }
        Ok((grad, grad_residual))
    }

    fn x_gradient(&self, x: &Tensor, grad: &Tensor, onto: Option<Tensor>) -> Result<Tensor> {
        self.norm.x_gradient(x, &self.weight, grad, onto)
    }
}

/// State of a block's forward pass for backward.
struct Pass {
    layers: [Trained; 3],
    /// The convolution on the shortcut, if any, and its result.
    around: Option<(Trained, Tensor)>,
    x: Tensor,
    /// The results of the first two layers.
    hidden: [Tensor; 2],
    y: Tensor,
}

impl Pass {
    /// x has no graph.
    fn forward(x: &Tensor, block: &Bottleneck) -> Result<Self> {
        let [first, second, third] = block.layers.each_ref().map(|layer| layer.detached(x.dtype()));
        let (first, second, third) = (first?, second?, third?);
        let around = match &block.around {
            Some(layer) => {
                let layer = layer.detached(x.dtype())?;
                let y = layer.forward(x, None)?;
                Some((layer, y))
            }
            None => None,
        };
        let narrow = first.forward(x, None)?;
        let wide = second.forward(&narrow, None)?;
        let y = third.forward(&wide, Some(around.as_ref().map_or(x, |(_, y)| y)))?;
        Ok(Self { layers: [first, second, third], around, x: x.clone(), hidden: [narrow, wide], y })
    }

    /// Stores the gradients of all weights and returns that of x.
    fn backward(&self, grad_y: &Tensor, gradients: &ParameterGradients) -> Result<Tensor> {
        let Self { layers: [first, second, third], around, x, hidden: [narrow, wide], y } = self;
        let (grad, grad_around) = third.backward(wide, y, grad_y, Residual::Trained, gradients)?;
        let Some(grad_around) = grad_around else { bail!("a block's residual has a gradient") };
        let grad = third.x_gradient(wide, &grad, None)?;
        let (grad, _) = second.backward(narrow, wide, &grad, Residual::None, gradients)?;
        let grad = second.x_gradient(narrow, &grad, None)?;
        let (grad, _) = first.backward(x, narrow, &grad, Residual::None, gradients)?;
        let grad_around = match around {
            Some((layer, y)) => {
                let (grad, _) = layer.backward(x, y, &grad_around, Residual::None, gradients)?;
                layer.x_gradient(x, &grad, None)?
            }
            None => grad_around,
        };
        first.x_gradient(x, &grad, Some(grad_around))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::conv::{Activation, Window};
    use crate::tensors::testing::{assert_close, noise};

    fn layer(out: usize, kernel: usize, inputs: usize, stride: usize, activation: Activation) -> ConvLayer {
        let weight =
            noise(&[out, kernel, kernel, inputs], (out * 100 + kernel * 10 + inputs + stride) as u64);
        let window = Window { stride, padding: kernel / 2 * 2, dilation: kernel / 2 + 1 };
        let norm = ConvNorm { window, scale: noise(&[out], 1), shift: noise(&[out], 2), activation };
        ConvLayer::new(Var::from_tensor(&weight).expect("a variable").into_inner(), norm)
    }

    #[test]
    fn blocks_equal_their_single_operations_in_values_and_gradients() {
        let block = |inputs: usize, stride: usize, is_first: bool| Bottleneck {
            layers: [
                layer(4, 1, inputs, stride, Activation::Relu),
                layer(4, 3, 4, 1, Activation::Relu),
                layer(16, 1, 4, 1, Activation::Relu),
            ],
            around: is_first.then(|| layer(16, 1, inputs, stride, Activation::None)),
        };
        let blocks = [block(6, 2, true), block(16, 1, false), block(16, 1, true)];
        let x = Var::from_tensor(&noise(&[2, 9, 8, 6], 3)).unwrap();
        let cotangent = noise(&[2, 5, 4, 16], 4);
        let run = |gradients: Option<&ParameterGradients>| {
            // Twice, as in a network that sees two scales: gradients are summed.
            let [one, two] = [1.0, 0.5].map(|factor| {
                let y = bottlenecks(&(x.as_tensor() * factor).unwrap(), &blocks, gradients).unwrap();
                (&y * &cotangent).unwrap().sum_all().unwrap()
            });
            let sum = (&one + &two).unwrap();
            (sum.backward().unwrap(), sum.to_scalar::<f32>().unwrap())
        };
        let handed_over = ParameterGradients::default();
        let (of_node, value) = run(Some(&handed_over));
        let (of_single, expected) = run(None);
        let handed_over = handed_over.take();
        assert!((value - expected).abs() < 1e-4 * expected.abs().max(1.0), "{value} {expected}");
        assert_close(of_node.get(&x).unwrap(), of_single.get(&x).unwrap());
        for layer in blocks.iter().flat_map(|block| block.layers.iter().chain(&block.around)) {
            assert_close(&handed_over[&layer.weight.id()], of_single.get(&layer.weight).unwrap());
        }
    }
}
