//! An average of the weights over the last steps, which validates better than any single step's.

use candle_core::{Tensor, Var};
use vitpcm_nets::Parameters;

use crate::error::Result;
use crate::state_file::{AVERAGE, SavedTensors};

/// The exponential moving average of the trained parameters.
#[derive(Debug)]
pub(crate) struct Ema {
    decay: f64,
    /// How often it was updated.
    pub(crate) num_updates: u64,
    /// The averages by name.
    averages: Vec<(String, Tensor)>,
}

impl Ema {
    /// Begins at the variables' values; none with a decay of 0.
    pub(crate) fn of_decay(decay: f64, variables: &[(String, Var)]) -> Result<Option<Self>> {
        (decay > 0.0).then(|| Self::new(decay, variables)).transpose()
    }

    fn new(decay: f64, variables: &[(String, Var)]) -> Result<Self> {
        let copies = variables
            .iter()
            .map(|(name, variable)| Ok((name.clone(), variable.as_tensor().detach().copy()?)));
        Ok(Self { decay, num_updates: 0, averages: copies.collect::<Result<_>>()? })
    }

    /// Moves the averages towards the variables. The first updates move further, so that the start is soon forgotten.
    pub(crate) fn update(&mut self, variables: &[(String, Var)]) -> Result<()> {
        self.num_updates += 1;
        let updates = self.num_updates as f64;
        let decay = self.decay.min((1.0 + updates) / (10.0 + updates)) as f32;
        for ((_, average), (_, variable)) in self.averages.iter().zip(variables) {
            vitpcm_ops::follow(average, &variable.as_tensor().detach(), decay)?;
        }
        Ok(())
    }

    /// The averages as a state holds them, by name.
    pub(crate) fn to_save(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.averages.iter().map(|(name, average)| (format!("{AVERAGE}{name}"), average.clone()))
    }

    /// Goes on from saved averages of the same parameters.
    pub(crate) fn restore(&mut self, num_updates: u64, saved: &mut SavedTensors) -> Result<()> {
        self.num_updates = num_updates;
        for (name, average) in &mut self.averages {
            *average = saved.take(AVERAGE, name, average)?;
        }
        Ok(())
    }

    /// The parameters with the averages in place of the trained ones.
    pub(crate) fn apply(&self, mut parameters: Parameters) -> Parameters {
        self.averages.iter().for_each(|(name, average)| parameters.insert(name.clone(), average.clone()));
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn the_average_follows_the_weights_and_forgets_the_start() {
        let variable = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let variables = [("w".to_owned(), variable.clone())];
        let mut ema = Ema::new(0.9, &variables).unwrap();
        variable.set(&Tensor::ones(1, DType::F32, &Device::Cpu).unwrap()).unwrap();
        let mut values = Vec::new();
        for _ in 0..50 {
            ema.update(&variables).unwrap();
            values.push(ema.averages[0].1.to_vec1::<f32>().unwrap()[0]);
        }
        // 1 - 2/11 after one update with a decay of 2/11.
        assert!((values[0] - (1.0 - 2.0 / 11.0)).abs() < 1e-6);
        assert!(values.windows(2).all(|pair| pair[0] <= pair[1]) && values[49] > 0.99);
    }
}
