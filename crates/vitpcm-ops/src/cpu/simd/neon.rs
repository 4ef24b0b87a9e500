//! NEON: four lanes and fused multiply-add on 64-bit Arm.

use std::arch::aarch64::*;

use super::{Kernel, OfFloats, Simd, TileOperands, tile_of_rows};

#[derive(Clone, Copy)]
pub(crate) struct Neon(());

/// # Safety
/// The machine must have NEON.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(()))
}

// SAFETY (all blocks of this file): a `Neon` exists only inside `run_neon`, whose caller saw the feature; for
// pointers the caller vouches.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 12;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        unsafe { vdupq_n_f32(value) }
    }
    #[inline(always)]
    unsafe fn load_at(self, source: *const f32) -> Self::V {
        unsafe { vld1q_f32(source) }
    }
    #[inline(always)]
    unsafe fn store_at(self, target: *mut f32, value: Self::V) {
        unsafe { vst1q_f32(target, value) }
    }
    #[inline(always)]
    unsafe fn load_integers_at(self, source: *const i32) -> Self::V {
        unsafe { vcvtq_f32_s32(vld1q_s32(source)) }
    }
    #[inline(always)]
    unsafe fn store_bytes_at(self, target: *mut u8, value: Self::V) {
        unsafe {
            let words = vqmovn_u32(vcvtnq_u32_f32(value));
            let bytes = vqmovn_u16(vcombine_u16(words, words));
            target.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        unsafe {
            let exponent = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
            vmulq_f32(a, vreinterpretq_f32_s32(exponent))
        }
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    fn largest(self, a: Self::V) -> f32 {
        unsafe { vmaxvq_f32(a) }
    }
    #[inline(always)]
    unsafe fn tile(self, rows: usize, operands: TileOperands) {
        tile_of_rows!(self, OfFloats, rows, operands, 1 2 3 4 5 6 7 8 9 10 11 12)
    }
}
