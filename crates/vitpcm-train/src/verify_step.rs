//! One step of the verification network's training: the crops at three scales or one, the largest of their logits, the
//! losses, and the gradients of all convolutions. Norms stay as they are; the optimiser is left to the loop.

use candle_core::{Tensor, Var};
use vitpcm_nets::deeplab::OUTPUT_STRIDE;
use vitpcm_nets::resnet::is_frozen_norm;
use vitpcm_nets::{DeepLab, DeepLabConfig, ParameterGradients, Parameters, Precision};
use vitpcm_ops::{ResizeRule, cross_entropy, resize_grid};

use crate::crop_batch::{CropBatch, CropTarget, SeenAt, cells_at};
use crate::error::Result;
use crate::losses::{Losses, OF_MASKS};

/// The network as it is trained.
#[derive(Debug)]
pub struct VerifyStep {
    parameters: Parameters,
    network: DeepLab,
    variables: Vec<(String, Var)>,
    seen_at: SeenAt,
}

impl VerifyStep {
    /// Makes variables of the convolutions and classifiers.
    pub fn new(
        config: &DeepLabConfig,
        precision: Precision,
        seen_at: SeenAt,
        mut parameters: Parameters,
    ) -> Result<Self> {
        let variables = parameters.make_trainable(|name| !is_frozen_norm(name))?;
        let network = DeepLab::new(config, &parameters)?.with_precision(precision);
        Ok(Self { parameters, network, variables, seen_at })
    }

    /// The parameters that are trained, in the order of their names.
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// All parameters as they are now, without a graph. They change with the next step: copy them to keep them.
    pub fn parameters(&self) -> Parameters {
        self.parameters.iter().map(|(name, tensor)| (name.to_owned(), tensor.detach())).collect()
    }

    /// The losses and the gradient of every variable.
    pub fn gradients(&self, batch: &CropBatch) -> Result<(Losses, Vec<Tensor>)> {
        vitpcm_ops::on_worker(|| {
            let of_blocks = ParameterGradients::default();
            let losses = self.losses(batch, &of_blocks)?;
            let store = losses.sum_all()?.backward()?;
            let variables = self.variables.iter().map(|(_, variable)| variable.as_tensor());
            let gradients = of_blocks.take_all(&store, variables)?;
            let values: Vec<f32> = losses.to_vec1()?;
            let parts = OF_MASKS.into_iter().zip(values.iter().copied()).collect();
            Ok((Losses { total: values.iter().sum(), parts }, gradients))
        })
    }

    /// The losses in the order of [`OF_MASKS`], of one scale the first alone. `of_blocks` gets the gradients of the ResNet's blocks when they go backward.
    fn losses(&self, batch: &CropBatch, of_blocks: &ParameterGradients) -> Result<Tensor> {
        let network = self.network.for_passes()?;
        // All scales first: what they are resized by is carried to a GPU, which waits for all work before it.
        let side = batch.pixels.dim(1)?;
        let at_scale = |&scale: &f64| at_scale(&batch.pixels, cells_at(side, scale));
        let pixels = self.seen_at.scales().iter().map(at_scale).collect::<candle_core::Result<Vec<_>>>()?;
        let num_scales = pixels.len();
        let mut losses = Vec::with_capacity(num_scales + 1);
        let mut largest: Option<Tensor> = None;
        for (scale, pixels) in pixels.into_iter().enumerate() {
            let features = network.features(&pixels, Some(of_blocks))?;
            let logits = network.classify(&features)?;
            losses.push(mean_loss(&logits, batch.target(scale))?);
            largest = Some(match largest {
                None => logits,
                Some(largest) => {
                    let cells = largest.dim(1)?;
                    largest.maximum(&resize_grid(&logits, cells, cells, ResizeRule::AlignCorners)?)?
                }
            });
        }
        if let Some(largest) = largest.filter(|_| num_scales > 1) {
            losses.push(mean_loss(&largest, batch.target(0))?);
        }
        Ok(Tensor::stack(&losses, 0)?)
    }
}

/// Crops at the size for which the network's grid has so many cells a side.
fn at_scale(pixels: &Tensor, cells: usize) -> candle_core::Result<Tensor> {
    let side = (cells - 1) * OUTPUT_STRIDE + 1;
    match side == pixels.dim(1)? {
        true => Ok(pixels.clone()),
        false => resize_grid(pixels, side, side, ResizeRule::AlignCorners),
    }
}

/// The mean over all labels of −ln of their class's probability; 0 where there is none.
fn mean_loss(logits: &Tensor, target: &CropTarget) -> Result<Tensor> {
    let sum = cross_entropy(logits, &target.labels)?.sum_all()?;
    Ok((sum * (1.0 / target.num_labelled.max(1) as f64))?)
}
