//! Rows of a buffer that several threads modify at once, each its own.
//!
//! The chains along a lattice axis share no vertex but are scattered over the buffer, so it cannot be split into slices
//! for threads. Blurring in place moves half as much memory as writing to a second buffer.

use std::marker::PhantomData;

pub(crate) struct ScatteredRows<'a> {
    values: *mut f32,
    len: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: threads access the values through `load` and `store` only, whose callers guarantee that they share no row.
#[allow(unsafe_code)]
unsafe impl Sync for ScatteredRows<'_> {}

#[allow(unsafe_code)]
impl<'a> ScatteredRows<'a> {
    pub(crate) fn new(values: &'a mut [f32]) -> Self {
        Self { values: values.as_mut_ptr(), len: values.len(), buffer: PhantomData }
    }

    /// The `L` values from an index on.
    ///
    /// # Safety
    /// No other thread stores to them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn load<const L: usize>(&self, index: usize) -> [f32; L] {
        assert!(index < self.len && self.len - index >= L);
        // SAFETY: the values lie within the buffer, and by contract nobody writes to them.
        unsafe { self.values.add(index).cast::<[f32; L]>().read() }
    }

    /// Replaces the `L` values from an index on.
    ///
    /// # Safety
    /// No other thread loads or stores them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn store<const L: usize>(&self, index: usize, row: [f32; L]) {
        assert!(index < self.len && self.len - index >= L);
        // SAFETY: the values lie within the buffer, borrowed mutably for our lifetime, and by contract nobody else uses them.
        unsafe { self.values.add(index).cast::<[f32; L]>().write(row) }
    }
}
