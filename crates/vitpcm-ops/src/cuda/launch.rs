//! Launches our kernels.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle_core::{CudaDevice, DType, Result};

/// A compiled file of kernels.
#[derive(Clone, Copy)]
pub(crate) struct Module {
    name: &'static str,
    ptx: &'static str,
}

macro_rules! module {
    ($constant:ident, $name:literal) => {
        pub(crate) const $constant: Module = Module {
            name: concat!("vitpcm-", $name),
            ptx: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")),
        };
    };
}
module!(ATTENTION, "attention");
module!(COLUMN_SUMS, "column_sums");
module!(CONV, "conv");
module!(CROSS_ENTROPY, "cross_entropy");
module!(DEPTHWISE, "depthwise");
module!(ELEMENTWISE, "elementwise");
module!(FLASH_ATTENTION, "flash_attention");
module!(FLASH_ATTENTION_BACKWARD, "flash_attention_backward");
module!(LAYER_NORM, "layer_norm");
module!(LSTM, "lstm");
module!(MAX_POOL, "max_pool");
module!(NEIGHBOUR_SUMS, "neighbour_sums");
module!(POOLING, "pooling");
module!(SOFTMAX, "softmax");

/// Number of blocks and of threads per block.
#[derive(Clone, Copy)]
pub(crate) struct Threads {
    blocks: (usize, usize),
    threads: (u32, u32),
}

impl Threads {
    /// One thread per element.
    pub(crate) fn each(count: usize) -> Self {
        Self { blocks: (count.div_ceil(256), 1), threads: (256, 1) }
    }

    /// A grid-stride loop over the elements.
    pub(crate) fn striding(count: usize) -> Self {
        Self { blocks: (count.div_ceil(256).min(16 * 1024), 1), threads: (256, 1) }
    }

    /// One block per row.
    pub(crate) fn block_a_row(rows: usize, threads: usize) -> Self {
        Self { blocks: (rows, 1), threads: (threads.next_multiple_of(32).clamp(32, 1024) as u32, 1) }
    }

    /// One warp per row, four per block.
    pub(crate) fn warp_a_row(rows: usize) -> Self {
        Self { blocks: (rows.div_ceil(4), 1), threads: (32, 4) }
    }

    /// Any grid.
    pub(crate) fn grid(blocks: (usize, usize), threads: (u32, u32)) -> Self {
        Self { blocks, threads }
    }
}

/// The name of a kernel for an element type.
pub(crate) fn kernel_for(name: &str, dtype: DType) -> String {
    format!("{name}_{}", dtype.as_str())
}

/// Parameters per launch of Adam.
pub(crate) const ADAM_PARAMETERS: usize = 96;

/// A kernel argument, passed with its memory layout.
pub(crate) enum Argument {
    Pointer(u64),
    Word(u64),
    Long(i64),
    Int(i32),
    Float(f32),
    /// The members of `struct Walk` of `lstm.cu`.
    Walk([i32; 8]),
    /// The members of `struct Geometry` of `conv.cu` or `neighbour_sums.cu`.
    Geometry([i32; 9]),
    /// The members of `struct LabelledGrid` of `cross_entropy.cu`.
    LabelledGrid([i32; 5]),
    /// The members of `struct AdamParameters` of `elementwise.cu`.
    AdamParameters(Box<[[u64; ADAM_PARAMETERS]; 5]>),
}

/// # Safety
/// The kernel must exist with these parameters, and access only memory behind the pointers.
pub(crate) unsafe fn launch(
    device: &CudaDevice,
    module: Module,
    name: &str,
    threads: Threads,
    arguments: &[Argument],
) -> Result<()> {
    if threads.blocks.0 == 0 || threads.blocks.1 == 0 {
        return Ok(());
    }
    let function = device.get_or_load_custom_func(name, module.name, module.ptx)?;
    let mut builder = function.builder();
    for argument in arguments {
        match argument {
            Argument::Pointer(value) | Argument::Word(value) => builder.arg(value),
            Argument::Long(value) => builder.arg(value),
            Argument::Int(value) => builder.arg(value),
            Argument::Float(value) => builder.arg(value),
            Argument::Walk(value) => builder.arg(value),
            Argument::Geometry(value) => builder.arg(value),
            Argument::LabelledGrid(value) => builder.arg(value),
            Argument::AdamParameters(value) => builder.arg(&**value),
        };
    }
    let config = LaunchConfig {
        grid_dim: (threads.blocks.0 as u32, threads.blocks.1 as u32, 1),
        block_dim: (threads.threads.0, threads.threads.1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}
