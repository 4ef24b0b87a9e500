//! Ctrl-C and SIGTERM. Commands with work to finish or save listen: the first signal asks them to stop at their next
//! safe point. Without a listener, and at a second signal, the program ends at once. Neither leaves a half-written
//! file. A command that another program runs in its process leaves signals to it; there that program asks.

use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vitpcm_masks::atomic_file;

type Listener = Box<dyn FnOnce() + Send>;

/// The listener for the next signal; without one the program ends.
static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

fn set_listener(listener: Option<Listener>) -> Option<Listener> {
    std::mem::replace(&mut LISTENER.lock().unwrap_or_else(PoisonError::into_inner), listener)
}

/// Installs the signal handler. Call once, before any command runs.
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

/// Who asks a command to stop.
#[derive(Clone)]
pub(crate) enum AskedBy {
    /// The user, by signals.
    Signals,
    /// The program that runs the command in its process, by this flag.
    Program(Arc<AtomicBool>),
}

/// Whether a command was asked to stop. On drop, signals end the program at once again.
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    asked_by: AskedBy,
}

impl Interrupt {
    /// Starts to listen.
    pub(crate) fn listen(asked_by: &AskedBy) -> Interrupt {
        let asked = match asked_by {
            AskedBy::Program(flag) => flag.clone(),
            AskedBy::Signals => {
                let asked = Arc::new(AtomicBool::new(false));
                let flag = asked.clone();
                on_first(move || flag.store(true, Ordering::SeqCst));
                asked
            }
        };
        Interrupt { asked, asked_by: asked_by.clone() }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// For work that polls a flag.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.asked
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        if matches!(self.asked_by, AskedBy::Signals) {
            set_listener(None);
        }
    }
}

/// Runs a closure when the user asks to stop.
pub(crate) fn on_first(stop: impl FnOnce() + Send + 'static) {
    set_listener(Some(Box::new(stop)));
}
