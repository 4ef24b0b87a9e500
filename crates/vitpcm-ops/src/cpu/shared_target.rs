//! A slice that several threads fill at once, each its own part.

use std::marker::PhantomData;

/// A mutable slice shared between threads that write disjoint parts of it.
#[derive(Clone, Copy)]
pub(crate) struct SharedTarget<'a> {
    data: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: access goes through `slice` and `pointer`, whose callers vouch that no two threads touch the same part.
unsafe impl Send for SharedTarget<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedTarget<'_> {}

impl<'a> SharedTarget<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { data: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// While the part lives, nobody else may touch it.
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [f32] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: within the slice, as just seen; alone there, as the caller vouches.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }

    /// The address of an element, for writing rows some stride apart.
    pub(crate) fn pointer(&self, start: usize) -> *mut f32 {
        assert!(start < self.len);
        // SAFETY: within the slice, as just seen.
        unsafe { self.data.add(start) }
    }
}
