//! The fuzzer's allocator: the system's, with a count of allocated bytes, to catch targets that trust a length in their
//! input. Small excesses are reported with their input; at `HARD_LIMIT` the program ends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// More than any target may request; reaching it saves the input and ends the program.
const HARD_LIMIT: usize = 6 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Declare as `#[global_allocator]` in a fuzzing program; without it memory is not checked.
pub struct CountingAllocator;

/// Bytes allocated now.
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

/// Resets the peak.
pub(crate) fn begin_peak() {
    PEAK.store(held(), Relaxed);
}

/// Most bytes allocated at once since [`begin_peak`].
pub(crate) fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Runs `work`; also returns the peak of allocated bytes above the level before.
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

/// Saves the input: nothing else can be done.
fn refuse(bytes: usize) -> *mut u8 {
    shrink(bytes);
    crate::watch::save_current_input("an allocation beyond the hard limit");
    std::ptr::null_mut()
}

// SAFETY: every block comes from the system's allocator and goes back to it with its own layout; a refusal returns a
// null pointer, as the trait allows.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grow(layout.size()) {
            return refuse(layout.size());
        }
        // SAFETY: the caller's guarantee is the system allocator's requirement.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !grow(layout.size()) {
            return refuse(layout.size());
        }
        // SAFETY: the caller's guarantee is the system allocator's requirement.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: the caller's guarantee is the system allocator's requirement.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !grow(size) {
            return refuse(size);
        }
        // SAFETY: the caller's guarantee is the system allocator's requirement.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        shrink(if moved.is_null() { size } else { layout.size() });
        moved
    }
}
