//! Shared by `train` and `verify`: the options to resume, the progress bar, and listening to the training loop and to
//! Ctrl-C at the same time. The messages for each event are left to them.

use crate::interrupt::Interrupt;
use crate::outcome::usage;
use crate::output::Messages;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use vitpcm_train::{Start, check_run};

/// Interval of progress lines without a live display.
pub(crate) const LINE_EVERY: Duration = Duration::from_secs(10);

/// Capacity of the event queue.
pub(crate) const UNHEARD: usize = 256;

/// Options to resume a run.
#[derive(clap::Args)]
pub(crate) struct Resuming {
    /// Continue the run in --out where it stopped, with its own settings
    #[arg(long)]
    pub(crate) resume: bool,
    /// With --resume: continue although training images or masks changed since the run began
    #[arg(long, requires = "resume")]
    accept_changed_images: bool,
}

impl Resuming {
    /// How a run in this folder starts. Fails if it should be resumed and there is none.
    pub(crate) fn start(&self, out: &Path) -> anyhow::Result<Start> {
        if self.resume {
            check_run(out).map_err(usage)?;
        }
        Ok(match (self.resume, self.accept_changed_images) {
            (false, _) => Start::Fresh,
            (true, false) => Start::Resume,
            (true, true) => Start::ResumeWithChangedImages,
        })
    }
}

/// The files of a run folder that are rewritten during a run.
pub(crate) fn files(out: &Path) -> [PathBuf; 10] {
    [
        "config.toml",
        "model.safetensors",
        "metrics.csv",
        "thresholds.csv",
        "scores.json",
        "report.html",
        ".report/validation.jsonl",
        "last/state.safetensors",
        "last/images.jsonl",
        "last/held-out.json",
    ]
    .map(|name| out.join(name))
}

/// A progress bar with a few lines: position, bar of steps, last result.
pub(crate) fn steps_bar(messages: &Messages) -> ProgressBar {
    let template = "{prefix}\n{wide_bar} {percent} %\n{msg}";
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    messages.progress_bar(0, "steps").with_style(style)
}

/// What a run's listener receives.
pub(crate) enum Heard<E> {
    /// An event from the training loop.
    Event(E),
    /// The user asked to stop, and the loop was told; sent once.
    Stopping(&'static str),
}

/// Listens until the loop ends, and forwards a request to stop.
pub(crate) fn listen<E>(
    receiver: &Receiver<E>,
    interrupt: &Interrupt,
    stop: &AtomicBool,
    mut hear: impl FnMut(Heard<E>),
) {
    loop {
        if interrupt.is_asked() && !stop.swap(true, Ordering::Relaxed) {
            hear(Heard::Stopping("finishing the step and saving; press Ctrl-C again to stop at once"));
        }
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(event) => hear(Heard::Event(event)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A duration for people.
pub(crate) fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match seconds {
        _ if seconds < 90.0 => format!("{seconds:.0} s"),
        _ if minutes < 90 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_to_what_matters() {
        assert_eq!([12.4, 100.0, 7300.0].map(duration), ["12 s", "2 min", "2 h 2 min"]);
    }
}
