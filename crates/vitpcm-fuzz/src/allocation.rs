//! The allocator of the fuzzer's programs: the system's own, with a count of what is held, so that a target that believes a
//! length in its input is caught. Small excesses are noted and reported with their input; at `HARD_LIMIT` the program ends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// More than any target may ever ask for; reaching it saves the input and ends the program.
const HARD_LIMIT: usize = 6 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// To be declared `#[global_allocator]` in a program that fuzzes; without it memory is not watched.
pub struct CountingAllocator;

/// Bytes held now.
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

/// Forgets the peak; from here on it is measured anew.
pub(crate) fn begin_peak() {
    PEAK.store(held(), Relaxed);
}

/// Most bytes held at once since [`begin_peak`].
pub(crate) fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// What `work` gives, and the most bytes that the program held meanwhile beyond those that it held before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = held();
    begin_peak();
    let result = work();
    (result, peak().saturating_sub(before))
}

fn grow(bytes: usize) -> bool {
    let held = HELD.fetch_add(bytes, Relaxed).saturating_add(bytes);
    PEAK.fetch_max(held, Relaxed);
    held <= HARD_LIMIT
}

fn shrink(bytes: usize) {
    HELD.fetch_sub(bytes, Relaxed);
}

/// Nothing is left to do but to keep the input.
fn refuse(bytes: usize) -> *mut u8 {
    shrink(bytes);
    crate::watch::save_current_input("an allocation beyond the hard limit");
    std::ptr::null_mut()
}

// SAFETY: every block comes from the system's allocator and goes back to it with the layout it was asked for; a null pointer
// is returned where it is refused, as the trait allows.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grow(layout.size()) {
            return refuse(layout.size());
        }
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !grow(layout.size()) {
            return refuse(layout.size());
        }
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !grow(size) {
            return refuse(size);
        }
        // SAFETY: the caller's promise is the system allocator's condition.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        shrink(if moved.is_null() { size } else { layout.size() });
        moved
    }
}
