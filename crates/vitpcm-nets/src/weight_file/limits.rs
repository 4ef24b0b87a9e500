//! How many bytes of a weight file are unpacked into memory: what such files need, unless a user says that one needs more.

use std::sync::atomic::{AtomicU64, Ordering};

/// What [`raise_weight_limit`] was last told. One for the process: weight files are opened in many places.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// Lets this process unpack so many bytes of a weight file, where a reader's own limit is lower.
pub fn raise_weight_limit(max_bytes: u64) {
    RAISED.store(max_bytes, Ordering::Relaxed);
}

/// A reader's own limit, or the [raised](raise_weight_limit) one.
pub(super) fn limit(own: u64) -> u64 {
    own.max(RAISED.load(Ordering::Relaxed))
}
