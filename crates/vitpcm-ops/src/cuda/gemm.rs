//! Matrix products by cuBLAS for row-major matrices.

use std::ffi::c_void;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::{CudaDevice, DType, Result, bail};

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub(crate) pointer: u64,
    pub(crate) dtype: DType,
    /// Elements from one row to the next.
    pub(crate) row_stride: usize,
    /// Elements from one matrix of a batch to the next.
    pub(crate) batch_stride: usize,
    /// Whether the product uses it or its transpose.
    pub(crate) taken: Taken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    AsIs,
    Transposed,
}

/// Precision of f32 products.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Full f32.
    Exact,
    /// Factors rounded to TF32 (10-bit fraction), which loses nothing next to bf16 layers.
    Tf32,
}

/// What happens to the previous values of C.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    /// They are overwritten.
    New,
    /// The product is added to them.
    Onto,
}

impl Matrix {
    pub(crate) fn new(pointer: u64, dtype: DType, row_stride: usize) -> Self {
        Self { pointer, dtype, row_stride, batch_stride: 0, taken: Taken::AsIs }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { taken: Taken::Transposed, ..self }
    }

    pub(crate) fn batched(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }
}

/// The sizes of `C [m, n] = scale · A [m, k] · B [k, n]`, `batch` times.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) batch: usize,
    pub(crate) scale: f32,
    pub(crate) rounding: Rounding,
    pub(crate) sum: Sum,
}

impl Product {
    pub(crate) fn new(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k, batch: 1, scale: 1.0, rounding: Rounding::Exact, sum: Sum::New }
    }
}

/// # Safety
/// The matrices must lie within allocated memory; `c` is written.
pub(crate) unsafe fn gemm(
    device: &CudaDevice,
    product: Product,
    a: Matrix,
    b: Matrix,
    c: Matrix,
) -> Result<()> {
    let Product { m, n, k, batch, scale, rounding, sum } = product;
    if m == 0 || n == 0 || batch == 0 {
        return Ok(());
    }
    let kind = |dtype: DType| match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        _ => bail!("no product of {dtype:?}"),
    };
    let operation = |taken: Taken| match taken {
        Taken::AsIs => sys::cublasOperation_t::CUBLAS_OP_N,
        Taken::Transposed => sys::cublasOperation_t::CUBLAS_OP_T,
    };
    let compute = match (a.dtype, rounding) {
        (DType::F32, Rounding::Tf32) => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    let kept = match sum {
        Sum::New => 0f32,
        Sum::Onto => 1f32,
    };
    let blas = device.cublas_handle();
    // cuBLAS is column-major: rows of C = A·B are columns of Cᵀ = Bᵀ·Aᵀ. SAFETY: the handle belongs to the device; the
    // caller guarantees the rest.
    unsafe {
        result::gemm_strided_batched_ex(
            *blas.handle(),
            operation(b.taken),
            operation(a.taken),
            n as i32,
            m as i32,
            k as i32,
            (&raw const scale).cast::<c_void>(),
            b.pointer as *const c_void,
            kind(b.dtype)?,
            b.row_stride as i32,
            b.batch_stride as i64,
            a.pointer as *const c_void,
            kind(a.dtype)?,
            a.row_stride as i32,
            a.batch_stride as i64,
            (&raw const kept).cast::<c_void>(),
            c.pointer as *mut c_void,
            kind(c.dtype)?,
            c.row_stride as i32,
            c.batch_stride as i64,
            batch as i32,
            compute,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .w()?;
    Ok(())
}
