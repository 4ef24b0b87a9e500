//! Whether a file is the whole state of a run, of either kind, without resuming it.

use candle_core::Device;
use vitpcm_nets::WeightFile;

use crate::error::Result;
use crate::{checkpoint, verify_state};

/// Reads all of a saved state (`last/state.safetensors` of `train` or `verify`), as resuming it would, and lets go of it.
pub fn check_saved_state(file: &WeightFile) -> Result<()> {
    if verify_state::is_state(file) {
        return verify_state::parse(file, &Device::Cpu).map(drop);
    }
    checkpoint::parse(file, &Device::Cpu).map(drop)
}
