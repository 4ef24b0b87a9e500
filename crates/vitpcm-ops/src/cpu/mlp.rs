//! Between the two layers of an MLP: GELU and dropout, chunk by chunk in the first-level cache, and their gradient.

use rayon::prelude::*;

use super::dropout::Drop;
use super::gelu;
use super::simd::SimdPath;
use crate::dropout::DropoutMask;

/// Floats a thread takes at a time.
const CHUNK: usize = 1 << 12;

/// `hidden = dropout(gelu(x))`.
pub(crate) fn activate(path: SimdPath, mask: Option<DropoutMask>, x: &[f32], hidden: &mut [f32]) {
    assert_eq!(x.len(), hidden.len());
    let chunks = x.par_chunks(CHUNK).zip(hidden.par_chunks_mut(CHUNK)).enumerate();
    chunks.for_each(|(index, (x, output))| {
        path.run(gelu::Forward { x, output });
        if let Some(mask) = mask {
            path.run(Drop { mask, first: index * CHUNK, values: output });
        }
    });
}

/// `grad_x = gelu'(x) · dropout(grad_hidden)`; `grad_hidden` is left with the dropout done.
pub(crate) fn activate_backward(
    path: SimdPath,
    mask: Option<DropoutMask>,
    x: &[f32],
    grad_hidden: &mut [f32],
    grad_x: &mut [f32],
) {
    assert_eq!(x.len(), grad_hidden.len());
    assert_eq!(x.len(), grad_x.len());
    let chunks = x.par_chunks(CHUNK).zip(grad_hidden.par_chunks_mut(CHUNK)).zip(grad_x.par_chunks_mut(CHUNK));
    chunks.enumerate().for_each(|(index, ((x, grad_hidden), grad_x))| {
        if let Some(mask) = mask {
            path.run(Drop { mask, first: index * CHUNK, values: grad_hidden });
        }
        path.run(gelu::Backward { x, grad_output: grad_hidden, grad_x });
    });
}
