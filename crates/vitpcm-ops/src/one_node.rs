//! A stretch of a network as one node of the graph, its gradients handed over directly: candle's graph would add each of
//! them to zeros first, and keep every result of every operation until the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, TensorId, Var, bail};

/// The gradients of parameters that operations hand over directly.
#[derive(Debug, Clone, Default)]
pub struct ParameterGradients(Arc<Mutex<HashMap<TensorId, Tensor>>>);

impl ParameterGradients {
    /// All gradients that were handed over since the last call.
    pub fn take(&self) -> HashMap<TensorId, Tensor> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The gradient of each variable, [taken](Self::take) from here or read from the graph's store; zeros for one that has
    /// no part in the losses, so that it stays where it is.
    pub fn take_all<'a>(
        &self,
        store: &GradStore,
        variables: impl Iterator<Item = &'a Tensor>,
    ) -> Result<Vec<Tensor>> {
        let handed_over = self.take();
        let gradient =
            |variable: &Tensor| match handed_over.get(&variable.id()).or_else(|| store.get(variable)) {
                Some(gradient) => Ok(gradient.detach()),
                None => variable.zeros_like(),
            };
        variables.map(gradient).collect()
    }

    pub(crate) fn add(&self, parameter: &Tensor, gradient: Tensor) -> Result<()> {
        self.add_onto(parameter, |before| sum(gradient, before))
    }

    /// Replaces a parameter's gradient so far, if any, by the sum that `add` makes of it.
    pub(crate) fn add_onto(
        &self,
        parameter: &Tensor,
        add: impl FnOnce(Option<Tensor>) -> Result<Tensor>,
    ) -> Result<()> {
        let mut gradients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = add(gradients.remove(&parameter.id()))?;
        gradients.insert(parameter.id(), sum);
        Ok(())
    }
}

/// A gradient and what was there before, if anything.
pub(crate) fn sum(gradient: Tensor, before: Option<Tensor>) -> Result<Tensor> {
    match before {
        Some(before) => before + gradient,
        None => Ok(gradient),
    }
}

/// Runs `forward` on x without its graph. It returns the result and what makes the gradient of x of that of the result;
/// gradients of parameters are its own affair.
pub(crate) fn one_node<B>(
    name: &'static str,
    x: &Tensor,
    forward: impl FnOnce(&Tensor) -> Result<(Tensor, B)>,
) -> Result<Tensor>
where
    B: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
{
    // Without a variable before it the operation would have no place in the graph.
    let (input, x) = match x.track_op() {
        true => (Input::InGraph, x.contiguous()?),
        false => (Input::Constant, Var::from_tensor(x)?.into_inner()),
    };
    let (y, backward) = forward(&x.detach())?;
    x.apply_op1(OneNode { name, input, y: Mutex::new(Some(y)), backward })
}

/// Whether anything asks for the gradient of the input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    InGraph,
    Constant,
}

struct OneNode<B> {
    name: &'static str,
    input: Input,
    /// The result, until the graph has taken it.
    y: Mutex<Option<Tensor>>,
    backward: B,
}

impl<B> OneNode<B> {
    fn take_result(&self) -> Result<Tensor> {
        match self.y.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(y) => Ok(y),
            None => bail!("{} were run twice", self.name),
        }
    }
}

impl<B: Fn(&Tensor) -> Result<Tensor> + Send + Sync> CustomOp1 for OneNode<B> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = self.take_result()?;
        let (storage, layout) = y.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
            _ => bail!("{} changed their device", self.name),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _: &candle_core::CudaStorage,
        _: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        let y = self.take_result()?;
        let (storage, layout) = y.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => bail!("{} changed their device", self.name),
        }
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        let grad = (self.backward)(&grad_y.contiguous()?)?;
        Ok((self.input == Input::InGraph).then_some(grad))
    }
}
