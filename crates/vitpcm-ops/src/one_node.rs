//! Part of a network as a single node of the graph that stores parameter gradients directly: candle's graph would add
//! each to zeros first, and keep every operation's result until the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, TensorId, Var, bail};

/// Parameter gradients that operations store directly.
#[derive(Debug, Clone, Default)]
pub struct ParameterGradients(Arc<Mutex<HashMap<TensorId, Tensor>>>);

impl ParameterGradients {
    /// Takes all gradients stored since the last call.
    pub fn take(&self) -> HashMap<TensorId, Tensor> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The gradient of each variable, [taken](Self::take) from here or from the graph's store; zeros for variables that
    /// do not affect the loss, so that they do not change.
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

    /// Replaces a parameter's gradient so far, if any, by the sum that `add` computes.
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

/// The sum of a gradient and the one before, if any.
pub(crate) fn sum(gradient: Tensor, before: Option<Tensor>) -> Result<Tensor> {
    match before {
        Some(before) => before + gradient,
        None => Ok(gradient),
    }
}

/// Runs `forward` on x without its graph. It returns the result and a closure from the result's gradient to that of x;
/// the closure stores parameter gradients itself.
pub(crate) fn one_node<B>(
    name: &'static str,
    x: &Tensor,
    forward: impl FnOnce(&Tensor) -> Result<(Tensor, B)>,
) -> Result<Tensor>
where
    B: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
{
    // Without a variable before it, the operation would not be part of the graph.
    let (input, x) = match x.track_op() {
        true => (Input::InGraph, x.contiguous()?),
        false => (Input::Constant, Var::from_tensor(x)?.into_inner()),
    };
    let (y, backward) = forward(&x.detach())?;
    x.apply_op1(OneNode { name, input, y: Mutex::new(Some(y)), backward })
}

/// Whether the input needs a gradient.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    InGraph,
    Constant,
}

struct OneNode<B> {
    name: &'static str,
    input: Input,
    /// The result, until the graph takes it.
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
