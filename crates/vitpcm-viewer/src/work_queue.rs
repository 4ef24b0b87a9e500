//! Work that takes time, a bounded amount of it: a few requests hold a place in the queue, fewer work, the rest are told to
//! come back. A place is taken before a request's body is read, so that waiting bodies are bounded, too.

use crate::answer::Refusal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A queue for one kind of work.
pub(crate) struct WorkQueue {
    places: Arc<Semaphore>,
    workers: Arc<Semaphore>,
    queue_time: Duration,
}

/// A place in the queue; given back when dropped.
pub(crate) struct Place(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl WorkQueue {
    /// `places` requests are taken on, of which `workers` are worked on at a time.
    pub(crate) fn new(places: usize, workers: usize, queue_time: Duration) -> WorkQueue {
        WorkQueue {
            places: Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS))),
            workers: Arc::new(Semaphore::new(workers.max(1))),
            queue_time,
        }
    }

    /// A place, or the answer that there is none.
    pub(crate) fn enter(&self) -> Result<Place, Refusal> {
        self.places.clone().try_acquire_owned().map(Place).map_err(|_| Refusal::busy())
    }

    /// Waits for its turn, then does the work on a thread of its own. Work goes on to its end, and its place stays taken until
    /// then, even if the client goes away: what is being computed is bounded, not what is waited for.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = tokio::time::timeout(self.queue_time, self.workers.clone().acquire_owned()).await;
        let turn = turn.map_err(|_| Refusal::busy())?.expect("the queue is never closed");
        let worked = tokio::task::spawn_blocking(move || {
            let result = work();
            drop((turn, place));
            result
        });
        // A panic is a bug of ours; it must not end the server.
        worked.await.unwrap_or_else(|_| Err(Refusal::bug()))
    }
}
