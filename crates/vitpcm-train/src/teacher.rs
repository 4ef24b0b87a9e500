//! What a verification network may learn beside labels: the features of the network that made them. Labels say which class
//! a pixel is, and are wrong in places; features say what it looks like to a network that has seen far more images, and
//! are there where labels were left open.

use candle_core::{D, DType, Device, Tensor};
use vitpcm_nets::{Backbone, Mode, Model, Normalisation, Parameters, Precision, random_linear};
use vitpcm_ops::{ResizeRule, linear, resize_grid};

use crate::error::Result;

/// What the names of the layer begin with that takes the learner's features to the teacher's.
pub(crate) const PREFIX: &str = "teacher.";
const WEIGHT: &str = "teacher.weight";
const BIAS: &str = "teacher.bias";

/// Size of the layer's first numbers against those that keep a feature's length. The cosine does not see it, but the smaller
/// they are, the sooner they have turned to where they should point.
const INITIAL_SCALE: f64 = 0.1;

/// A lower length than this of a feature counts as this.
const LEAST_LENGTH: f64 = 1e-6;

/// A network that has learned.
#[derive(Debug, Clone)]
pub struct Teacher {
    backbone: Backbone,
    depth: usize,
    patch: usize,
    num_features: usize,
    normalisation: Normalisation,
}

impl Teacher {
    /// The backbone of a model from tags.
    pub fn new(model: &Model, precision: Precision, device: &Device) -> Result<Self> {
        let config = &model.info.network.backbone;
        let backbone = Backbone::new(config, &model.parameters.to_device(device)?)?.with_precision(precision);
        Ok(Self {
            backbone,
            depth: config.depth(),
            patch: config.patch(),
            num_features: config.num_features(),
            normalisation: model.info.normalisation,
        })
    }

    /// How many numbers a feature has.
    pub fn num_features(&self) -> usize {
        self.num_features
    }

    /// The layer that takes a learner's features to this teacher's, random from a seed alone: learned with the network, and of
    /// no use without the teacher.
    pub fn initial_projection(&self, from: usize, seed: u64, device: &Device) -> Result<Parameters> {
        let weight = (random_linear(WEIGHT, from, self.num_features, seed, device)? * INITIAL_SCALE)?;
        let bias = Tensor::zeros(self.num_features, DType::F32, device)?;
        Ok([(WEIGHT.to_owned(), weight), (BIAS.to_owned(), bias)].into_iter().collect())
    }

    /// Features of crops at the points of a grid of `cells` a side: less the mean of all of them, which every image has in
    /// common, and of length 1. Without a graph.
    ///
    /// # Shapes
    /// pixels `[B, S, S, 3]`, with `normalisation`; result `[B, cells, cells, features]`, f32
    pub fn directions(&self, pixels: &Tensor, normalisation: &Normalisation, cells: usize) -> Result<Tensor> {
        let side = (pixels.dim(1)? / self.patch).max(1) * self.patch;
        let own = renormalised(pixels, normalisation, &self.normalisation)?;
        let own = resize_grid(&own, side, side, ResizeRule::HalfPixelUnfiltered)?;
        let tokens = self.backbone.embed(&own.permute((0, 3, 1, 2))?.contiguous()?)?;
        let tokens = self.backbone.run_blocks_to(self.depth, &tokens, &mut Mode::Inference)?;
        let features = self.backbone.grid_features(&tokens)?.to_dtype(DType::F32)?.detach();
        let features = features.broadcast_sub(&features.mean_keepdim((0, 1, 2))?)?;
        let features = resize_grid(&features, cells, cells, ResizeRule::HalfPixelUnfiltered)?;
        Ok(features.broadcast_div(&lengths(&features)?)?)
    }
}

/// Pixels as another network expects them.
fn renormalised(pixels: &Tensor, from: &Normalisation, to: &Normalisation) -> Result<Tensor> {
    let scale = [0, 1, 2].map(|c| from.std[c] / to.std[c]);
    let shift = [0, 1, 2].map(|c| (from.mean[c] - to.mean[c]) / to.std[c]);
    let [scale, shift] = [scale, shift].map(|of_channels| Tensor::new(&of_channels, pixels.device()));
    Ok(pixels.broadcast_mul(&scale?)?.broadcast_add(&shift?)?)
}

/// `[…, features]` to `[…, 1]`.
fn lengths(features: &Tensor) -> candle_core::Result<Tensor> {
    (features.sqr()?.sum_keepdim(D::Minus1)? + LEAST_LENGTH * LEAST_LENGTH)?.sqrt()
}

/// The layer that takes the learner's features to the teacher's.
#[derive(Debug, Clone)]
pub(crate) struct Projection {
    weight: Tensor,
    bias: Tensor,
}

impl Projection {
    /// How many numbers the teacher's features have for which a store holds one, if it does.
    pub(crate) fn num_features(parameters: &Parameters) -> Option<usize> {
        parameters.get(BIAS).ok().map(Tensor::elem_count)
    }

    /// From a store that holds it.
    pub(crate) fn new(parameters: &Parameters) -> Result<Self> {
        Ok(Self { weight: parameters.get(WEIGHT)?.clone(), bias: parameters.get(BIAS)?.clone() })
    }

    /// One less the mean cosine between what the learner's features are taken to and the teacher's directions.
    ///
    /// # Shapes
    /// features `[B, rows, columns, from]`, directions `[B, rows, columns, to]`; result `[]`
    pub(crate) fn loss(&self, features: &Tensor, directions: &Tensor) -> Result<Tensor> {
        let own = linear(features, &self.weight, Some(&self.bias))?.to_dtype(DType::F32)?;
        let products = (&own * directions)?.sum_keepdim(D::Minus1)?;
        let cosines = products.div(&lengths(&own)?)?;
        Ok((1.0 - cosines.mean_all()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn the_loss_is_one_less_the_cosine_and_its_gradient_that_of_differences() {
        // Taken to a teacher of two numbers by a turn of a quarter.
        let weight = Tensor::new(&[[0f32, -1.0], [1.0, 0.0]], &Device::Cpu).unwrap();
        let projection = Projection { weight, bias: Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap() };
        let directions = Tensor::new(&[[[[0f32, 1.0], [1.0, 0.0]]]], &Device::Cpu).unwrap();
        let loss_of = |values: [f32; 4]| {
            let features = candle_core::Var::from_slice(&values, (1, 1, 2, 2), &Device::Cpu).unwrap();
            (projection.loss(features.as_tensor(), &directions).unwrap(), features)
        };
        let value = |values: [f32; 4]| loss_of(values).0.to_scalar::<f32>().unwrap();
        assert!(value([3.0, 0.0, 0.0, -2.0]).abs() < 1e-6, "both turned onto the teacher's");
        assert!((value([-3.0, 0.0, 0.0, -2.0]) - 1.0).abs() < 1e-6, "one of two opposite");
        let at = [1.0, 0.5, -0.3, 0.8];
        let (loss, features) = loss_of(at);
        let gradient = numbers(loss.backward().unwrap().get(features.as_tensor()).unwrap());
        for (index, gradient) in gradient.into_iter().enumerate() {
            let moved = |by: f32| value(std::array::from_fn(|i| at[i] + if i == index { by } else { 0.0 }));
            let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((gradient - difference).abs() < 1e-3, "{index}: {gradient} {difference}");
        }
    }

    #[test]
    fn the_teacher_sees_what_the_learner_sees() {
        // Grey levels through one normalisation and then to the other are those through the other.
        let levels = [0.0, 17.0, 255.0];
        let through =
            |normalisation: &Normalisation| [0, 1, 2].map(|c| normalisation.normalise(c, levels[c]));
        let pixels = Tensor::new(&through(&Normalisation::CAFFE), &Device::Cpu).unwrap();
        let found = numbers(&renormalised(&pixels, &Normalisation::CAFFE, &Normalisation::IMAGENET).unwrap());
        for (found, expected) in found.iter().zip(through(&Normalisation::IMAGENET)) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }

        let model = vitpcm::random_model("vit-nano16", &["thing"], 0).unwrap();
        let teacher = Teacher::new(&model, Precision::F32, &Device::Cpu).unwrap();
        let values: Vec<f32> = (0..2 * 33 * 33 * 3).map(|i| (i as f32 * 0.37).sin()).collect();
        let pixels = Tensor::from_vec(values, (2, 33, 33, 3), &Device::Cpu).unwrap();
        let directions = teacher.directions(&pixels, &Normalisation::IMAGENET, 5).unwrap();
        assert_eq!(directions.dims(), [2, 5, 5, teacher.num_features()]);
        let found = numbers(&lengths(&directions).unwrap());
        assert!(found.iter().all(|length| (length - 1.0).abs() < 1e-4), "{found:?}");
    }
}
