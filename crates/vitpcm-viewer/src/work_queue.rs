//! A bounded queue for slow work: a few requests hold places, fewer run, the rest get 503. A place is taken before a
//! request's body is read, which bounds the waiting bodies too.

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

/// A place in the queue; returned on drop.
pub(crate) struct Place(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl WorkQueue {
    /// Admits `places` requests and runs `workers` of them at a time.
    pub(crate) fn new(places: usize, workers: usize, queue_time: Duration) -> WorkQueue {
        WorkQueue {
            places: Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS))),
            workers: Arc::new(Semaphore::new(workers.max(1))),
            queue_time,
        }
    }

    /// A place, or a 503.
    pub(crate) fn enter(&self) -> Result<Place, Refusal> {
        self.places.clone().try_acquire_owned().map(Place).map_err(|_| Refusal::busy())
    }

    /// Waits for its turn, then runs the work on a blocking thread. The work runs to its end and keeps its place even
    /// if the client disconnects, so that the amount of computation is bounded.
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
        // A panic is a bug of ours and must not end the server.
        worked.await.unwrap_or_else(|_| Err(Refusal::bug()))
    }
}
