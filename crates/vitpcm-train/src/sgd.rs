//! SGD with momentum, with its state in the open so that it can be saved and resumed bit for bit. The classifiers learn
//! faster than the backbone, and their biases do not decay, as in the released DeepLab.

use candle_core::{Tensor, Var};
use vitpcm_ops::SgdStep;

use crate::error::Result;
use crate::verify_config::VerifyScheduleConfig;

/// A parameter and how it is moving.
#[derive(Debug)]
pub struct Moving {
    /// The parameter's name.
    pub name: String,
    /// The parameter.
    pub variable: Var,
    /// The last step's direction, in part taken again.
    pub velocity: Tensor,
}

/// The optimiser.
#[derive(Debug)]
pub struct Sgd {
    schedule: VerifyScheduleConfig,
    /// The parameters, in the order of their gradients.
    pub moving: Vec<Moving>,
}

impl Sgd {
    /// A new optimiser: nothing moves yet.
    pub fn new(schedule: &VerifyScheduleConfig, variables: &[(String, Var)]) -> Result<Self> {
        let moving = variables.iter().map(|(name, variable)| {
            let velocity = variable.as_tensor().zeros_like()?;
            Ok(Moving { name: name.clone(), variable: variable.clone(), velocity })
        });
        Ok(Self { schedule: schedule.clone(), moving: moving.collect::<Result<_>>()? })
    }

    /// One step against the gradients, which stand in the order of [`Sgd::moving`]; `rate` is the backbone's.
    pub fn step(&mut self, gradients: &[Tensor], rate: f64) -> Result<()> {
        assert_eq!(gradients.len(), self.moving.len(), "one gradient a parameter");
        for (Moving { name, variable, velocity }, gradient) in self.moving.iter().zip(gradients) {
            let VerifyScheduleConfig { head_factor, momentum, weight_decay, .. } = self.schedule;
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
            vitpcm_ops::sgd_step(variable.as_tensor(), velocity, gradient, step)?;
        }
        Ok(())
    }
}
