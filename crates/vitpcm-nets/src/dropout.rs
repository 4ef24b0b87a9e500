//! Whether a forward pass is for inference or for training, and the dropout of the latter: our own masks from
//! a seed and a counter, so that a resumed run continues bit for bit and candle's generator has no part in it.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use vitpcm_ops::{DropoutMask, ParameterGradients};

use crate::error::Result;
use crate::random::Stream;

/// What a forward pass is for.
#[derive(Debug)]
pub enum Mode<'a> {
    /// No dropout.
    Inference,
    /// With dropout, whose counter moves on with every mask, and a place where the transformer's blocks leave the
    /// gradients of their parameters; those of all others are in candle's store.
    Training(&'a mut Dropout, &'a ParameterGradients),
}

/// A place of the network where dropout acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropoutSite {
    /// After the attention's projection and after both layers of the MLP of every block that runs in training mode.
    Backbone,
    /// On the grid, before the HV-BiLSTM.
    Conditioning,
    /// Before the patch classifier.
    Classifier,
}

/// The share of values set to zero at each place.
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
    /// Those of the released code.
    pub const OFFICIAL: Self = Self { backbone: 0.1, conditioning: 0.2, classifier: 0.2 };
    /// None at all: the training pass serves as the target pass too.
    pub const NONE: Self = Self { backbone: 0.0, conditioning: 0.0, classifier: 0.0 };
}

/// Random numbers set aside for each batch. The largest batch draws fewer: it would take 2³⁶ activations.
const BATCH_RANGE: u64 = 1 << 36;

/// A source of dropout masks. Saved with a checkpoint, it continues where it was. Each batch draws from a range of its
/// own, so that a batch's masks do not depend on the process that computes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// The share of values set to zero at each place.
    pub rates: DropoutRates,
    seed: u64,
    /// How many random numbers were drawn so far.
    counter: u64,
}

impl Dropout {
    /// A source that begins at the start of the seed's stream.
    pub fn new(seed: u64, rates: DropoutRates) -> Self {
        Self { rates, seed, counter: 0 }
    }

    /// Moves on to the range of the next batch, unless at the beginning of one.
    pub fn begin_batch(&mut self) {
        *self = self.after_batches(0);
    }

    /// The source as it is so many batches later.
    pub fn after_batches(&self, num_batches: usize) -> Self {
        let begin = self.counter.div_ceil(BATCH_RANGE).wrapping_add(num_batches as u64);
        Self { counter: begin.wrapping_mul(BATCH_RANGE), ..self.clone() }
    }

    /// The next mask, of so many elements.
    fn mask(&mut self, rate: f32, num_elements: usize) -> DropoutMask {
        let key = Stream::named(self.seed, "dropout").key();
        let mask = DropoutMask { key, position: self.counter, rate };
        self.counter = self.counter.wrapping_add(num_elements as u64);
        mask
    }
}

impl Mode<'_> {
    /// Applies dropout in training, nothing in inference.
    pub(crate) fn dropout(&mut self, x: Tensor, site: DropoutSite) -> Result<Tensor> {
        match self.dropout_mask(x.elem_count(), site) {
            Some(mask) => Ok(vitpcm_ops::dropout(&x, mask)?),
            None => Ok(x),
        }
    }

    /// Where the gradients of the blocks' parameters go.
    pub(crate) fn gradients(&self) -> Option<&ParameterGradients> {
        match self {
            Mode::Inference => None,
            Mode::Training(_, gradients) => Some(gradients),
        }
    }

    /// The mask of so many values in training, where the site drops any; none in inference.
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
