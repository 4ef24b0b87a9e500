//! A network's parameters: tensors by name. Training makes some of them variables; networks are built from them and
//! share the tensors.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};

use crate::error::{NetsError, Result};
use crate::variants::ParameterShape;

/// Tensors by name, in alphabetical order.
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    tensors: BTreeMap<String, Tensor>,
}

impl Parameters {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The parameter of this name.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| NetsError::MissingParameter { name: name.to_owned() })
    }

    /// The numbers of the parameter of this name, row-major.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.get(name)?.detach().to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    }

    /// Adds a parameter, replacing one of the same name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.tensors.insert(name.into(), tensor);
    }

    /// Adds all parameters of another store, replacing those of the same name.
    pub fn extend(&mut self, other: Parameters) {
        self.tensors.extend(other.tensors);
    }

    /// All parameters in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Checks that no parameter is missing or of another shape.
    pub(crate) fn check(&self, shapes: &[ParameterShape]) -> Result<()> {
        for ParameterShape { name, shape } in shapes {
            let found = self.get(name)?.dims();
            if found != shape {
                let reason = format!("the parameter `{name}` is {found:?}; expected {shape:?}");
                return Err(NetsError::BadConfig { reason });
            }
        }
        Ok(())
    }

    /// Total number of elements.
    pub fn num_elements(&self) -> usize {
        self.tensors.values().map(Tensor::elem_count).sum()
    }

    /// The same parameters on another device.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.map(|tensor| tensor.to_device(device))
    }

    /// The same parameters in another element type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        self.map(|tensor| tensor.to_dtype(dtype))
    }

    /// Makes the chosen parameters variables and all others constants, keeping their values; returns the variables in
    /// alphabetical order. Networks built before keep their old tensors and have to be rebuilt.
    pub fn make_trainable(&mut self, choose: impl Fn(&str) -> bool) -> Result<Vec<(String, Var)>> {
        let mut variables = Vec::new();
        for (name, tensor) in &mut self.tensors {
            let constant = tensor.detach();
            if choose(name) {
                let variable = Var::from_tensor(&constant)?;
                *tensor = variable.as_tensor().clone();
                variables.push((name.clone(), variable));
            } else {
                *tensor = constant;
            }
        }
        Ok(variables)
    }

    /// The mean of several stores with the same names and shapes. At least one.
    pub(crate) fn mean(stores: &[&Self]) -> Result<Self> {
        let mean_of = |name: &str| -> Result<Tensor> {
            let tensors = stores.iter().map(|store| store.get(name).cloned()).collect::<Result<Vec<_>>>()?;
            Ok(Tensor::stack(&tensors, 0)?.mean(0)?)
        };
        let first = stores.first().into_iter().flat_map(|store| store.iter());
        first.map(|(name, _)| Ok((name.to_owned(), mean_of(name)?))).collect()
    }

    fn map(&self, change: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        let changed = self.tensors.iter().map(|(name, tensor)| Ok((name.clone(), change(tensor)?)));
        Ok(Self { tensors: changed.collect::<Result<_>>()? })
    }
}

impl FromIterator<(String, Tensor)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> Self {
        Self { tensors: tensors.into_iter().collect() }
    }
}
