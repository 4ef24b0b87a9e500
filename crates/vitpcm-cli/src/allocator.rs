//! What the C library's allocator is told before a program that runs for days.

/// Keeps freed memory in few places. By default each thread gets a heap of its own, up to eight a core; every one keeps what its
/// largest request once needed, and a server's memory creeps up for hours.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn use_few_heaps() {
    use std::ffi::c_int;

    const M_ARENA_MAX: c_int = -8;
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }

    // SAFETY: a number is set that the allocator reads when a thread asks for a heap. A refusal leaves the default.
    #[allow(unsafe_code)]
    unsafe {
        mallopt(M_ARENA_MAX, 2);
    }
}

/// Other allocators need no telling, or hear of nothing.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn use_few_heaps() {}
