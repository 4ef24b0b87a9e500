//! One step of the verification network's training: the crops at three scales, the largest of their logits, the
//! losses, and the gradients of all convolutions. Norms stay as they are; the optimiser is left to the loop.

use candle_core::{D, Tensor, Var};
use vitpcm_nets::deeplab::OUTPUT_STRIDE;
use vitpcm_nets::resnet::is_frozen_norm;
use vitpcm_nets::{DeepLab, DeepLabConfig, Parameters, Precision};
use vitpcm_ops::{ResizeRule, resize_grid};

use crate::crop_batch::{CropBatch, CropTarget, SCALES};
use crate::error::Result;

/// Losses of a step: one a scale, one of the largest logits.
pub const NUM_LOSSES: usize = SCALES.len() + 1;

/// The network as it is trained.
#[derive(Debug)]
pub struct VerifyStep {
    parameters: Parameters,
    network: DeepLab,
    variables: Vec<(String, Var)>,
}

/// The losses of a step, in the order of [`SCALES`], then that of the largest logits; their sum is minimised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VerifyLosses(pub [f32; NUM_LOSSES]);

impl VerifyLosses {
    /// What is minimised.
    pub fn total(&self) -> f32 {
        self.0.iter().sum()
    }
}

impl VerifyStep {
    /// Makes variables of the convolutions and classifiers.
    pub fn new(config: &DeepLabConfig, precision: Precision, mut parameters: Parameters) -> Result<Self> {
        let variables = parameters.make_trainable(|name| !is_frozen_norm(name))?;
        let network = DeepLab::new(config, &parameters)?.with_precision(precision);
        Ok(Self { parameters, network, variables })
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
    pub fn gradients(&self, batch: &CropBatch) -> Result<(VerifyLosses, Vec<Tensor>)> {
        vitpcm_ops::on_worker(|| {
            let losses = self.losses(batch)?;
            let store = losses.sum_all()?.backward()?;
            let gradient = |(_, variable): &(String, Var)| match store.get(variable.as_tensor()) {
                Some(gradient) => Ok(gradient.detach()),
                None => Ok(variable.as_tensor().zeros_like()?),
            };
            let gradients = self.variables.iter().map(gradient).collect::<Result<Vec<_>>>()?;
            let values = losses.to_vec1::<f32>()?;
            Ok((VerifyLosses(std::array::from_fn(|index| values[index])), gradients))
        })
    }

    /// All losses, `[4]`.
    fn losses(&self, batch: &CropBatch) -> Result<Tensor> {
        // All scales first: what they are resized by is carried to a GPU, which waits for all work before it.
        let pixels = batch.targets.iter().map(|target| at_scale(&batch.pixels, target.one_hot.dim(1)?));
        let pixels = pixels.collect::<candle_core::Result<Vec<_>>>()?;
        let mut losses = Vec::with_capacity(NUM_LOSSES);
        let mut largest: Option<Tensor> = None;
        for (target, pixels) in batch.targets.iter().zip(pixels) {
            let logits = self.network.forward(&pixels)?;
            losses.push(cross_entropy(&logits, target)?);
            largest = Some(match largest {
                None => logits,
                Some(largest) => {
                    let cells = largest.dim(1)?;
                    largest.maximum(&resize_grid(&logits, cells, cells, ResizeRule::AlignCorners)?)?
                }
            });
        }
        if let (Some(largest), Some(target)) = (largest, batch.targets.first()) {
            losses.push(cross_entropy(&largest, target)?);
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

/// The mean over labelled points of −ln of their class's probability; 0 where there is none.
fn cross_entropy(logits: &Tensor, target: &CropTarget) -> Result<Tensor> {
    // The maximum only guards against overflow; it has no part in the gradient.
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let log_probabilities = shifted.broadcast_sub(&log_sum)?;
    let sum = (log_probabilities * &target.one_hot)?.sum_all()?;
    Ok((sum * (-1.0 / target.num_labelled.max(1) as f64))?)
}
