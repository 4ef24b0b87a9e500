//! Sums of products of bytes, unsigned by signed, exact in 32 bits: the register tiles that linear layers and attention in
//! [8-bit integers](super::int8) are made of, one for each set of instructions.

/// Columns of a packed panel and of a register tile.
pub(crate) const WIDTH: usize = 32;
/// Rows of a register tile.
pub(crate) const TILE_ROWS: usize = 12;
/// Neighbours in a sum that one lane of an instruction multiplies and adds.
pub(crate) const GROUP: usize = 4;

/// The instructions that multiply bytes, of those that the running machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DotPath {
    /// AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni512,
    /// AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni256,
    /// Arm's dot product of unsigned by signed bytes (I8MM).
    #[cfg(target_arch = "aarch64")]
    I8mm,
    /// Arm's dot product of signed bytes.
    #[cfg(target_arch = "aarch64")]
    DotProd,
    /// Plain Rust.
    Portable,
}

impl DotPath {
    /// The fastest that the machine has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
                return Self::Vnni512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni") {
                return Self::Vnni256;
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("i8mm") {
                return Self::I8mm;
            }
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                return Self::DotProd;
            }
        }
        Self::Portable
    }

    /// Whether the machine has instructions for it, so that bytes are faster than floats.
    pub(crate) fn is_fast(self) -> bool {
        self != Self::Portable
    }

    /// Writes the sums of one register tile, [`WIDTH`] to a row.
    ///
    /// # Safety
    /// `a` must be readable for `rows` rows of `groups · GROUP` bytes, `a_stride` apart, `b` for `groups · GROUP · WIDTH`
    /// bytes and `sums` writable for `rows · WIDTH` integers; `rows` is 1 to [`TILE_ROWS`].
    #[inline(always)]
    pub(crate) unsafe fn tile(self, rows: usize, tile: DotTile) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `detect` saw the feature; for the rest the caller vouches.
            Self::Vnni512 => unsafe { x86::tile_512(rows, tile) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Vnni256 => unsafe { x86::tile_256(rows, tile) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Self::I8mm => unsafe { arm::tile_of_mixed_signs(rows, tile) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Self::DotProd => unsafe { arm::tile_of_signed(rows, tile) },
            // SAFETY: the caller vouches.
            Self::Portable => unsafe { tile_portable(rows, tile) },
        }
    }
}

/// Where a tile's operands lie.
#[derive(Clone, Copy)]
pub(crate) struct DotTile {
    /// Groups in the sum.
    pub(crate) groups: usize,
    /// Unsigned bytes, row after row.
    pub(crate) a: *const u8,
    pub(crate) a_stride: usize,
    /// Signed bytes of one panel: groups, in them columns, in them [`GROUP`] bytes.
    pub(crate) b: *const i8,
    pub(crate) sums: *mut i32,
}

/// What every kernel must equal.
///
/// # Safety
/// As [`DotPath::tile`].
unsafe fn tile_portable(rows: usize, tile: DotTile) {
    for row in 0..rows {
        let mut sums = [0i32; WIDTH];
        for group in 0..tile.groups {
            // SAFETY: within what the caller vouches for; arrays of bytes need no alignment.
            let (a, b) = unsafe {
                let a = tile.a.add(row * tile.a_stride + group * GROUP).cast::<[u8; GROUP]>().read();
                (a, tile.b.add(group * GROUP * WIDTH).cast::<[[i8; GROUP]; WIDTH]>().read())
            };
            for (sum, b) in sums.iter_mut().zip(b) {
                for (a, b) in a.into_iter().zip(b) {
                    *sum += i32::from(a) * i32::from(b);
                }
            }
        }
        // SAFETY: the caller vouches for so many integers.
        unsafe { tile.sums.add(row * WIDTH).cast::<[i32; WIDTH]>().write_unaligned(sums) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{DotTile, GROUP, WIDTH};

    /// # Safety
    /// As [`super::DotPath::tile`], and the machine must have AVX-512F and AVX-512 VNNI.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn tile_512(rows: usize, tile: DotTile) {
        macro_rules! of_rows {
            ($($rows:literal)*) => {
                match rows {
                    // SAFETY: passed on from the caller.
                    $($rows => unsafe { rows_512::<$rows>(tile) },)*
                    // SAFETY: the caller keeps rows between 1 and TILE_ROWS, all of which are listed.
                    _ => unsafe { std::hint::unreachable_unchecked() },
                }
            };
        }
        of_rows!(1 2 3 4 5 6 7 8 9 10 11 12)
    }

    /// # Safety
    /// As [`tile_512`], for `ROWS` rows.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn rows_512<const ROWS: usize>(tile: DotTile) {
        let DotTile { groups, a, a_stride, b, sums } = tile;
        let mut totals = [[_mm512_setzero_si512(); 2]; ROWS];
        // SAFETY: the caller vouches for every address formed here.
        unsafe {
            for group in 0..groups {
                let b = b.add(group * GROUP * WIDTH);
                let right = [_mm512_loadu_si512(b.cast()), _mm512_loadu_si512(b.add(64).cast())];
                for (row, totals) in totals.iter_mut().enumerate() {
                    let four = a.add(row * a_stride + group * GROUP).cast::<i32>().read_unaligned();
                    let left = _mm512_set1_epi32(four);
                    totals[0] = _mm512_dpbusd_epi32(totals[0], left, right[0]);
                    totals[1] = _mm512_dpbusd_epi32(totals[1], left, right[1]);
                }
            }
            for (row, totals) in totals.iter().enumerate() {
                _mm512_storeu_si512(sums.add(row * WIDTH).cast(), totals[0]);
                _mm512_storeu_si512(sums.add(row * WIDTH + 16).cast(), totals[1]);
            }
        }
    }

    /// The kernel of 256 bits, for either encoding of its one instruction.
    macro_rules! tile_256 {
        ($tile:ident, $rows_of:ident, $features:literal, $dot:ident) => {
            /// # Safety
            /// As [`super::DotPath::tile`], and the machine must have the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $tile(rows: usize, tile: DotTile) {
                // Sixteen registers hold six rows by sixteen columns.
                for first in (0..rows).step_by(6) {
                    for half in 0..2 {
                        // SAFETY: a part of the caller's tile.
                        unsafe {
                            let part = DotTile {
                                a: tile.a.add(first * tile.a_stride),
                                b: tile.b.add(half * 64),
                                sums: tile.sums.add(first * WIDTH + half * 16),
                                ..tile
                            };
                            match rows - first {
                                1 => $rows_of::<1>(part),
                                2 => $rows_of::<2>(part),
                                3 => $rows_of::<3>(part),
                                4 => $rows_of::<4>(part),
                                5 => $rows_of::<5>(part),
                                _ => $rows_of::<6>(part),
                            }
                        }
                    }
                }
            }

            /// # Safety
            /// As the tile, for `ROWS` rows and half of its columns.
            #[target_feature(enable = $features)]
            unsafe fn $rows_of<const ROWS: usize>(tile: DotTile) {
                let DotTile { groups, a, a_stride, b, sums } = tile;
                let mut totals = [[_mm256_setzero_si256(); 2]; ROWS];
                // SAFETY: the caller vouches for every address formed here.
                unsafe {
                    for group in 0..groups {
                        let b = b.add(group * GROUP * WIDTH);
                        let right = [_mm256_loadu_si256(b.cast()), _mm256_loadu_si256(b.add(32).cast())];
                        for (row, totals) in totals.iter_mut().enumerate() {
                            let four = a.add(row * a_stride + group * GROUP).cast::<i32>().read_unaligned();
                            let left = _mm256_set1_epi32(four);
                            totals[0] = $dot(totals[0], left, right[0]);
                            totals[1] = $dot(totals[1], left, right[1]);
                        }
                    }
                    for (row, totals) in totals.iter().enumerate() {
                        _mm256_storeu_si256(sums.add(row * WIDTH).cast(), totals[0]);
                        _mm256_storeu_si256(sums.add(row * WIDTH + 8).cast(), totals[1]);
                    }
                }
            }
        };
    }
    tile_256!(tile_256, rows_256, "avx2,avxvnni", _mm256_dpbusd_avx_epi32);
    // The same kernel on machines with AVX-512 alone, so that it can be tested there.
    #[cfg(test)]
    tile_256!(tile_256_of_avx512, rows_256_of_avx512, "avx2,avx512vl,avx512vnni", _mm256_dpbusd_epi32);
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::arch::asm;

    use super::{DotTile, GROUP, WIDTH};

    /// Rows and columns that the registers hold: 6 rows of 4 vectors.
    const ROWS: usize = 6;
    const VECTORS: usize = 4;
    const COLUMNS: usize = 4 * VECTORS;

    /// A kernel for one of the two instructions. Rust has no stable intrinsics for them.
    macro_rules! tile {
        ($tile:ident, $rows_of:ident, $features:literal, $instruction:literal, $offset:literal) => {
            /// # Safety
            /// As [`super::DotPath::tile`], and the machine must have the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $tile(rows: usize, tile: DotTile) {
                for half in 0..WIDTH / COLUMNS {
                    for first in (0..rows).step_by(ROWS) {
                        // SAFETY: a part of the caller's tile.
                        unsafe {
                            let part = DotTile {
                                a: tile.a.add(first * tile.a_stride),
                                b: tile.b.add(half * COLUMNS * GROUP),
                                sums: tile.sums.add(first * WIDTH + half * COLUMNS),
                                ..tile
                            };
                            match rows - first {
                                1 => $rows_of::<1>(part),
                                2 => $rows_of::<2>(part),
                                3 => $rows_of::<3>(part),
                                4 => $rows_of::<4>(part),
                                5 => $rows_of::<5>(part),
                                _ => $rows_of::<ROWS>(part),
                            }
                        }
                    }
                }
            }

            /// # Safety
            /// As the tile, for `ROWS` rows and [`COLUMNS`] columns.
            #[target_feature(enable = $features)]
            unsafe fn $rows_of<const ROWS: usize>(tile: DotTile) {
                let DotTile { groups, a, a_stride, b, sums } = tile;
                let dot = |sum: &mut int32x4_t, a: uint8x16_t, b: int8x16_t| {
                    // SAFETY: the caller saw the instruction; it touches no memory.
                    unsafe {
                        asm!(
                            concat!($instruction, " {sum:v}.4s, {a:v}.16b, {b:v}.16b"),
                            sum = inout(vreg) *sum, a = in(vreg) a, b = in(vreg) b,
                            options(pure, nomem, nostack, preserves_flags)
                        );
                    }
                };
                let mut totals = [[vdupq_n_s32(0); VECTORS]; ROWS];
                // Signed instructions see a less 128: what that takes from a column's sum is added at the end.
                let mut missing = [vdupq_n_s32(0); VECTORS];
                let (flipped, ones) = (vdupq_n_u8($offset), vdupq_n_u8(1));
                // SAFETY: the caller vouches for every address formed here.
                unsafe {
                    for group in 0..groups {
                        let b = b.add(group * GROUP * WIDTH);
                        let right: [int8x16_t; VECTORS] = std::array::from_fn(|vector| vld1q_s8(b.add(16 * vector)));
                        if $offset != 0 {
                            for (missing, &right) in missing.iter_mut().zip(&right) {
                                dot(missing, ones, right);
                            }
                        }
                        for (row, totals) in totals.iter_mut().enumerate() {
                            let four = a.add(row * a_stride + group * GROUP).cast::<u32>().read_unaligned();
                            let left = veorq_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), flipped);
                            for (total, &right) in totals.iter_mut().zip(&right) {
                                dot(total, left, right);
                            }
                        }
                    }
                    for (row, totals) in totals.iter().enumerate() {
                        for (vector, (&total, &missing)) in totals.iter().zip(&missing).enumerate() {
                            let total = vmlaq_n_s32(total, missing, $offset);
                            vst1q_s32(sums.add(row * WIDTH + 4 * vector), total);
                        }
                    }
                }
            }
        };
    }
    tile!(tile_of_mixed_signs, rows_of_mixed_signs, "neon,i8mm", "usdot", 0);
    tile!(tile_of_signed, rows_of_signed, "neon,dotprod", "sdot", 128);
}

#[cfg(test)]
mod tests {
    use super::super::naive::{noise, sizes};
    use super::*;

    type TileFunction = unsafe fn(usize, DotTile);

    /// Every kernel that the machine can run.
    fn kernels() -> Vec<TileFunction> {
        let mut kernels: Vec<TileFunction> = vec![tile_portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512vnni") {
                kernels.push(x86::tile_512);
            }
            if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl") {
                kernels.push(x86::tile_256_of_avx512);
            }
            if is_x86_feature_detected!("avxvnni") {
                kernels.push(x86::tile_256);
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                kernels.push(arm::tile_of_signed);
            }
            if std::arch::is_aarch64_feature_detected!("i8mm") {
                kernels.push(arm::tile_of_mixed_signs);
            }
        }
        kernels
    }

    #[test]
    fn every_kernel_finds_the_same_sums_of_bytes() {
        let bytes =
            |len: usize, seed: u64| noise(len, seed).iter().map(|x| (x * 128.0) as i8).collect::<Vec<_>>();
        for groups in sizes([0, 1, 3, 96, 400]) {
            let stride = groups * GROUP + 8;
            // The largest codes as well: sums of pairs must not saturate on the way.
            for (a, b) in [
                (bytes(TILE_ROWS * stride, 1), bytes(groups * GROUP * WIDTH, 2)),
                (vec![-1; TILE_ROWS * stride], vec![127; groups * GROUP * WIDTH]),
                (vec![-1; TILE_ROWS * stride], vec![-127; groups * GROUP * WIDTH]),
            ] {
                for rows in 1..=TILE_ROWS {
                    let run = |kernel: TileFunction| {
                        let mut sums = vec![i32::MIN; TILE_ROWS * WIDTH];
                        let (a, b) = (a.as_ptr().cast(), b.as_ptr());
                        let tile = DotTile { groups, a, a_stride: stride, b, sums: sums.as_mut_ptr() };
                        // SAFETY: the buffers are of the tile's size, and the machine has the instructions.
                        unsafe { kernel(rows, tile) };
                        sums
                    };
                    for kernel in kernels() {
                        assert_eq!(run(kernel), run(tile_portable), "{rows} rows, {groups} groups");
                    }
                }
            }
        }
    }
}
