//! Dropout over slices. The mask is computed from the position of each element, never stored.

use rayon::prelude::*;

use super::simd::{Kernel, Simd, SimdPath};
use crate::dropout::{DropoutMask, random_bits};

/// Floats a thread takes at a time.
const CHUNK: usize = 1 << 13;

/// Drops elements in place.
pub(crate) fn apply(path: SimdPath, mask: DropoutMask, values: &mut [f32]) {
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(index, values)| {
        path.run(Drop { mask, first: index * CHUNK, values });
    });
}

/// Drops elements of a part of the whole that begins at element `first`.
pub(crate) struct Drop<'a> {
    pub(crate) mask: DropoutMask,
    pub(crate) first: usize,
    pub(crate) values: &'a mut [f32],
}

impl Kernel for Drop<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let DropoutMask { key, position, rate } = self.mask;
        let start = position.wrapping_add(self.first as u64);
        let kept = self.mask.kept();
        // As numbers of 24 bits: a comparison of whole numbers is the same, and vectors have it.
        let threshold = (rate * (1 << 24) as f32).ceil() as u64;
        // Plain code: the compiler makes vectors of it with the instructions of the path.
        for (offset, value) in self.values.iter_mut().enumerate() {
            let bits = random_bits(key, start.wrapping_add(offset as u64)) >> 40;
            *value = if bits >= threshold { *value * kept } else { 0.0 };
        }
    }
}
