//! The display of a training run: a few live lines on a terminal, plain lines elsewhere, and the report in the run
//! folder. Loss terms and the learning rate appear with `--verbose` only.

use crate::counting::{counted, images};
use crate::interrupt::Interrupt;
use crate::live_run::{self, Heard, LINE_EVERY, duration};
use crate::outcome::described;
use crate::output::Messages;
use crate::train_report::{State, TrainReport};
use indicatif::ProgressBar;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::Instant;
use vitpcm::Review;
use vitpcm_train::{Event, MetricsRow, RunSummary, TrainData, Validation};

/// Listens to a run and displays it.
pub(super) struct Display<'a> {
    messages: &'a Messages,
    data: &'a TrainData,
    pub(super) bar: ProgressBar,
    /// On the first rank only.
    report: Option<TrainReport<'a>>,
    run: Option<RunSummary>,
    num_epochs: usize,
    best: Option<f64>,
    pub(super) num_warnings: usize,
    last_line: Instant,
}

impl<'a> Display<'a> {
    pub(super) fn new(messages: &'a Messages, data: &'a TrainData, report: Option<TrainReport<'a>>) -> Self {
        let bar = live_run::steps_bar(messages);
        let (run, best, last_line) = (None, None, Instant::now());
        Display { messages, data, bar, report, run, num_epochs: 0, best, num_warnings: 0, last_line }
    }

    pub(super) fn listen(&mut self, receiver: &Receiver<Event>, interrupt: &Interrupt, stop: &AtomicBool) {
        live_run::listen(receiver, interrupt, stop, |heard| match heard {
            Heard::Event(event) => self.show(event),
            Heard::Stopping(text) => self.say(text),
        });
    }

    fn say(&self, text: impl std::fmt::Display) {
        self.bar.suspend(|| self.messages.note(text));
    }

    fn keep_and_report(&mut self, reviews: &[Review]) {
        match self.report.as_ref().map_or(Ok(()), |report| report.keep(reviews)) {
            Ok(()) => self.write_report(State::Running),
            Err(error) => self.warn_of_report(&error),
        }
    }

    /// Writes the report. A failure does not end the training.
    pub(super) fn write_report(&mut self, state: State) {
        if let (Some(report), Some(run)) = (&self.report, &self.run)
            && let Err(error) = report.write(run, state)
        {
            self.warn_of_report(&error);
        }
    }

    fn warn_of_report(&mut self, error: &anyhow::Error) {
        self.num_warnings += 1;
        let text = format!("the report could not be written: {}", described(error));
        self.bar.suspend(|| self.messages.failure(text));
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Note(text) => self.say(text),
            Event::Warning(text) => {
                self.num_warnings += 1;
                self.bar.suspend(|| self.messages.failure(text));
            }
            Event::Started(run) => {
                self.num_epochs = run.num_epochs;
                self.bar.set_length(run.steps_per_epoch * run.num_epochs as u64);
                self.bar.set_position(run.steps_before);
                self.say(self.beginning(&run));
                if self.messages.is_verbose() {
                    self.say(format!(
                        "training images of {size} × {size} pixels, {:.2} million parameters, {} per epoch",
                        run.num_parameters as f64 / 1e6,
                        counted(run.steps_per_epoch as usize, "step", "steps"),
                        size = run.train_size,
                    ));
                }
                if run.steps_before > 0 {
                    self.say(format!("continuing after step {}", run.steps_before));
                }
                self.run = Some(run);
            }
            Event::Step { row, num_steps, seconds_left } => self.show_step(&row, num_steps, seconds_left),
            Event::Epoch { epoch, mean_loss, validation, reviews, is_kept } => {
                let mut line = format!("epoch {epoch}/{}: loss {mean_loss:.4}", self.num_epochs);
                if let Some(validation) = validation {
                    line += &self.validated(&validation);
                    if is_kept && !self.data.keeps_newest() {
                        self.best = Some(validation.score);
                        line += ", best so far";
                    }
                }
                self.say(line);
                self.last_line = Instant::now();
                match reviews.is_empty() {
                    true => {}
                    // The report shows the model that is kept.
                    false if is_kept => self.keep_and_report(&reviews),
                    false => self.write_report(State::Running),
                }
            }
            Event::Saved { .. } => {}
        }
    }

    fn beginning(&self, run: &RunSummary) -> String {
        let mut line = format!(
            "learning {} from the tags of {}",
            counted(run.num_classes - 1, "class", "classes"),
            images(run.num_images)
        );
        let num_validation = images(run.num_validation_images);
        if !self.data.held_out.is_empty() {
            line += &format!("; {num_validation} held out to measure the result");
        } else if run.num_validation_images > 0 {
            line += &format!("; {num_validation} to choose the best epoch");
        }
        if run.num_validation_masks > 0 {
            line += &format!(", {} of them with true masks", run.num_validation_masks);
        }
        line
    }

    fn show_step(&mut self, row: &MetricsRow, num_steps: u64, seconds_left: f64) {
        let where_we_are = format!("epoch {}/{}", row.epoch, self.num_epochs);
        let speed = format!("{} left, {:.1} images a second", duration(seconds_left), row.images_per_second);
        let loss = match self.messages.is_verbose() {
            true => format!("step {}/{num_steps}, {}", row.step, losses(row)),
            false => format!("loss {:.4}", row.loss),
        };
        if self.bar.is_hidden() {
            if self.last_line.elapsed() >= LINE_EVERY {
                let percent = 100 * row.step / num_steps.max(1);
                self.say(format!("{where_we_are}: {percent} % done, {speed}, {loss}"));
                self.last_line = Instant::now();
            }
            return;
        }
        let best = self.best.map_or(String::new(), |best| format!(", best score {best:.2}"));
        self.bar.set_position(row.step);
        self.bar.set_prefix(format!("{where_we_are}: {speed}{best}"));
        self.bar.set_message(loss);
    }

    fn validated(&self, validation: &Validation) -> String {
        let which = if self.data.held_out.is_empty() { "validation" } else { "held-out" };
        let mut text = format!(", {which} tags {:.1} % right (F1)", validation.tag_f1);
        if let Some(miou) = validation.miou {
            text += &format!(", masks {miou:.2} % right (mIoU, tags given)");
        }
        if let Some(loss) = validation.et_loss.filter(|_| self.messages.is_verbose()) {
            text += &format!(", equivariance {loss:.4}");
        }
        text
    }
}

/// The terms of a step's loss, and the learning rate.
fn losses(row: &MetricsRow) -> String {
    let masks = match row.loss_masks {
        0.0 => String::new(),
        loss => format!(", masks {loss:.4}"),
    };
    format!(
        "loss {:.4} (tags {:.4}, equivariance {:.4}{masks}, penalty {:.4}), rate {:.2e}",
        row.loss, row.loss_mce, row.loss_et, row.loss_l2, row.rate
    )
}
