//! Adam without weight decay, with its state in the open so that it can be saved and resumed bit for bit.

use candle_core::{Tensor, Var};
use vitpcm_ops::{AdamParameter, AdamStep};

use crate::config::{AdamForm, ScheduleConfig};
use crate::error::Result;

/// The numbers that decide a step of Adam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Decay of the mean gradient.
    pub beta1: f64,
    /// Decay of the mean squared gradient.
    pub beta2: f64,
    /// Keeps the divisor from zero.
    pub eps: f64,
    /// Where it sits.
    pub form: AdamForm,
}

impl AdamConfig {
    /// Those of a schedule.
    pub fn of(schedule: &ScheduleConfig) -> Self {
        Self {
            beta1: schedule.adam_beta1,
            beta2: schedule.adam_beta2,
            eps: schedule.adam_eps,
            form: schedule.adam_form,
        }
    }
}

/// A parameter and its two moving means.
#[derive(Debug)]
pub struct Moments {
    /// The parameter's name.
    pub name: String,
    /// The parameter.
    pub variable: Var,
    /// Moving mean of the gradient (m).
    pub mean: Tensor,
    /// Moving mean of the squared gradient (v).
    pub mean_square: Tensor,
}

/// The optimiser.
#[derive(Debug)]
pub struct Adam {
    config: AdamConfig,
    /// Steps taken (t).
    pub num_steps: u64,
    /// The parameters, in the order of their gradients.
    pub moments: Vec<Moments>,
}

impl Adam {
    /// A new optimiser: no steps taken, all means zero.
    pub fn new(config: AdamConfig, variables: Vec<(String, Var)>) -> Result<Self> {
        let moments = variables.into_iter().map(|(name, variable)| {
            let zeros = || variable.as_tensor().zeros_like();
            Ok(Moments { name, mean: zeros()?, mean_square: zeros()?, variable })
        });
        Ok(Self { config, num_steps: 0, moments: moments.collect::<Result<_>>()? })
    }

    /// One step against the gradients, which stand in the order of [`Adam::moments`].
    pub fn step(&mut self, gradients: &[Tensor], rate: f64) -> Result<()> {
        assert_eq!(gradients.len(), self.moments.len(), "one gradient a parameter");
        self.num_steps += 1;
        let AdamConfig { beta1, beta2, eps, form } = self.config;
        let steps = i32::try_from(self.num_steps).unwrap_or(i32::MAX);
        let correction1 = 1.0 - beta1.powi(steps);
        let correction2 = 1.0 - beta2.powi(steps);
        // Both forms are rate · m / (1 − β₁ᵗ) / (√v / √(1 − β₂ᵗ) + e); Keras' epsilon is the smaller by that root.
        let eps = match form {
            AdamForm::Torch => eps,
            AdamForm::Keras => eps / correction2.sqrt(),
        };
        let step = AdamStep {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rate: (rate / correction1) as f32,
            root_correction2: correction2.sqrt() as f32,
            eps: eps as f32,
        };
        let parameters = self.moments.iter().zip(gradients).map(|(moments, gradient)| {
            let Moments { variable, mean, mean_square, .. } = moments;
            AdamParameter { weight: variable.as_tensor(), mean, mean_square, gradient }
        });
        Ok(vitpcm_ops::adam_step(&parameters.collect::<Vec<_>>(), step)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    /// The same, on single numbers and in f64, as the two frameworks document it.
    fn reference(form: AdamForm, gradients: &[f64], rate: f64) -> f64 {
        let (beta1, beta2, eps) = (0.9, 0.999, 1e-3);
        let (mut weight, mut m, mut v) = (1.0, 0.0, 0.0);
        for (t, gradient) in (1..).zip(gradients) {
            m = beta1 * m + (1.0 - beta1) * gradient;
            v = beta2 * v + (1.0 - beta2) * gradient * gradient;
            let (c1, c2): (f64, f64) = (1.0 - f64::powi(beta1, t), 1.0 - f64::powi(beta2, t));
            weight -= match form {
                AdamForm::Torch => rate * (m / c1) / ((v / c2).sqrt() + eps),
                AdamForm::Keras => rate * c2.sqrt() / c1 * m / (v.sqrt() + eps),
            };
        }
        weight
    }

    #[test]
    fn both_forms_follow_their_definitions() {
        let gradients = [0.5, -0.2, 0.05, 0.3];
        for form in [AdamForm::Torch, AdamForm::Keras] {
            let variable = Var::ones(1, DType::F32, &Device::Cpu).unwrap();
            let config = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-3, form };
            let mut adam = Adam::new(config, vec![("w".to_owned(), variable.clone())]).unwrap();
            for gradient in gradients {
                adam.step(&[Tensor::new(&[gradient as f32], &Device::Cpu).unwrap()], 0.01).unwrap();
            }
            let weight = f64::from(variable.as_tensor().to_vec1::<f32>().unwrap()[0]);
            let expected = reference(form, &gradients, 0.01);
            assert!((weight - expected).abs() < 1e-6, "{form:?}: {weight}, expected {expected}");
        }
        assert!(
            (reference(AdamForm::Torch, &gradients, 0.01) - reference(AdamForm::Keras, &gradients, 0.01))
                .abs()
                > 1e-4,
            "the test tells the forms apart"
        );
    }
}
