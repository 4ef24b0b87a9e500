//! The two paths of x86-64: AVX2 with FMA (eight lanes) and AVX-512 (sixteen lanes, twice the registers).

use std::arch::x86_64::*;

use super::{
    Kernel, MulAdd, OfFloats, Simd, TILE_VECTORS, TileOperands, tile_of_pairs_by_floats, tile_of_rows,
};
use crate::cpu::bf16;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// # Safety
/// The machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// # Safety
/// The machine must have AVX-512F and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(crate) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// One copy of the tile kernels for all who call them.
///
/// # Safety
/// As [`Simd::tile`], and the machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2(rows: usize, operands: TileOperands) {
    tile_of_rows!(Avx2(()), OfFloats, rows, operands, 1 2 3 4 5 6)
}

/// One copy of the tile kernels for all who call them.
///
/// # Safety
/// As [`Simd::tile`], and the machine must have AVX-512F and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn tile_avx512(rows: usize, operands: TileOperands) {
    tile_of_rows!(Avx512(()), OfFloats, rows, operands, 1 2 3 4 5 6 7 8 9 10 11 12)
}

/// A pair of bf16, where there is AVX-512 BF16.
#[derive(Clone, Copy)]
struct OfPairs(());

impl MulAdd<Avx512> for OfPairs {
    #[inline(always)]
    fn mul_add(self, _: Avx512, a: __m512, b: __m512, c: __m512) -> __m512 {
        use std::mem::transmute;
        // SAFETY: an `OfPairs` exists only inside the function below, whose callers saw the feature; the types are bits alone.
        unsafe { _mm512_dpbf16_ps(c, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b)) }
    }
}

/// # Safety
/// As [`Simd::tile`], and the machine must have AVX-512F, AVX-512 BF16 and FMA.
#[target_feature(enable = "avx512f,avx512bf16,avx2,fma")]
unsafe fn tile_of_pairs_avx512(rows: usize, operands: TileOperands) {
    tile_of_rows!(Avx512(()), OfPairs(()), rows, operands, 1 2 3 4 5 6 7 8 9 10 11 12)
}

// SAFETY (all blocks of this file): an `Avx2` or `Avx512` exists only inside the functions above, whose callers
// saw the features; for pointers the caller vouches.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_at(self, source: *const f32) -> Self::V {
        unsafe { _mm256_loadu_ps(source) }
    }
    #[inline(always)]
    unsafe fn store_at(self, target: *mut f32, value: Self::V) {
        unsafe { _mm256_storeu_ps(target, value) }
    }
    #[inline(always)]
    unsafe fn load_integers_at(self, source: *const i32) -> Self::V {
        unsafe { _mm256_cvtepi32_ps(_mm256_loadu_si256(source.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes_at(self, target: *mut u8, value: Self::V) {
        unsafe {
            let integers = _mm256_cvtps_epi32(value);
            let (low, high) = (_mm256_castsi256_si128(integers), _mm256_extracti128_si256::<1>(integers));
            let words = _mm_packs_epi32(low, high);
            _mm_storel_epi64(target.cast(), _mm_packus_epi16(words, words));
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    fn largest(self, a: Self::V) -> f32 {
        unsafe {
            let half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    unsafe fn transpose_8x8(
        self,
        source: *const f32,
        source_stride: usize,
        target: *mut f32,
        target_stride: usize,
    ) {
        unsafe { transpose_8x8(source, source_stride, target, target_stride) }
    }
    #[inline(always)]
    unsafe fn tile(self, rows: usize, operands: TileOperands) {
        unsafe { tile_avx2(rows, operands) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 12;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_at(self, source: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(source) }
    }
    #[inline(always)]
    unsafe fn store_at(self, target: *mut f32, value: Self::V) {
        unsafe { _mm512_storeu_ps(target, value) }
    }
    #[inline(always)]
    unsafe fn load_integers_at(self, source: *const i32) -> Self::V {
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(source.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes_at(self, target: *mut u8, value: Self::V) {
        unsafe { _mm_storeu_si128(target.cast(), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(value))) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn largest(self, a: Self::V) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn transpose_8x8(
        self,
        source: *const f32,
        source_stride: usize,
        target: *mut f32,
        target_stride: usize,
    ) {
        unsafe { transpose_8x8(source, source_stride, target, target_stride) }
    }
    #[inline(always)]
    unsafe fn tile(self, rows: usize, operands: TileOperands) {
        unsafe { tile_avx512(rows, operands) }
    }
    #[inline(always)]
    unsafe fn tile_of_pairs(self, rows: usize, operands: TileOperands) {
        match bf16::is_fast() {
            true => unsafe { tile_of_pairs_avx512(rows, operands) },
            false => unsafe { tile_of_pairs_by_floats(TILE_VECTORS * Self::LANES, rows, operands) },
        }
    }
}

/// Both paths transpose with eight lanes: three rounds of swapping neighbours, pairs and halves. Written without
/// closures, which would be compiled without the vector instructions.
#[allow(clippy::undocumented_unsafe_blocks)]
#[inline(always)]
unsafe fn transpose_8x8(source: *const f32, source_stride: usize, target: *mut f32, target_stride: usize) {
    unsafe {
        let upper = transpose_4_rows(source, source_stride);
        let lower = transpose_4_rows(source.add(4 * source_stride), source_stride);
        for quarter in 0..4 {
            let (upper, lower) = (upper[quarter], lower[quarter]);
            let target = target.add(quarter * target_stride);
            _mm256_storeu_ps(target, _mm256_permute2f128_ps::<0x20>(upper, lower));
            _mm256_storeu_ps(target.add(4 * target_stride), _mm256_permute2f128_ps::<0x31>(upper, lower));
        }
    }
}

/// Columns 0 and 4, 1 and 5, 2 and 6, 3 and 7 of four rows.
#[allow(clippy::undocumented_unsafe_blocks)]
#[inline(always)]
unsafe fn transpose_4_rows(source: *const f32, source_stride: usize) -> [__m256; 4] {
    unsafe {
        let first = _mm256_loadu_ps(source);
        let second = _mm256_loadu_ps(source.add(source_stride));
        let third = _mm256_loadu_ps(source.add(2 * source_stride));
        let fourth = _mm256_loadu_ps(source.add(3 * source_stride));
        let (low_a, high_a) = (_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second));
        let (low_b, high_b) = (_mm256_unpacklo_ps(third, fourth), _mm256_unpackhi_ps(third, fourth));
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(low_a, low_b),
            _mm256_shuffle_ps::<0b11_10_11_10>(low_a, low_b),
            _mm256_shuffle_ps::<0b01_00_01_00>(high_a, high_b),
            _mm256_shuffle_ps::<0b11_10_11_10>(high_a, high_b),
        ]
    }
}
