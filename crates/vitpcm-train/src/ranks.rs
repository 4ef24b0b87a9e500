//! The processes that train or segment together ("ranks"): which one this is, and what they do in common. One process
//! is the usual case and costs nothing. Every method that exchanges something is called by all ranks in the same order.
//!
//! MPI starts the ranks and carries what is small. Gradients of GPUs go by NCCL where it is found and every rank has a
//! GPU of its own, else by MPI as well.

use candle_core::{Device, Tensor, Var};
use vitpcm_masks::ConfusionMatrix;

use crate::error::{Result, TrainError};
#[cfg(feature = "mpi")]
use crate::mpi_ranks::MpiRanks;

/// Where launchers say how many processes they started: Open MPI, MPICH and Intel MPI, Slurm's `srun`. (`SLURM_NTASKS`
/// will not do: a batch script sees it as well, though it runs once.)
const LAUNCHERS: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// The processes of a run.
pub enum Ranks {
    /// This one alone.
    Single,
    /// Those that an MPI launcher started.
    #[cfg(feature = "mpi")]
    Mpi(MpiRanks),
}

impl Ranks {
    /// Joins the other processes, where a launcher started several; to be called once, on the main thread, which also
    /// drops what it gets. An error where they cannot know of each other: they would all do the same work.
    pub fn start() -> Result<Self> {
        let launched = LAUNCHERS.into_iter().filter_map(|variable| {
            let count = std::env::var(variable).ok()?.trim().parse::<usize>().ok()?;
            (count > 1).then_some((count, variable))
        });
        let Some((count, variable)) = launched.max() else { return Ok(Ranks::Single) };
        Self::join(count, variable)
    }

    #[cfg(feature = "mpi")]
    fn join(count: usize, variable: &str) -> Result<Self> {
        let ranks = MpiRanks::start()?;
        match ranks.size {
            size if size == count => Ok(Ranks::Mpi(ranks)),
            size => Err(TrainError::Ranks(format!(
                "{count} processes were started ({variable}), but MPI knows of {size}: the launcher must be of the \
                 MPI that this program was built with, and `srun` needs --mpi=pmix"
            ))),
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn join(count: usize, variable: &str) -> Result<Self> {
        Err(TrainError::Ranks(format!(
            "{count} processes were started ({variable}), but this build knows no MPI: build it with `--features mpi`, \
             or start one process"
        )))
    }

    /// Which of the ranks this is, from 0.
    pub fn rank(&self) -> usize {
        match self {
            Ranks::Single => 0,
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.rank,
        }
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        match self {
            Ranks::Single => 1,
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.size,
        }
    }

    /// Which of this machine's ranks this is, from 0: the number of its GPU.
    pub fn local_rank(&self) -> usize {
        match self {
            Ranks::Single => 0,
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.local_rank,
        }
    }

    /// Whether this is the rank that speaks, and that writes what there is one of.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Adds up numbers over all ranks.
    pub fn sum(&self, values: &mut [f64]) {
        match self {
            Ranks::Single => _ = values,
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.sum(values),
        }
    }

    /// Adds up counts over all ranks; exact below 2⁵³.
    pub fn sum_counts<const N: usize>(&self, counts: [usize; N]) -> [usize; N] {
        let mut values = counts.map(|count| count as f64);
        self.sum(&mut values);
        values.map(|value| value as usize)
    }

    /// Adds up a confusion matrix over all ranks.
    pub(crate) fn sum_matrix(&self, matrix: &mut ConfusionMatrix) {
        let mut counts: Vec<f64> = matrix.counts_mut().map(|count| *count as f64).collect();
        self.sum(&mut counts);
        matrix.counts_mut().zip(counts).for_each(|(count, sum)| *count = sum as u64);
    }

    /// Whether something holds on any rank.
    pub fn any(&self, flag: bool) -> bool {
        self.sum_counts([usize::from(flag)]) != [0]
    }

    /// Returns on no rank before all have come here.
    pub fn barrier(&self) {
        self.any(false);
    }

    /// Whether a value is the same on all ranks.
    pub fn all_equal(&self, value: u64) -> bool {
        let of_first = self.broadcast(value.to_le_bytes().to_vec());
        !self.any(of_first != value.to_le_bytes())
    }

    /// The first rank's bytes, on all ranks.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Ranks::Single => bytes,
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.broadcast(bytes),
        }
    }

    /// All ranks' bytes, in their order, on the first one; nothing on the others. Less than 2 GB from each.
    pub fn gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        match self {
            Ranks::Single => vec![bytes],
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.gather(bytes),
        }
    }

    /// Ends all ranks at once, from any thread, with this exit code.
    pub fn abort(code: u8) -> ! {
        #[cfg(feature = "mpi")]
        MpiRanks::abort_if_started(code);
        std::process::exit(code.into())
    }

    /// Connects the ranks' devices for gradients; all ranks together, before the first sum. Says how they go, where there
    /// is something to say.
    pub(crate) fn connect_devices(&self, device: &Device) -> Option<String> {
        match self {
            Ranks::Single => {
                let _ = device; // there is nobody to connect it to
                None
            }
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.connect_devices(self, device),
        }
    }

    /// The sum over all ranks of their gradients, each times the rank's share of the step's images. A rank without
    /// images has no gradients, and a share of zero.
    pub(crate) fn sum_gradients(
        &self,
        gradients: Vec<Tensor>,
        share: f64,
        variables: &[(String, Var)],
    ) -> Result<Vec<Tensor>> {
        match self {
            Ranks::Single => {
                let _ = (share, variables); // it has all images
                Ok(gradients)
            }
            #[cfg(feature = "mpi")]
            Ranks::Mpi(mpi) => mpi.sum_gradients(&gradients, share, variables),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_first_and_all() {
        let ranks = Ranks::Single;
        assert_eq!((ranks.rank(), ranks.size(), ranks.is_first()), (0, 1, true));
        assert_eq!(ranks.sum_counts([3, 0]), [3, 0]);
        assert!(ranks.any(true) && !ranks.any(false) && ranks.all_equal(u64::MAX));
        assert_eq!(ranks.gather(ranks.broadcast(vec![7])), [[7]]);
    }
}
