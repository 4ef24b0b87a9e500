//! What `train` and `verify` have in common: the options to resume, and while they run listening to the loop and to Ctrl-C at the
//! same time, and showing steps. What is said of a run's beginning and of its validations is left to them.

use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, usage};
use crate::output::Messages;
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use vitpcm_masks::text_file;
use vitpcm_train::{
    Event, MetricsRow, RunSummary, Settings, Start, TrainError, TrainOutcome, check_run, has_saved_state,
};

/// Where no live display is possible, a line is written this often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Events that may wait to be shown.
const UNHEARD: usize = 256;

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

    /// The settings that the run in this folder began with, where it is resumed and has begun.
    pub(crate) fn stored_settings<S: Settings>(&self, out: &Path) -> anyhow::Result<Option<S>> {
        if !self.resume || !has_saved_state(out) {
            return Ok(None);
        }
        let path = out.join("config.toml");
        let text = text_file::read(&path).with_context(|| format!("{}", path.display()))?;
        S::from_toml(&text).with_context(|| format!("{}", path.display())).map(Some).map_err(usage)
    }
}

/// Settings with the changes of `--set`.
pub(crate) fn with_changes<S: Settings>(settings: S, changes: &[String]) -> anyhow::Result<S> {
    changes.iter().try_fold(settings, |settings, change| settings.with(change)).map_err(usage)
}

/// Says how to go on with a run that was stopped.
pub(crate) fn stopped(steps: u64, model: &Path, messages: &Messages) -> Outcome {
    messages.note(format!(
        "stopped after step {steps}, state saved; the same command with --resume continues. The model so far: {}",
        model.display()
    ));
    Outcome::Interrupted
}

/// The files of a run folder that are rewritten during a run.
pub(crate) fn files(out: &Path) -> [PathBuf; 10] {
    [
        "config.toml", "model.safetensors", "metrics.csv", "thresholds.csv", "scores.json", "report.html",
        ".report/validation.jsonl", "last/state.safetensors", "last/images.jsonl", "last/held-out.json",
    ]
    .map(|name| out.join(name))
}

/// Trains on a thread of its own, so that this one can listen to it and to Ctrl-C, which it passes on by `stop`.
pub(crate) fn run(
    interrupt: &Interrupt,
    stop: &AtomicBool,
    mut hear: impl FnMut(Event),
    train: impl FnOnce(&SyncSender<Event>) -> Result<TrainOutcome, TrainError> + Send,
) -> anyhow::Result<TrainOutcome> {
    let (sender, receiver) = sync_channel(UNHEARD);
    let result = std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            let sender = sender; // dropped with the thread: that ends the listening
            train(&sender)
        });
        loop {
            if interrupt.is_asked() && !stop.swap(true, Ordering::Relaxed) {
                hear(Event::Note(
                    "finishing the step and saving; press Ctrl-C again to stop at once".to_owned(),
                ));
            }
            match receiver.recv_timeout(Duration::from_millis(50)) {
                Ok(event) => hear(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        trainer.join().map_err(|_| anyhow!("a bug stopped the training; please report it"))
    })?;
    result.map_err(|error| match error {
        TrainError::Config(_)
        | TrainError::RunFolder { .. }
        | TrainError::Ranks(_)
        | TrainError::Locked(_) => usage(error),
        error => error.into(),
    })
}

/// What people see of a run: a few live lines on a terminal, plain lines elsewhere. The parts of the loss and the learning rate
/// are said with `--verbose` only.
pub(crate) struct LiveRun<'a> {
    pub(crate) messages: &'a Messages,
    pub(crate) bar: ProgressBar,
    pub(crate) num_warnings: usize,
    num_steps: u64,
    last_line: Instant,
}

impl<'a> LiveRun<'a> {
    pub(crate) fn new(messages: &'a Messages) -> Self {
        // Where we are, a bar of steps, what the last one gave.
        let style = ProgressStyle::with_template("{prefix}\n{wide_bar} {percent} %\n{msg}");
        let bar = messages.progress_bar(0, "training").with_style(style.expect("the template is valid"));
        LiveRun { messages, bar, num_warnings: 0, num_steps: 0, last_line: Instant::now() }
    }

    pub(crate) fn say(&mut self, text: impl Display) {
        self.bar.suspend(|| self.messages.note(text));
        self.last_line = Instant::now();
    }

    pub(crate) fn warn(&mut self, text: impl Display) {
        self.num_warnings += 1;
        self.bar.suspend(|| self.messages.failure(text));
    }

    /// Says how a run begins; `details` with `--verbose`.
    pub(crate) fn start(&mut self, run: &RunSummary, beginning: &str, details: &str) {
        self.num_steps = run.num_steps;
        self.bar.set_length(run.num_steps);
        self.bar.set_position(run.steps_before);
        self.say(beginning);
        if self.messages.is_verbose() {
            self.say(details);
        }
        if run.steps_before > 0 {
            self.say(format!("continuing after step {}", run.steps_before));
        }
    }

    /// Shows a step; `more` stands behind where we are.
    pub(crate) fn show_step(&mut self, row: &MetricsRow, seconds_left: f64, where_we_are: &str, more: &str) {
        let speed = format!("{} left, {:.1} images a second", duration(seconds_left), row.images_per_second);
        let loss = match self.messages.is_verbose() {
            true => format!("step {}/{}, {}", row.step, self.num_steps, losses(row)),
            false => format!("loss {:.4}", row.losses.total),
        };
        self.bar.set_position(row.step);
        if !self.bar.is_hidden() {
            self.bar.set_prefix(format!("{where_we_are}: {speed}{more}"));
            self.bar.set_message(loss);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            let percent = 100 * row.step / self.num_steps.max(1);
            self.say(format!("{where_we_are}: {percent} % done, {speed}, {loss}"));
        }
    }
}

/// A step's loss with those of its parts that count, and its rate.
fn losses(row: &MetricsRow) -> String {
    let parts = row.losses.parts.iter().filter(|(_, loss)| *loss != 0.0);
    let parts: Vec<String> = parts.map(|(name, loss)| format!("{} {loss:.4}", name.about)).collect();
    format!("loss {:.4} ({}), rate {:.2e}", row.losses.total, parts.join(", "), row.rate)
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
