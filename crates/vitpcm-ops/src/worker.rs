//! Where a network runs on the CPU.

use std::sync::Mutex;

/// Runs a network, or a training step, on the first of rayon's threads.
///
/// On a thread of rayon's, because its hundreds of operations then need not hand over to one each. Always on the same,
/// because allocators keep freed memory by thread: what changes threads pays for its peak on each of them.
pub fn on_worker<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    if rayon::current_thread_index().is_some() {
        return run();
    }
    let run = Mutex::new(Some(run));
    let results = rayon::broadcast(|context| {
        if context.index() > 0 {
            return None;
        }
        run.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take().map(|run| run())
    });
    results.into_iter().flatten().next().expect("rayon has a first thread")
}
