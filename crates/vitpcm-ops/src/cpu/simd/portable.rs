//! Four lanes in plain Rust, for machines without a path of their own. The compiler makes of it what the
//! target's baseline has (SSE2 on x86-64).

use super::{OfFloats, Simd, TileOperands, tile_of_rows};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn each(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; 4]
    }
    #[inline(always)]
    unsafe fn load_at(self, source: *const f32) -> Self::V {
        // SAFETY: the caller vouches for four floats; arrays of floats need no more alignment than floats.
        unsafe { source.cast::<[f32; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn store_at(self, target: *mut f32, value: Self::V) {
        // SAFETY: as for `load_at`.
        unsafe { target.cast::<[f32; 4]>().write(value) }
    }
    #[inline(always)]
    unsafe fn load_integers_at(self, source: *const i32) -> Self::V {
        // SAFETY: the caller vouches for four integers.
        unsafe { source.cast::<[i32; 4]>().read() }.map(|integer| integer as f32)
    }
    #[inline(always)]
    unsafe fn store_bytes_at(self, target: *mut u8, value: Self::V) {
        // SAFETY: the caller vouches for four bytes.
        unsafe { target.cast::<[u8; 4]>().write(self.round(value).map(|value| value as u8)) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // `f32::mul_add` would call the C library where the baseline has no fused instruction.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding 1.5 · 2^23 leaves no bits for the fraction; good for |a| < 2^22, ample for exponents.
        const MAGIC: f32 = 12_582_912.0;
        a.map(|a| (a + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        each(a, n, |a, n| a * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    fn largest(self, a: Self::V) -> f32 {
        a[0].max(a[1]).max(a[2].max(a[3]))
    }
    #[inline(always)]
    unsafe fn tile(self, rows: usize, operands: TileOperands) {
        tile_of_rows!(self, OfFloats, rows, operands, 1 2 3 4)
    }
}
