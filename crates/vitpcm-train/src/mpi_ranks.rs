//! Ranks by MPI. An error in MPI itself ends all ranks with MPI's own message (its default), so that nothing here
//! returns one.

use candle_core::{Device, Tensor, Var};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::{Universe, is_finalized, is_initialized};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Equivalence, Root, Source};

use crate::error::{Result, TrainError};
#[cfg(feature = "cuda")]
use crate::gpu_group::GpuGroup;
use crate::gradient_buckets::sum_in_buckets;
use crate::ranks::Ranks;

/// Gradients travel in pieces of about so many numbers (25 MB): enough for full bandwidth, little beside the weights.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

/// MPI counts in 32 bits: more bytes than this are sent in several pieces.
const PIECE: usize = 1 << 28;

/// MPI's world. MPI ends when it is dropped, which all ranks wait for.
pub struct MpiRanks {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    #[cfg(feature = "cuda")]
    gpus: std::sync::OnceLock<GpuGroup>,
    _universe: Universe,
}

impl MpiRanks {
    pub(crate) fn start() -> Result<Self> {
        // The loop runs on another thread than the one that starts and ends MPI, and `abort` comes from anywhere.
        let started = mpi::initialize_with_threading(Threading::Multiple);
        let Some((universe, threading)) = started else {
            return Err(TrainError::Ranks("MPI was started before".to_owned()));
        };
        let world = SimpleCommunicator::world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        let local_rank = world.split_shared(world.rank()).rank() as usize;
        if threading < Threading::Serialized {
            return Err(TrainError::Ranks(format!("this MPI knows no threads ({threading:?})")));
        }
        Ok(Self {
            rank,
            size,
            local_rank,
            #[cfg(feature = "cuda")]
            gpus: std::sync::OnceLock::new(),
            _universe: universe,
        })
    }

    pub(crate) fn sum<T: Equivalence + Clone>(&self, values: &mut [T]) {
        let own = values.to_vec();
        SimpleCommunicator::world().all_reduce_into(&own[..], values, SystemOperation::sum());
    }

    pub(crate) fn connect_devices(&self, ranks: &Ranks, device: &Device) -> Option<String> {
        #[cfg(feature = "cuda")]
        return match GpuGroup::connect(ranks, device)? {
            Ok(group) => {
                let said = format!("gradients go from GPU to GPU by {group}");
                drop(self.gpus.set(group));
                Some(said)
            }
            Err(reason) => Some(format!("gradients go through the hosts' memory: {reason}")),
        };
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (ranks, device); // host memory is all there is
            None
        }
    }

    pub(crate) fn sum_gradients(
        &self,
        gradients: &[Tensor],
        share: f64,
        variables: &[(String, Var)],
    ) -> Result<Vec<Tensor>> {
        #[cfg(feature = "cuda")]
        if let Some(gpus) = self.gpus.get() {
            return gpus.sum_gradients(gradients, share, variables);
        }
        let sum = |values: &mut [f32]| self.sum(values);
        sum_in_buckets(gradients, share as f32, variables, BUCKET, sum)
    }

    pub(crate) fn broadcast(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let world = SimpleCommunicator::world();
        let first = world.process_at_rank(0);
        let mut length = bytes.len() as u64;
        first.broadcast_into(&mut length);
        bytes.resize(length as usize, 0);
        bytes.chunks_mut(PIECE).for_each(|piece| first.broadcast_into(piece));
        bytes
    }

    pub(crate) fn gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let world = SimpleCommunicator::world();
        if self.rank > 0 {
            world.process_at_rank(0).send(&bytes[..]);
            return Vec::new();
        }
        let others = (1..world.size()).map(|rank| world.process_at_rank(rank).receive_vec::<u8>().0);
        std::iter::once(bytes).chain(others).collect()
    }

    pub(crate) fn abort_if_started(code: u8) {
        if is_initialized() && !is_finalized() {
            SimpleCommunicator::world().abort(code.into())
        }
    }
}
