//! The thread that runs a network on the CPU.

use std::sync::Mutex;

/// Runs a network, or a training step, on the first of rayon's threads.
///
/// On a rayon thread, the network's hundreds of operations need no handover. It is always the same thread, because
/// allocators keep freed memory per thread: work that changes threads pays for its peak memory on each of them.
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
