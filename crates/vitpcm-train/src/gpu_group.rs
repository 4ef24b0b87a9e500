//! The ranks' GPUs, connected by NCCL: gradients are summed where they are.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor, Var};
use vitpcm_ops::{Nccl, NcclGroup, NcclId};

use crate::error::Result;
use crate::ranks::Ranks;

/// One GPU a rank.
pub(crate) struct GpuGroup(Mutex<NcclGroup>);

impl GpuGroup {
    /// Connects them; `None` where no rank has a GPU, the reason where it cannot be done. Every rank returns the like.
    pub(crate) fn connect(ranks: &Ranks, device: &Device) -> Option<std::result::Result<Self, String>> {
        if !ranks.any(device.is_cuda()) {
            return None;
        }
        let library = match device.is_cuda() {
            true => Nccl::load().map_err(|error| error.to_string()),
            false => Err("not every rank has a GPU".to_owned()),
        };
        // Whoever cannot take part says so before the others wait for it.
        if ranks.any(library.is_err()) {
            return Some(Err(library.err().unwrap_or("another rank has no NCCL".to_owned())));
        }
        let own_id = library.as_ref().ok().filter(|_| ranks.is_first()).and_then(|nccl| nccl.new_id().ok());
        let bytes = ranks.broadcast(own_id.map_or_else(Vec::new, |id| id.as_bytes().to_vec()));
        let Some(id) = NcclId::from_bytes(&bytes) else {
            return Some(Err("NCCL gave the first rank no id".to_owned()));
        };
        let join = |nccl: Nccl| nccl.join(id, ranks.rank(), ranks.size(), device);
        let group = library.and_then(|nccl| join(nccl).map_err(|error| error.to_string()));
        if ranks.any(group.is_err()) {
            return Some(Err(group.err().unwrap_or("NCCL failed on another rank".to_owned())));
        }
        Some(group.map(|group| GpuGroup(Mutex::new(group))))
    }

    /// The sum over all ranks of their gradients times their shares. NCCL puts the many small ones together itself.
    pub(crate) fn sum_gradients(
        &self,
        gradients: &[Tensor],
        share: f64,
        variables: &[(String, Var)],
    ) -> Result<Vec<Tensor>> {
        let weighted =
            variables.iter().enumerate().map(|(index, (_, variable))| match gradients.get(index) {
                Some(gradient) => (gradient.to_dtype(DType::F32)?.contiguous()? * share)?.contiguous(),
                None => Tensor::zeros(variable.shape(), DType::F32, variable.device()),
            });
        let weighted = weighted.collect::<candle_core::Result<Vec<_>>>()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sum_in_place(&weighted)?;
        let of_type = |(sum, (_, variable)): (Tensor, &(String, Var))| sum.to_dtype(variable.dtype());
        Ok(weighted.into_iter().zip(variables).map(of_type).collect::<candle_core::Result<_>>()?)
    }
}

impl fmt::Display for GpuGroup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "NCCL {}", self.0.lock().unwrap_or_else(PoisonError::into_inner).version())
    }
}
