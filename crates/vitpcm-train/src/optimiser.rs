//! The optimisers, a variant of [`UpdateRule`] each: what it keeps of a parameter between steps, and how it steps. Their state is in
//! the open, so that it can be saved and resumed bit for bit.

use candle_core::{Tensor, Var};
use vitpcm_ops::{AdamParameter, AdamStep, SgdStep};

use crate::config::{AdamForm, ScheduleConfig};
use crate::error::Result;
use crate::state_file::SavedTensors;
use crate::verify_config::VerifyScheduleConfig;

/// Which optimiser, with the numbers that decide its steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateRule {
    /// Adam without weight decay.
    Adam(AdamConfig),
    /// SGD with momentum.
    Sgd(SgdConfig),
}

/// The numbers of Adam.
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

/// The numbers of SGD. As in the released DeepLab the classifiers learn faster than the backbone, and their biases do not
/// decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Share of the step before that is taken again.
    pub momentum: f64,
    /// Factor of the weights that is added to their gradients.
    pub weight_decay: f64,
    /// The classifiers' weights learn so many times faster, their biases twice that.
    pub head_factor: f64,
}

/// That of training from tags.
impl From<&ScheduleConfig> for UpdateRule {
    fn from(schedule: &ScheduleConfig) -> Self {
        let ScheduleConfig { adam_beta1, adam_beta2, adam_eps, adam_form, .. } = *schedule;
        UpdateRule::Adam(AdamConfig { beta1: adam_beta1, beta2: adam_beta2, eps: adam_eps, form: adam_form })
    }
}

/// That of training on masks.
impl From<&VerifyScheduleConfig> for UpdateRule {
    fn from(schedule: &VerifyScheduleConfig) -> Self {
        let VerifyScheduleConfig { momentum, weight_decay, head_factor, .. } = *schedule;
        UpdateRule::Sgd(SgdConfig { momentum, weight_decay, head_factor })
    }
}

impl UpdateRule {
    /// What is kept of each parameter, as tensors of its shape: the names in front of the parameter's in a saved state.
    fn state(self) -> &'static [&'static str] {
        match self {
            // The moving means of the gradient (m) and of its square (v).
            UpdateRule::Adam(_) => &["adam-mean/", "adam-mean-square/"],
            // The last step's direction.
            UpdateRule::Sgd(_) => &["velocity/"],
        }
    }
}

/// The optimiser of some parameters.
#[derive(Debug)]
pub struct Optimiser {
    rule: UpdateRule,
    /// Steps taken (t).
    pub(crate) num_steps: u64,
    /// In the order of their gradients.
    parameters: Vec<Parameter>,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    variable: Var,
    /// In the order of [`UpdateRule::state`].
    state: Vec<Tensor>,
}

impl Optimiser {
    /// A new one: no steps taken, all state zero.
    pub fn new(rule: UpdateRule, variables: &[(String, Var)]) -> Result<Self> {
        let parameters = variables.iter().map(|(name, variable)| {
            let state = rule.state().iter().map(|_| variable.as_tensor().zeros_like());
            let state = state.collect::<candle_core::Result<_>>()?;
            Ok(Parameter { name: name.clone(), variable: variable.clone(), state })
        });
        Ok(Self { rule, num_steps: 0, parameters: parameters.collect::<Result<_>>()? })
    }

    /// One step against the gradients, which stand in the order of the variables.
    pub fn step(&mut self, gradients: &[Tensor], rate: f64) -> Result<()> {
        assert_eq!(gradients.len(), self.parameters.len(), "one gradient a parameter");
        self.num_steps += 1;
        match self.rule {
            UpdateRule::Adam(config) => self.adam_step(config, gradients, rate),
            UpdateRule::Sgd(config) => self.sgd_step(config, gradients, rate),
        }
    }

    fn adam_step(&self, config: AdamConfig, gradients: &[Tensor], rate: f64) -> Result<()> {
        let AdamConfig { beta1, beta2, eps, form } = config;
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
        let parameters = self.parameters.iter().zip(gradients).map(|(parameter, gradient)| {
            let (mean, mean_square) = (&parameter.state[0], &parameter.state[1]);
            AdamParameter { weight: parameter.variable.as_tensor(), mean, mean_square, gradient }
        });
        Ok(vitpcm_ops::adam_step(&parameters.collect::<Vec<_>>(), step)?)
    }

    /// `rate` is the backbone's.
    fn sgd_step(&self, config: SgdConfig, gradients: &[Tensor], rate: f64) -> Result<()> {
        for (Parameter { name, variable, state }, gradient) in self.parameters.iter().zip(gradients) {
            let SgdConfig { momentum, weight_decay, head_factor } = config;
            let (factor, weight_decay) = match name.strip_prefix("aspp.") {
                Some(part) if part.ends_with("bias") => (2.0 * head_factor, 0.0),
                Some(_) => (head_factor, weight_decay),
                None => (1.0, weight_decay),
            };
            let step = SgdStep {
                rate: (rate * factor) as f32,
                momentum: momentum as f32,
                weight_decay: weight_decay as f32,
            };
            vitpcm_ops::sgd_step(variable.as_tensor(), &state[0], gradient, step)?;
        }
        Ok(())
    }

    /// The state as a run's saved state holds it, by name.
    pub(crate) fn to_save(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.parameters.iter().flat_map(|Parameter { name, state, .. }| {
            let kinds = self.rule.state().iter().zip(state);
            kinds.map(move |(kind, tensor)| (format!("{kind}{name}"), tensor.clone()))
        })
    }

    /// Goes on from a saved state of the same parameters.
    pub(crate) fn restore(&mut self, num_steps: u64, saved: &mut SavedTensors) -> Result<()> {
        self.num_steps = num_steps;
        for Parameter { name, state, .. } in &mut self.parameters {
            for (kind, tensor) in self.rule.state().iter().zip(state) {
                *tensor = saved.take(kind, name, tensor)?;
            }
        }
        Ok(())
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
            let rule = UpdateRule::Adam(AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-3, form });
            let mut adam = Optimiser::new(rule, &[("w".to_owned(), variable.clone())]).unwrap();
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
