//! The report of `vitpcm train`, written at each validation and at the end. It is built from the run folder alone
//! (metrics.csv, config.toml, the last validation's reviews), so a resumed run shows its whole history.

use crate::counting::{counted, images};
use crate::invocation::Invocation;
use crate::output;
use crate::report::{self, Curves, MaskLinks, Page, Reviewed, Summary, escaped};
use crate::train::why_not_measured;
use crate::verdict::{MeasuredOn, Verdict};
use anyhow::Context;
use std::path::{Path, PathBuf};
use vitpcm::Review;
use vitpcm_train::{Ending, RunSummary, Settings, TrainJob};

/// Reviews of the last validation, below the run folder.
const REVIEWS: &str = ".report/validation.jsonl";

/// State of the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Ended(Ending),
}

/// The report of one run.
pub(crate) struct TrainReport<'a> {
    job: &'a TrainJob,
    invocation: &'a Invocation,
    reviews: PathBuf,
}

impl<'a> TrainReport<'a> {
    pub(crate) fn new(job: &'a TrainJob, invocation: &'a Invocation) -> Self {
        TrainReport { job, invocation, reviews: job.out.join(REVIEWS) }
    }

    /// Stores the reviews of a validation.
    pub(crate) fn keep(&self, reviews: &[Review]) -> anyhow::Result<()> {
        let folder = self.reviews.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        report::write_all(&self.reviews, reviews)
    }

    /// The verdict on the kept model.
    pub(crate) fn verdict(&self) -> anyhow::Result<Verdict> {
        let curves = Curves::read(&self.job.out.join("metrics.csv"))?;
        let reviews = report::read_all(&self.reviews)?;
        if reviews.is_empty() {
            return Ok(Verdict::NotMeasured(why_not_measured(self.job)));
        }
        let data = &self.job.data;
        let mut learned = vec![0; data.classes.len()];
        for tag in data.training.iter().flat_map(|image| image.tags.iter()) {
            learned[usize::from(tag)] += 1;
        }
        let on = if data.held_out.is_empty() { MeasuredOn::ValidationSplit } else { MeasuredOn::HeldOut };
        Ok(Verdict::new(on, &data.classes, &learned, &reviews, &curves.tag_f1()))
    }

    /// Writes `report.html` into the run folder.
    pub(crate) fn write(&self, run: &RunSummary, state: State) -> anyhow::Result<()> {
        let out = &self.job.out;
        let curves = Curves::read(&out.join("metrics.csv"))?;
        let rows = report::read_all(&self.reviews)?;
        let mut summary = Summary::new(&self.job.data.classes, self.job.config.validation.tag_threshold);
        rows.iter().for_each(|review| _ = summary.add(review));
        let rows: Vec<Review> = rows.into_iter().filter(|review| summary.fits(review)).collect();
        let reviewed =
            Reviewed { summary: &summary, rows: &rows, links: MaskLinks::None, what: "validation images" };

        let verdict = match state {
            State::Ended(Ending::Finished | Ending::OutOfPatience) => Some(self.verdict()?),
            State::Ended(Ending::Interrupted) | State::Running => None,
        };
        let lead = self.lead(run, state, &curves, verdict.as_ref());
        let mut page = Page::new("train", "Training report", lead);
        page.figure("epochs", &curves.last_epoch().to_string(), &format!("of {}", run.num_epochs));
        if let Some((epoch, score)) = curves.best().filter(|_| !self.job.data.keeps_newest()) {
            page.figure("best score", &format!("{score:.2}"), &format!("epoch {epoch}"));
        }
        reviewed.put_figures(&mut page);
        page.section("course", "Training curves", curves.charts());
        reviewed.put_sections(&mut page);
        page.section("verdict", "Verdict", verdict.map_or(String::new(), |verdict| verdict.html()));
        page.origin_section(self.invocation, &self.config()?);
        output::write_file(&out.join("report.html"), page.html().as_bytes())
    }

    fn lead(&self, run: &RunSummary, state: State, curves: &Curves, verdict: Option<&Verdict>) -> String {
        let mut lead = format!(
            "<strong>{}</strong>, {:.1} million parameters, learns {} from the tags of {}. ",
            escaped(&self.job.config.model.backbone),
            run.num_parameters as f64 / 1e6,
            counted(run.num_classes - 1, "class", "classes"),
            images(run.num_images)
        );
        lead += &match self.job.config.model.weights.as_deref() {
            Some("embedded") => "Its backbone started from the embedded weights. ".to_owned(),
            Some("none") => "It started from random weights. ".to_owned(),
            Some(file) => format!("Its backbone started from {}. ", escaped(file)),
            None => String::new(),
        };
        lead += match state {
            State::Running => "The run goes on.",
            State::Ended(Ending::Finished) => "All epochs are done.",
            State::Ended(Ending::OutOfPatience) => {
                "The run ended early because validation stopped improving."
            }
            State::Ended(Ending::Interrupted) => {
                "The run was interrupted; the same command with <code>--resume</code> continues."
            }
        };
        if let Some(verdict) = verdict {
            lead += &format!(" <strong>Verdict: {}</strong>", escaped(&verdict.sentence()));
        }
        let keeps_newest = self.job.data.keeps_newest();
        let kept =
            if keeps_newest { curves.last_validated_epoch() } else { curves.best().map(|best| best.0) };
        if let Some(epoch) = kept {
            let serve = match keeps_newest {
                true => "these figures",
                false => "these figures and the choice of the best epoch",
            };
            lead += &format!(
                " Masks below are of the model after epoch {epoch}, tags given: {}, {} with true masks, used for {serve}, \
                 never for training.",
                images(run.num_validation_images),
                run.num_validation_masks
            );
        }
        lead
    }

    fn config(&self) -> anyhow::Result<String> {
        let config = escaped(&self.job.config.to_toml()?);
        Ok(format!("<details><summary>All settings (config.toml)</summary><pre>{config}</pre></details>\n"))
    }
}
