//! The stages of a job as command lines: what `vitpcm masks` runs is what it prints.

use super::plan::Plan;
use crate::folder_record::FolderRecord;
use crate::mask_formats::Format;
use crate::outcome::Outcome;
use crate::session::Session;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where a job keeps its files. What only serves to go on lies in a hidden folder, which readers of masks pass over.
pub(crate) struct Folders {
    data: PathBuf,
    /// The images of the data set.
    images: PathBuf,
    out: PathBuf,
    pub(super) work: PathBuf,
}

impl Folders {
    pub(super) fn new(data: &Path, images: &Path, out: &Path) -> Folders {
        let [data, images, work] = [data.to_path_buf(), images.to_path_buf(), out.join(".masks")];
        Folders { data, images, out: out.to_path_buf(), work }
    }

    pub(super) fn progress(&self) -> PathBuf {
        self.work.join("progress.json")
    }

    fn round(&self, number: usize) -> PathBuf {
        self.work.join(format!("round-{number}"))
    }

    /// The refined masks of the first round, where a second one follows.
    fn first_masks(&self) -> PathBuf {
        self.work.join("first-masks")
    }

    /// The masks that the second round learns from.
    pub(super) fn chosen_masks(&self) -> PathBuf {
        self.work.join("chosen-masks")
    }

    pub(super) fn final_model(&self, plan: &Plan) -> PathBuf {
        self.round(if plan.second_round_epochs.is_some() { 2 } else { 1 }).join("model.safetensors")
    }
}

/// Whether a stage was begun by an earlier run of the same job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    Before,
    Now,
}

/// One command of a job.
pub(crate) struct Stage {
    pub(super) what: &'static str,
    words: Vec<OsString>,
    start: Start,
}

/// How a stage starts that was begun before.
enum Start {
    /// From the run in its folder, if one began.
    FromRun(PathBuf),
    /// From the results in its folder, if there are any.
    FromResults(PathBuf),
    /// Anew.
    Anew,
}

impl Stage {
    /// The command as a line to paste.
    pub(super) fn shown(&self) -> String {
        crate::invocation::shell_line(&self.words)
    }

    /// Runs the command; one that was begun before goes on from what it left.
    pub(super) fn run(&self, begun: Begun, session: &Session) -> anyhow::Result<Outcome> {
        let mut words = self.words.clone();
        if begun == Begun::Before && self.can_resume() {
            words.push("--resume".into());
        }
        crate::run_stage(&words, session)
    }

    fn can_resume(&self) -> bool {
        match &self.start {
            Start::FromRun(run) => vitpcm_train::has_run(run),
            Start::FromResults(out) => FolderRecord::read(out).is_ok_and(|record| record.exists()),
            Start::Anew => false,
        }
    }
}

/// The commands that a plan comes to.
pub(super) fn of_plan(plan: &Plan, folders: &Folders, formats: &[Format]) -> Vec<Stage> {
    let blocks = format!("schedule.unfreeze={}", plan.blocks);
    let train = |what, round: usize, epochs: usize| {
        let mut words = words(["vitpcm", "train", "--data"]);
        words.extend([folders.data.clone().into(), "--out".into(), folders.round(round).into()]);
        words.extend(["--epochs".into(), epochs.to_string().into(), "--set".into(), blocks.clone().into()]);
        // All images are trained on: all of them get masks.
        words.extend(["--set".into(), "validation.held_out=0".into()]);
        Stage { what, words, start: Start::FromRun(folders.round(round)) }
    };
    let segment = |what, round: usize, out: &Path, formats: &str| {
        let mut words = words(["vitpcm", "segment"]);
        words.extend([folders.images.clone().into(), "--tags-file".into(), folders.data.clone().into()]);
        words.push("--listed-only".into());
        words.extend(["--model".into(), folders.round(round).join("model.safetensors").into()]);
        words.extend(["--size".into(), plan.size.to_string().into(), "--crf".into()]);
        words.extend(["--format".into(), formats.into(), "--out".into(), out.into()]);
        Stage { what, words, start: Start::FromResults(out.to_path_buf()) }
    };
    let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    let mut stages = vec![train("learning from the tags", 1, plan.epochs)];
    let last = match plan.second_round_epochs {
        None => 1,
        Some(epochs) => {
            let mut first = segment("first masks", 1, &folders.first_masks(), "png");
            first.words.push("--no-report".into());
            let mut chosen = words(["vitpcm", "propose", "--data"]);
            chosen.extend([folders.data.clone().into(), "--masks".into(), folders.first_masks().into()]);
            chosen.extend(["--out".into(), folders.chosen_masks().into()]);
            let what = "choosing masks to learn from";
            let chosen = Stage { what, words: chosen, start: Start::Anew };
            let mut second = train("learning from the tags and the chosen masks", 2, epochs);
            second.words.extend(["--pseudo-masks".into(), folders.chosen_masks().into()]);
            stages.extend([first, chosen, second]);
            2
        }
    };
    stages.push(segment("masks", last, &folders.out, &names.join(",")));
    stages
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(second_round_epochs: Option<usize>) -> Vec<String> {
        let plan = Plan { size: 448, blocks: 5, epochs: 20, second_round_epochs, seconds: 60.0 };
        let folders = Folders::new(Path::new("my leaves"), Path::new("my leaves/images"), Path::new("out"));
        of_plan(&plan, &folders, &[Format::Png, Format::Overlay]).iter().map(Stage::shown).collect()
    }

    #[test]
    fn two_rounds_are_five_commands_to_paste() {
        assert_eq!(
            lines(Some(10)),
            [
                "vitpcm train --data 'my leaves' --out out/.masks/round-1 --epochs 20 --set schedule.unfreeze=5 \
                 --set validation.held_out=0",
                "vitpcm segment 'my leaves/images' --tags-file 'my leaves' --listed-only --model out/.masks/round-1/model.safetensors \
                 --size 448 --crf --format png --out out/.masks/first-masks --no-report",
                "vitpcm propose --data 'my leaves' --masks out/.masks/first-masks --out out/.masks/chosen-masks",
                "vitpcm train --data 'my leaves' --out out/.masks/round-2 --epochs 10 --set schedule.unfreeze=5 \
                 --set validation.held_out=0 --pseudo-masks out/.masks/chosen-masks",
                "vitpcm segment 'my leaves/images' --tags-file 'my leaves' --listed-only --model out/.masks/round-2/model.safetensors \
                 --size 448 --crf --format png,overlay --out out",
            ]
        );
    }

    #[test]
    fn one_round_is_two_commands() {
        let lines = lines(None);
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains("round-1/model.safetensors"), "{}", lines[1]);
    }
}
