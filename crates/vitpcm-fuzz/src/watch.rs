//! Remembers the current input for the two failures that leave no other chance to report it: a target that never
//! returns, and an allocation beyond all limits.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A target that has not returned after this long counts as hung. Long, because the machine may be busy.
const HANG: Duration = Duration::from_secs(30);

struct Current {
    input: Vec<u8>,
    place: PathBuf,
    started: Instant,
}

static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// Registers the current input, and where to save it on failure.
pub(crate) fn begin(input: &[u8], place: &std::path::Path) {
    let mut current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &mut *current {
        Some(current) => {
            current.input.clear();
            current.input.extend_from_slice(input);
            current.started = Instant::now();
            if current.place != place {
                current.place = place.to_path_buf();
            }
        }
        none => {
            *none =
                Some(Current { input: input.to_vec(), place: place.to_path_buf(), started: Instant::now() });
        }
    }
}

/// No input is running.
pub(crate) fn end() {
    *CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
}

/// Saves the current input and prints a message. Called before the program ends.
#[allow(clippy::print_stderr, reason = "the last words of a program that ends here")]
pub(crate) fn save_current_input(why: &str) {
    // `try_lock`, because the lock's holder may be the caller.
    let Ok(mut current) = CURRENT.try_lock() else { return };
    if let Some(current) = current.take() {
        let saved = std::fs::write(&current.place, &current.input);
        eprintln!("{why}; the input is kept in {} ({saved:?})", current.place.display());
    }
}

/// Starts a thread that saves the input and ends the program if a target hangs.
pub fn watch_for_hangs() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let is_hanging = match CURRENT.lock() {
                Ok(current) => current.as_ref().is_some_and(|current| current.started.elapsed() > HANG),
                Err(_) => false,
            };
            if is_hanging {
                save_current_input("a target does not return");
                std::process::exit(1);
            }
        }
    });
}
