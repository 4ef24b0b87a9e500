//! Settings of the C library's allocator for long-running programs.

/// Limits the number of malloc arenas. By default glibc creates up to eight per core; each keeps its peak size, so a
/// server's memory creeps up for hours.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn use_few_heaps() {
    use std::ffi::c_int;

    const M_ARENA_MAX: c_int = -8;
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }

    // SAFETY: this sets a number that the allocator reads when a thread asks for an arena. On failure the default
    // stays.
    #[allow(unsafe_code)]
    unsafe {
        mallopt(M_ARENA_MAX, 2);
    }
}

/// Other allocators have no such setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn use_few_heaps() {}
