//! Whether NVIDIA's libraries are there. A program that loads them when it first calls them (the release's archive does:
//! `scripts/cuda_loader.py`) starts without them; then this says what is missing.

use candle_core::{Result, bail};
use libloading::Library;

/// The CUDA toolkit's major version, as the build script found it.
const MAJOR: &str = env!("VITPCM_CUDA_MAJOR");

/// Fails with one line if the driver, or a library that every device needs, is missing.
pub(super) fn check() -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    if !is_there("libcuda.so.1") {
        bail!("libcuda.so.1 is not found: NVIDIA's driver is not installed");
    }
    let toolkit =
        [format!("libcublas.so.{MAJOR}"), format!("libcublasLt.so.{MAJOR}"), "libcurand.so.10".to_owned()];
    match toolkit.iter().find(|name| !is_there(name)) {
        Some(name) => bail!(
            "{name} is not found: install CUDA {MAJOR}'s libraries (pip install nvidia-cublas nvidia-curand) and put \
             their folders into LD_LIBRARY_PATH"
        ),
        None => Ok(()),
    }
}

fn is_there(name: &str) -> bool {
    // SAFETY: loading NVIDIA's libraries only sets up their own state; the device calls them next.
    let library = unsafe { Library::new(name) };
    // It stays loaded: some are large.
    library.map(std::mem::forget).is_ok()
}
