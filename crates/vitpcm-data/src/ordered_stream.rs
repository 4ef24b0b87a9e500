//! Produces items on several threads and delivers them in order. Memory is bounded by the number of items made ahead.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Items in order. Threads work ahead and end when the stream is dropped.
#[derive(Debug)]
pub struct OrderedStream<T> {
    channels: Vec<Receiver<T>>,
    taken: usize,
    length: usize,
}

impl<T: Send + 'static> OrderedStream<T> {
    /// Starts making one item per number, on the given number of threads or all cores.
    pub(crate) fn start(
        numbers: Arc<[usize]>,
        threads: Option<NonZeroUsize>,
        ahead: usize,
        make: impl Fn(usize) -> T + Clone + Send + 'static,
    ) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let num_threads = threads.map_or_else(cores, NonZeroUsize::get).clamp(1, numbers.len().max(1));
        let ahead = (ahead / num_threads).max(1);
        let length = numbers.len();
        // Thread t makes every num_threads-th item and sends it over its own channel: receiving from the channels in
        // turn restores the order, and their capacity bounds the memory.
        let channels = (0..num_threads).map(|thread| {
            let (sender, receiver) = sync_channel(ahead);
            let (numbers, make) = (Arc::clone(&numbers), make.clone());
            std::thread::spawn(move || {
                for &number in numbers.iter().skip(thread).step_by(num_threads) {
                    // A dropped stream receives no more.
                    if sender.send(make(number)).is_err() {
                        return;
                    }
                }
            });
            receiver
        });
        Self { channels: channels.collect(), taken: 0, length }
    }
}

impl<T> Iterator for OrderedStream<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.taken == self.length {
            return None;
        }
        let channel = &self.channels[self.taken % self.channels.len()];
        self.taken += 1;
        Some(channel.recv().expect("a thread lives until its last item is taken"))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.length - self.taken;
        (remaining, Some(remaining))
    }
}

impl<T> ExactSizeIterator for OrderedStream<T> {}
