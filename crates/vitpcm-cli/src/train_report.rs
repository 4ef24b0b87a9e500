//! The report of `vitpcm train`: written at each validation and at the end, from the run folder alone (metrics.csv,
//! config.toml, the reviews of the last validation), so that a resumed run shows what came before.

use crate::invocation::Invocation;
use crate::output;
use crate::report::{self, Curves, MaskLinks, Page, Reviewed, Summary, escaped};
use crate::table::grouped;
use anyhow::Context;
use std::path::{Path, PathBuf};
use vitpcm::Review;
use vitpcm_train::{Ending, RunSummary, TrainJob};

/// Reviews of the last validation, below the run folder.
const REVIEWS: &str = ".report/validation.jsonl";

/// How far a run has come, for the page.
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

    /// Keeps what a validation said of its images.
    pub(crate) fn keep(&self, reviews: &[Review]) -> anyhow::Result<()> {
        let folder = self.reviews.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        report::write_all(&self.reviews, reviews)
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

        let mut page = Page::new("train", "Training report", self.lead(run, state, &curves));
        page.figure("epochs", &curves.last_epoch().to_string(), &format!("of {}", run.num_epochs));
        if let Some((epoch, score)) = curves.best() {
            page.figure("best score", &format!("{score:.2}"), &format!("epoch {epoch}"));
        }
        reviewed.put_figures(&mut page);
        page.section("course", "Course of the training", curves.charts());
        reviewed.put_sections(&mut page);
        page.origin_section(self.invocation, &self.config()?);
        output::write_file(&out.join("report.html"), page.html().as_bytes())
    }

    fn lead(&self, run: &RunSummary, state: State, curves: &Curves) -> String {
        let mut lead = format!(
            "<strong>{}</strong>, {:.1} million parameters, learns {} classes from the tags of {} images. ",
            escaped(&self.job.config.model.backbone),
            run.num_parameters as f64 / 1e6,
            run.num_classes - 1,
            grouped(run.num_images as u64)
        );
        lead += &match self.job.config.model.weights.as_deref() {
            Some("embedded") => "Its backbone started from the embedded weights. ".to_owned(),
            Some("none") => "It started from random numbers. ".to_owned(),
            Some(file) => format!("Its backbone started from {}. ", escaped(file)),
            None => String::new(),
        };
        lead += match state {
            State::Running => "The run goes on.",
            State::Ended(Ending::Finished) => "The run is finished.",
            State::Ended(Ending::OutOfPatience) => "The run ended because validation got no better any more.",
            State::Ended(Ending::Interrupted) => {
                "The run was interrupted; the same command with <code>--resume</code> goes on."
            }
        };
        if let Some(epoch) = curves.last_validated_epoch() {
            lead += &format!(
                " Masks below are of the validation after epoch {epoch}, tags given: {} images, {} with true masks, which \
                 serve these figures and the choice of the best epoch, never the learning.",
                grouped(run.num_validation_images as u64),
                grouped(run.num_validation_masks as u64)
            );
        }
        lead
    }

    fn config(&self) -> anyhow::Result<String> {
        let config = escaped(&self.job.config.to_toml()?);
        Ok(format!("<details><summary>All settings (config.toml)</summary><pre>{config}</pre></details>\n"))
    }
}
