//! Working memory that outlives a call: buffers aligned to cache lines, handed back to a pool when dropped, so that
//! a network's hundreds of operations fault their pages in once.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

/// One cache line, and the widest vector.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct Line([f32; 16]);

/// Memory kept between calls, over all buffers; what comes back beyond it is freed.
const POOL_LINES: usize = (128 << 20) / size_of::<Line>();

static POOL: Mutex<Vec<Vec<Line>>> = Mutex::new(Vec::new());

/// A buffer of floats with arbitrary contents, aligned to 64 bytes.
#[derive(Debug)]
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

impl Scratch {
    pub(crate) fn take(len: usize) -> Self {
        let needed = len.div_ceil(16);
        let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fitting = (0..pool.len()).filter(|&index| pool[index].len() >= needed);
        let lines = match fitting.min_by_key(|&index| pool[index].len()) {
            Some(index) => pool.swap_remove(index),
            None => {
                drop(pool);
                vec![Line([0.0; 16]); needed]
            }
        };
        Self { lines, len }
    }

    /// Zeros in memory of their own and no longer than needed: for what is kept.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }
}

/// The same memory as bytes.
pub(crate) fn bytes_of(floats: &[f32]) -> &[u8] {
    // SAFETY: floats are four bytes each, of any value.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

/// The same memory as bytes.
pub(crate) fn bytes_of_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: as for `bytes_of`; and any four bytes are a float.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats)) }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if lines.len() + pool.iter().map(Vec::len).sum::<usize>() <= POOL_LINES {
            pool.push(lines);
        }
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a `Line` is sixteen floats without padding, and there are at least `len / 16` lines.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
