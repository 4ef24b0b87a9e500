//! Ctrl-C, and a scheduler's SIGTERM: the first asks the work to stop at its next safe point, a second one stops it
//! at once.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user asked to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen. To be called once, by a command that can stop half-way without losing anything.
    pub(crate) fn listen() -> anyhow::Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = asked.clone();
        on_first(move || flag.store(true, Ordering::SeqCst))?;
        Ok(Interrupt(asked))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Does something when the user asks to stop. To be called once.
pub(crate) fn on_first(stop: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut was_asked = false;
    ctrlc::set_handler(move || {
        if std::mem::replace(&mut was_asked, true) {
            std::process::exit(130);
        }
        stop();
    })
    .context("listening for Ctrl-C")
}
