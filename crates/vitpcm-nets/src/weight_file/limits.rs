//! Limits on the bytes of a weight file unpacked into memory: by default what published files need; users can raise
//! them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The value of the last [`raise_weight_limit`], process-wide because many places open weight files.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// Raises all readers' limits in this process to at least `max_bytes`.
pub fn raise_weight_limit(max_bytes: u64) {
    RAISED.store(max_bytes, Ordering::Relaxed);
}

/// The higher of a reader's own limit and the [raised](raise_weight_limit) one.
pub(super) fn limit(own: u64) -> u64 {
    own.max(RAISED.load(Ordering::Relaxed))
}
