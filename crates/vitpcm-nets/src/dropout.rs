//! Inference and training mode, and dropout: masks drawn from a seed and a counter, not from candle's generator, so
//! that a resumed run continues bit for bit.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use vitpcm_ops::{DropoutMask, ParameterGradients};

use crate::error::Result;
use crate::random::Stream;

/// The mode of a forward pass.
#[derive(Debug)]
pub enum Mode<'a> {
    /// No dropout.
    Inference,
    /// With dropout, whose counter advances with every mask, and the place where transformer blocks store their
    /// parameters' gradients; all other gradients are in candle's store.
    Training(&'a mut Dropout, &'a ParameterGradients),
}

/// A place in the network with dropout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropoutSite {
    /// After the attention's projection and after both layers of the MLP of every block that runs in training mode.
    Backbone,
    /// On the grid, before the HV-BiLSTM.
    Conditioning,
    /// Before the patch classifier.
    Classifier,
}

/// Fraction of values set to zero at each place.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropoutRates {
    /// In the ViT's blocks.
    pub backbone: f32,
    /// Before the HV-BiLSTM.
    pub conditioning: f32,
    /// Before the patch classifier.
    pub classifier: f32,
}

impl DropoutRates {
    /// The released code's rates.
    pub const OFFICIAL: Self = Self { backbone: 0.1, conditioning: 0.2, classifier: 0.2 };
    /// No dropout: the training pass then serves as the target pass too.
    pub const NONE: Self = Self { backbone: 0.0, conditioning: 0.0, classifier: 0.0 };
}

/// Random numbers reserved per batch. No batch draws as many: that would take 2³⁶ activations.
const BATCH_RANGE: u64 = 1 << 36;

/// A generator of dropout masks, saved with checkpoints. Each batch draws from its own range, so that its masks do not
/// depend on the process that computes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// Fraction of values set to zero at each place.
    pub rates: DropoutRates,
    seed: u64,
    /// Number of random numbers drawn so far.
    counter: u64,
}

impl Dropout {
    /// A generator at the start of the seed's stream.
    pub fn new(seed: u64, rates: DropoutRates) -> Self {
        Self { rates, seed, counter: 0 }
    }

    /// Advances to the next batch's range, unless already at the start of one.
    pub fn begin_batch(&mut self) {
        *self = self.after_batches(0);
    }

    /// The generator `num_batches` batches later.
    pub fn after_batches(&self, num_batches: usize) -> Self {
        let begin = self.counter.div_ceil(BATCH_RANGE).wrapping_add(num_batches as u64);
        Self { counter: begin.wrapping_mul(BATCH_RANGE), ..self.clone() }
    }

    /// The next mask, of `num_elements` elements.
    fn mask(&mut self, rate: f32, num_elements: usize) -> DropoutMask {
        let key = Stream::named(self.seed, "dropout").key();
        let mask = DropoutMask { key, position: self.counter, rate };
        self.counter = self.counter.wrapping_add(num_elements as u64);
        mask
    }
}

impl Mode<'_> {
    /// Applies dropout in training; does nothing in inference.
    pub(crate) fn dropout(&mut self, x: Tensor, site: DropoutSite) -> Result<Tensor> {
        match self.dropout_mask(x.elem_count(), site) {
            Some(mask) => Ok(vitpcm_ops::dropout(&x, mask)?),
            None => Ok(x),
        }
    }

    /// Where the gradients of the blocks' parameters go, in training.
    pub(crate) fn gradients(&self) -> Option<&ParameterGradients> {
        match self {
            Mode::Inference => None,
            Mode::Training(_, gradients) => Some(gradients),
        }
    }

    /// The mask for `num_elements` values in training, if the site's rate is not zero; `None` in inference.
    pub(crate) fn dropout_mask(&mut self, num_elements: usize, site: DropoutSite) -> Option<DropoutMask> {
        let Mode::Training(dropout, _) = self else {
            return None;
        };
        let rate = match site {
            DropoutSite::Backbone => dropout.rates.backbone,
            DropoutSite::Conditioning => dropout.rates.conditioning,
            DropoutSite::Classifier => dropout.rates.classifier,
        };
        (rate > 0.0).then(|| dropout.mask(rate, num_elements))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const RATES: DropoutRates = DropoutRates { backbone: 0.25, conditioning: 0.0, classifier: 0.5 };

    fn draw(dropout: &mut Dropout, site: DropoutSite) -> Vec<f32> {
        let ones = Tensor::ones((40, 1000), candle_core::DType::F32, &Device::Cpu).unwrap();
        Mode::Training(dropout, &ParameterGradients::default())
            .dropout(ones, site)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap()
    }

    #[test]
    fn a_restored_dropout_continues_bit_for_bit() {
        let mut whole = Dropout::new(7, RATES);
        draw(&mut whole, DropoutSite::Backbone);
        let mut resumed: Dropout = serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap();
        assert_eq!(draw(&mut whole, DropoutSite::Classifier), draw(&mut resumed, DropoutSite::Classifier));
        assert_ne!(
            draw(&mut whole, DropoutSite::Classifier),
            draw(&mut Dropout::new(7, RATES), DropoutSite::Classifier)
        );
    }

    #[test]
    fn a_batch_draws_the_same_masks_after_other_batches_and_after_a_jump() {
        let mut in_turn = Dropout::new(7, RATES);
        let batches: Vec<Vec<f32>> = (0..3)
            .map(|_| {
                in_turn.begin_batch();
                draw(&mut in_turn, DropoutSite::Backbone)
            })
            .collect();
        let mut jumped = Dropout::new(7, RATES).after_batches(2);
        assert_eq!(draw(&mut jumped, DropoutSite::Backbone), batches[2]);
        assert_ne!(batches[1], batches[2]);
        in_turn.begin_batch();
        assert_eq!(in_turn, Dropout::new(7, RATES).after_batches(3));
    }

    #[test]
    fn the_rate_is_met_and_the_mean_is_kept() {
        let values = draw(&mut Dropout::new(1, RATES), DropoutSite::Backbone);
        let dropped = values.iter().filter(|&&value| value == 0.0).count() as f64 / values.len() as f64;
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64;
        // Five standard errors at 40,000 values.
        assert!((dropped - 0.25).abs() < 0.011, "{dropped}");
        assert!((mean - 1.0).abs() < 0.015, "{mean}");
    }

    #[test]
    fn inference_and_a_rate_of_zero_leave_values_alone() {
        assert!(
            draw(&mut Dropout::new(1, RATES), DropoutSite::Conditioning).iter().all(|&value| value == 1.0)
        );
        let ones = Tensor::ones(5, candle_core::DType::F32, &Device::Cpu).unwrap();
        let same = Mode::Inference.dropout(ones, DropoutSite::Classifier).unwrap();
        assert_eq!(same.to_vec1::<f32>().unwrap(), [1.0; 5]);
    }
}
