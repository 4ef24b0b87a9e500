//! What people see of training from tags, beside its steps: how it begins, its validations, and the report in the run folder.

use crate::counting::{counted, images};
use crate::live_run::LiveRun;
use crate::outcome::described;
use crate::output::Messages;
use crate::train_report::{State, TrainReport};
use vitpcm::Review;
use vitpcm_train::{Event, RunSummary, TrainData, Validation};

/// Shows what a run tells.
pub(super) struct Display<'a> {
    pub(super) live: LiveRun<'a>,
    data: &'a TrainData,
    /// On the first rank.
    report: Option<TrainReport<'a>>,
    run: Option<RunSummary>,
    num_epochs: usize,
    best: Option<f64>,
}

impl<'a> Display<'a> {
    pub(super) fn new(messages: &'a Messages, data: &'a TrainData, report: Option<TrainReport<'a>>) -> Self {
        Display { live: LiveRun::new(messages), data, report, run: None, num_epochs: 0, best: None }
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
        self.live.warn(format!("the report could not be written: {}", described(error)));
    }

    pub(super) fn show(&mut self, event: Event) {
        match event {
            Event::Note(text) => self.live.say(text),
            Event::Warning(text) => self.live.warn(text),
            Event::Started(run) => {
                self.num_epochs = run.num_epochs;
                let details = format!(
                    "training images of {size} × {size} pixels, {:.2} million parameters, {} an epoch",
                    run.num_parameters as f64 / 1e6,
                    counted(run.steps_per_epoch as usize, "step", "steps"),
                    size = run.train_size,
                );
                self.live.start(&run, &self.beginning(&run), &details);
                self.run = Some(run);
            }
            Event::Step { row, seconds_left } => {
                let where_we_are = format!("epoch {}/{}", row.epoch, self.num_epochs);
                let best = self.best.map_or(String::new(), |best| format!(", best score {best:.2}"));
                self.live.show_step(&row, seconds_left, &where_we_are, &best);
            }
            Event::Validated { epoch, mean_loss, validation, reviews, is_kept, .. } => {
                let mut line = format!("epoch {epoch}/{}: loss {mean_loss:.4}", self.num_epochs);
                if let Some(validation) = validation {
                    line += &self.validated(&validation);
                    if is_kept && !self.data.keeps_newest() {
                        self.best = validation.score;
                        line += ", best so far";
                    }
                }
                self.live.say(line);
                match reviews.is_empty() {
                    true => {}
                    // The report shows the model that is kept.
                    false if is_kept => self.keep_and_report(&reviews),
                    false => self.write_report(State::Running),
                }
            }
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

    fn validated(&self, validation: &Validation) -> String {
        let which = if self.data.held_out.is_empty() { "validation" } else { "held-out" };
        let mut text = match validation.tag_f1 {
            Some(tag_f1) => format!(", {which} tags {tag_f1:.1} % right (F1)"),
            None => String::new(),
        };
        if let Some(miou) = validation.miou {
            text += &format!(", masks {miou:.2} % right (mIoU, tags given)");
        }
        if let Some(loss) = validation.et_loss.filter(|_| self.live.messages.is_verbose()) {
            text += &format!(", equivariance {loss:.4}");
        }
        text
    }
}
