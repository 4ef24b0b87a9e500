//! One way to write a kernel for every instruction set: kernels are generic over [`Simd`], and [`SimdPath`]
//! picks the widest set the running machine has. Nothing here needs `target-cpu=native`.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::bf16::unpaired;

/// The widest vector of any path, in floats; the size of buffers that hold one vector.
pub(crate) const MAX_LANES: usize = 16;

/// A vector of f32 lanes and its arithmetic. A value of an implementing type is proof that the machine has the
/// instructions, so that the arithmetic is safe to call; only access through pointers is not.
pub(crate) trait Simd: Copy {
    /// The vector.
    type V: Copy;
    /// Floats in a vector.
    const LANES: usize;
    /// Rows of the matrix product's register tile, which is [`TILE_VECTORS`] vectors wide.
    const TILE_ROWS: usize;

    fn splat(self, value: f32) -> Self::V;
    /// # Safety
    /// `source` must be readable for `LANES` floats.
    unsafe fn load_at(self, source: *const f32) -> Self::V;
    /// # Safety
    /// `target` must be writable for `LANES` floats.
    unsafe fn store_at(self, target: *mut f32, value: Self::V);
    /// Integers, as floats.
    ///
    /// # Safety
    /// `source` must be readable for `LANES` integers.
    unsafe fn load_integers_at(self, source: *const i32) -> Self::V;
    /// The nearest whole numbers, of values of 0 to 255; the even one of two.
    ///
    /// # Safety
    /// `target` must be writable for `LANES` bytes.
    unsafe fn store_bytes_at(self, target: *mut u8, value: Self::V);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, fused where the machine can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The nearest whole number.
    fn round(self, a: Self::V) -> Self::V;
    /// `a · 2^n` for whole `n` of -126 to 127.
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V;
    fn sum(self, a: Self::V) -> f32;
    fn largest(self, a: Self::V) -> f32;

    /// One register tile of a matrix product; see [`super::matmul::tile`]. Here because the number of rows must
    /// be a constant of each path.
    ///
    /// # Safety
    /// As [`super::matmul::tile`], with `rows <= TILE_ROWS`.
    unsafe fn tile(self, rows: usize, operands: TileOperands);

    /// The same of pairs, `depth` of them.
    ///
    /// # Safety
    /// As [`Simd::tile`].
    #[inline(always)]
    unsafe fn tile_of_pairs(self, rows: usize, operands: TileOperands) {
        // SAFETY: passed on from the caller.
        unsafe { tile_of_pairs_by_floats(TILE_VECTORS * Self::LANES, rows, operands) }
    }

    /// Transposes a block of 8 x 8 floats.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for eight rows of eight floats, `source_stride` and
    /// `target_stride` apart.
    #[inline(always)]
    unsafe fn transpose_8x8(
        self,
        source: *const f32,
        source_stride: usize,
        target: *mut f32,
        target_stride: usize,
    ) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: both addresses lie within the blocks the caller vouches for.
                unsafe {
                    *target.add(column * target_stride + row) = *source.add(row * source_stride + column)
                };
            }
        }
    }

    /// The first `LANES` floats of a slice.
    #[inline(always)]
    fn load(self, source: &[f32]) -> Self::V {
        assert!(source.len() >= Self::LANES);
        // SAFETY: the slice was just seen to be long enough.
        unsafe { self.load_at(source.as_ptr()) }
    }

    /// Writes to the first `LANES` floats of a slice.
    #[inline(always)]
    fn store(self, target: &mut [f32], value: Self::V) {
        assert!(target.len() >= Self::LANES);
        // SAFETY: the slice was just seen to be long enough.
        unsafe { self.store_at(target.as_mut_ptr(), value) }
    }

    /// A slice shorter than a vector, the other lanes filled with `filler`.
    #[inline(always)]
    fn load_partial(self, source: &[f32], filler: f32) -> Self::V {
        let mut buffer = [filler; MAX_LANES];
        buffer[..source.len()].copy_from_slice(source);
        self.load(&buffer)
    }

    /// Writes as many lanes as the slice has floats.
    #[inline(always)]
    fn store_partial(self, target: &mut [f32], value: Self::V) {
        let mut buffer = [0.0; MAX_LANES];
        self.store(&mut buffer, value);
        let len = target.len();
        target.copy_from_slice(&buffer[..len]);
    }
}

/// [`Simd::tile_of_pairs`] for machines without instructions for it: right, not fast.
///
/// # Safety
/// As [`Simd::tile`], of a panel `width` wide.
unsafe fn tile_of_pairs_by_floats(width: usize, rows: usize, operands: TileOperands) {
    let TileOperands { depth, a, a_row_stride, a_depth_stride, b, c, c_row_stride, columns, onto } = operands;
    for row in 0..rows {
        for column in 0..columns {
            let mut sum = 0.0;
            for place in 0..depth {
                // SAFETY: within the caller's tile.
                let (a, b) = unsafe {
                    (*a.add(row * a_row_stride + place * a_depth_stride), *b.add(place * width + column))
                };
                let ([a0, a1], [b0, b1]) = (unpaired(a), unpaired(b));
                sum += a0 * b0 + a1 * b1;
            }
            // SAFETY: within the caller's tile.
            unsafe {
                let c = c.add(row * c_row_stride + column);
                match onto {
                    Onto::Nothing => *c = sum,
                    Onto::Target => *c += sum,
                }
            }
        }
    }
}

/// How a register tile multiplies: what a place of the factors holds.
pub(crate) trait MulAdd<S: Simd>: Copy {
    /// `a · b + c`.
    fn mul_add(self, simd: S, a: S::V, b: S::V, c: S::V) -> S::V;
}

/// A float.
#[derive(Clone, Copy)]
pub(crate) struct OfFloats;

impl<S: Simd> MulAdd<S> for OfFloats {
    #[inline(always)]
    fn mul_add(self, simd: S, a: S::V, b: S::V, c: S::V) -> S::V {
        simd.mul_add(a, b, c)
    }
}

/// Vectors side by side in the matrix product's register tile.
pub(crate) const TILE_VECTORS: usize = 2;

/// What a register tile multiplies and where the result goes.
#[derive(Clone, Copy)]
pub(crate) struct TileOperands {
    /// The length of the sum.
    pub(crate) depth: usize,
    /// Left factor: element (row, k) lies at `row · a_row_stride + k · a_depth_stride`.
    pub(crate) a: *const f32,
    pub(crate) a_row_stride: usize,
    pub(crate) a_depth_stride: usize,
    /// Right factor: `depth` rows of a packed panel, `TILE_VECTORS · LANES` floats each.
    pub(crate) b: *const f32,
    pub(crate) c: *mut f32,
    pub(crate) c_row_stride: usize,
    /// Columns of the tile that exist in `c`.
    pub(crate) columns: usize,
    pub(crate) onto: Onto,
}

/// Whether a product replaces what its target holds or is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onto {
    /// The target is overwritten; its contents are never read.
    Nothing,
    /// The product is added to the target.
    Target,
}

/// A piece of work written once for all instruction sets.
///
/// `run` must be `#[inline(always)]`, and so must everything in it that computes: only then is it compiled with
/// the instructions of the path. Closures handed to rayon are not; dispatch inside them.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

/// An instruction set that the running machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SimdPath(Instructions);

impl SimdPath {
    /// The widest the machine has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                return Self(Instructions::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self(Instructions::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self(Instructions::Neon);
        }
        Self(Instructions::Portable)
    }

    /// Every path the machine has, so that tests hold each to the reference.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        let mut paths = vec![Self(Instructions::Portable)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            paths.push(Self(Instructions::Avx2));
        }
        if !paths.contains(&Self::detect()) {
            paths.push(Self::detect());
        }
        paths
    }

    /// Runs a kernel compiled for this path.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: values of `SimdPath` come from `detect` or `available` only, which saw the machine's features.
            Instructions::Avx512 => unsafe { x86::run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Instructions::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Instructions::Neon => unsafe { neon::run_neon(kernel) },
            Instructions::Portable => kernel.run(portable::Portable),
        }
    }

    /// Columns of the matrix product's register tile, and the width of packed panels.
    pub(crate) fn tile_columns(self) -> usize {
        self.run(TileSize).1
    }

    /// Rows of the matrix product's register tile.
    pub(crate) fn tile_rows(self) -> usize {
        self.run(TileSize).0
    }
}

/// Rows and columns of a path's register tile.
struct TileSize;

impl Kernel for TileSize {
    type Output = (usize, usize);

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> (usize, usize) {
        (S::TILE_ROWS, TILE_VECTORS * S::LANES)
    }
}

/// Calls the tile kernel whose number of rows is `$rows`, one of the literals given.
macro_rules! tile_of_rows {
    ($simd:expr, $mul_add:expr, $rows:expr, $operands:expr, $($literal:literal)*) => {
        match $rows {
            // SAFETY: passed on from the caller.
            $($literal => unsafe { crate::cpu::matmul::tile::<_, _, $literal>($simd, $mul_add, $operands) },)*
            // SAFETY: the caller keeps rows between 1 and TILE_ROWS, all of which are listed.
            _ => unsafe { std::hint::unreachable_unchecked() },
        }
    };
}
pub(crate) use tile_of_rows;
