//! What is being tried now, for the two ends that leave no other chance to say it: a target that never returns, and an
//! allocation beyond all limits.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A target that has not returned after this long never will. Long, because the machine may be busy with something else.
const HANG: Duration = Duration::from_secs(30);

struct Current {
    input: Vec<u8>,
    place: PathBuf,
    started: Instant,
}

static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// Says what is tried from now on, and where to keep it if the worst happens.
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

/// Nothing is tried any more.
pub(crate) fn end() {
    *CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
}

/// Keeps the input that is being tried, and says so. Called on the way out.
#[allow(clippy::print_stderr, reason = "the last words of a program that ends here")]
pub(crate) fn save_current_input(why: &str) {
    // `try_lock`: whoever holds it may be the one that asks.
    let Ok(mut current) = CURRENT.try_lock() else { return };
    if let Some(current) = current.take() {
        let saved = std::fs::write(&current.place, &current.input);
        eprintln!("{why}; the input is kept in {} ({saved:?})", current.place.display());
    }
}

/// Starts a thread that ends the program, with its input kept, once a target does not return.
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
