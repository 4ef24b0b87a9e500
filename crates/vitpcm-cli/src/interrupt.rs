//! Ctrl-C, and a scheduler's SIGTERM. A command that has something to finish or to save listens: the first signal asks it
//! to stop at its next safe point. Where nobody listens, and at a second signal, the program ends at once. Nothing
//! half-written is left either way.

use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vitpcm_masks::atomic_file;

type Listener = Box<dyn FnOnce() + Send>;

/// What the next signal does; without it the program ends.
static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

fn set_listener(listener: Option<Listener>) -> Option<Listener> {
    std::mem::replace(&mut LISTENER.lock().unwrap_or_else(PoisonError::into_inner), listener)
}

/// Takes over signals for the whole program. To be called once, before any command runs.
pub(crate) fn end_on_signals() -> anyhow::Result<()> {
    ctrlc::set_handler(|| match set_listener(None) {
        Some(stop) => stop(),
        None => {
            atomic_file::remove_unfinished();
            std::process::exit(130);
        }
    })
    .context("listening for Ctrl-C")
}

/// Whether the user asked to stop. Signals end the program at once again when this is dropped.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen.
    pub fn listen() -> Interrupt {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = asked.clone();
        on_first(move || flag.store(true, Ordering::SeqCst));
        Interrupt(asked)
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// For work that looks by itself.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        set_listener(None);
    }
}

/// Does something when the user asks to stop.
pub(crate) fn on_first(stop: impl FnOnce() + Send + 'static) {
    set_listener(Some(Box::new(stop)));
}
