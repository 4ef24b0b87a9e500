//! The stages of a job as command lines: what `vitpcm masks` runs is what it prints.

use super::plan::{MasksBy, Plan, Way};
use crate::folder_record::FolderRecord;
use crate::head_contest::GIVEN;
use crate::mask_formats::Format;
use crate::model_path::MODEL_FILE;
use crate::outcome::Outcome;
use crate::session::Session;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// All images are trained on, since all of them get masks; no true masks of a validation split choose anything.
const ALL_IMAGES: [&str; 2] = ["--val-share", "0"];

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

    /// What all rounds share of the frozen blocks' work.
    pub(super) fn features(&self) -> PathBuf {
        self.work.join("features")
    }

    /// The refined masks of a round that another one follows.
    fn masks_of(&self, round: usize) -> PathBuf {
        self.work.join(format!("masks-{round}"))
    }

    /// The masks that a round learns from: those of the round before, checked before the second.
    fn learned_from(&self, round: usize) -> PathBuf {
        if round == 2 { self.work.join("chosen-masks") } else { self.masks_of(round - 1) }
    }

    /// What `propose` says of the masks that it compared.
    fn ranking(&self) -> PathBuf {
        self.work.join("ranking.json")
    }

    /// Who made the masks that the second round learns from; the network, until they are chosen.
    pub(super) fn masks_by(&self) -> MasksBy {
        let ranking = std::fs::read(self.ranking()).unwrap_or_default();
        match serde_json::from_slice::<Chosen>(&ranking) {
            Ok(Chosen { chosen }) if chosen != GIVEN => MasksBy::Heads,
            _ => MasksBy::Network,
        }
    }

    fn model(&self, round: usize) -> PathBuf {
        self.round(round).join(MODEL_FILE)
    }

    /// The model that makes the masks that are kept: the last round's, or the heads' where no round follows them.
    pub(super) fn final_model(&self, plan: &Plan, masks: MasksBy) -> PathBuf {
        match (plan.later(masks), masks) {
            ((_, []), MasksBy::Heads) => self.learned_from(2).join(MODEL_FILE),
            ((_, later), _) => self.model(1 + later.len()),
        }
    }
}

/// The part of a ranking that decides how a job goes on.
#[derive(Deserialize)]
struct Chosen {
    chosen: String,
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

    /// Whether it runs a model on all images.
    pub(super) fn makes_masks(&self) -> bool {
        matches!(self.start, Start::FromResults(_))
    }

    fn can_resume(&self) -> bool {
        match &self.start {
            Start::FromRun(run) => vitpcm_train::has_run(run),
            Start::FromResults(out) => FolderRecord::read(out).is_ok_and(|record| record.exists()),
            Start::Anew => false,
        }
    }
}

/// The commands that a plan comes to, when the masks of its second round are made by those.
pub(super) fn of_plan(plan: &Plan, masks: MasksBy, folders: &Folders, formats: &[Format]) -> Vec<Stage> {
    let train = |what, way: Way, round: usize, epochs: usize| {
        let mut words = words(["vitpcm", "train", "--data"]);
        words.extend([folders.data.clone().into(), "--out".into(), folders.round(round).into()]);
        words.extend(["--epochs".into(), epochs.to_string().into()]);
        words.extend(ALL_IMAGES.map(OsString::from));
        let mut set = |setting: String| words.extend(["--set".into(), setting.into()]);
        set(format!("schedule.unfreeze={}", way.blocks));
        if way != Way::FULL {
            set(format!("model.grid={}", way.grid));
            set(format!("schedule.effective_batch={}", way.batch));
            words.extend(["--batch".into(), way.batch.to_string().into()]);
        }
        if way.pool > 0 {
            words.extend(["--set".into(), format!("views.pool={}", way.pool).into()]);
            words.extend(["--features".into(), folders.features().into()]);
        }
        Stage { what, words, start: Start::FromRun(folders.round(round)) }
    };
    let segment = |what, model: &Path, size: usize, out: &Path, formats: &str| {
        let mut words = words(["vitpcm", "segment"]);
        words.extend([folders.images.clone().into(), "--tags-file".into(), folders.data.clone().into()]);
        words.push("--listed-only".into());
        words.extend(["--model".into(), model.into()]);
        words.extend(["--size".into(), size.to_string().into(), "--crf".into()]);
        words.extend(["--format".into(), formats.into(), "--out".into(), out.into()]);
        Stage { what, words, start: Start::FromResults(out.to_path_buf()) }
    };
    let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    let mut stages = Vec::new();
    stages.push(train("learning from the tags", plan.way, 1, plan.rounds[0]));
    let to_learn_from = |round: usize| {
        let out = folders.masks_of(round);
        let mut masks = segment("masks to learn from", &folders.model(round), plan.way.size, &out, "png");
        masks.words.push("--no-report".into());
        masks
    };
    let check = |masks: PathBuf| {
        let mut words = words(["vitpcm", "propose", "--data"]);
        words.extend([folders.data.clone().into(), "--masks".into(), masks.into()]);
        words.extend(["--out".into(), folders.learned_from(2).into()]);
        words.extend(ALL_IMAGES.map(OsString::from));
        words.extend(["--max-images".into(), plan.images_for_heads.to_string().into()]);
        words.extend(["--json".into(), folders.ranking().into()]);
        Stage { what: "checking these masks", words, start: Start::Anew }
    };
    let final_masks = |model: &Path| segment("masks", model, plan.final_size, &folders.out, &names.join(","));
    if plan.rounds.len() > 1 {
        stages.push(to_learn_from(1));
        stages.push(check(folders.masks_of(1)));
    } else if plan.after_heads.is_some() {
        stages.push(final_masks(&folders.model(1)));
        stages.push(check(folders.out.clone()));
        if masks == MasksBy::Network {
            return stages;
        }
    }
    let (way, later) = plan.later(masks);
    for (round, &epochs) in (2..).zip(later) {
        if round > 2 {
            stages.push(to_learn_from(round - 1));
        }
        let mut learning = train("learning from tags and masks", way, round, epochs);
        learning.words.extend(["--pseudo-masks".into(), folders.learned_from(round).into()]);
        stages.push(learning);
    }
    let mut masks = final_masks(&folders.final_model(plan, masks));
    if !later.is_empty() {
        masks.words.extend(["--compare".into(), folders.learned_from(1 + later.len()).into()]);
    }
    stages.push(masks);
    stages
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rounds: &[usize]) -> Vec<String> {
        lines_of(Way::FULL, rounds)
    }

    fn lines_of(way: Way, rounds: &[usize]) -> Vec<String> {
        lines_after(MasksBy::Network, way, rounds, &[])
    }

    fn lines_after(masks: MasksBy, way: Way, rounds: &[usize], after_heads: &[usize]) -> Vec<String> {
        let after_heads = Some(after_heads.to_vec());
        let plan = Plan {
            way,
            final_size: 672,
            rounds: rounds.to_vec(),
            after_heads,
            images_for_heads: 300,
            seconds: 60.0,
        };
        let folders = Folders::new(Path::new("my leaves"), Path::new("my leaves/images"), Path::new("out"));
        let stages = of_plan(&plan, masks, &folders, &[Format::Png, Format::Overlay]);
        stages.iter().map(Stage::shown).collect()
    }

    #[test]
    fn after_heads_the_later_rounds_are_other_ones() {
        let [before, after] =
            [MasksBy::Network, MasksBy::Heads].map(|masks| lines_after(masks, Way::SHORT, &[4, 2, 2], &[9]));
        assert_eq!((before.len(), after.len()), (7, 5));
        assert_eq!(before[..3], after[..3], "what is done by then");
        assert!(after[3].contains("--epochs 9") && !after[3].contains("model.grid"), "{}", after[3]);
        assert!(after[4].contains("round-2/model"), "{}", after[4]);
    }

    #[test]
    fn without_time_for_another_round_a_head_makes_the_masks() {
        let lines = lines_after(MasksBy::Heads, Way::SHORT, &[4, 2], &[]);
        assert_eq!(lines.len(), 4);
        assert!(lines[3].contains("--model out/.masks/chosen-masks/model.safetensors"), "{}", lines[3]);
        assert!(!lines[3].contains("--compare"), "{}", lines[3]);
    }

    #[test]
    fn two_rounds_are_five_commands_to_paste() {
        assert_eq!(
            lines(&[20, 10]),
            [
                "vitpcm train --data 'my leaves' --out out/.masks/round-1 --epochs 20 --val-share 0 \
                 --set schedule.unfreeze=5",
                "vitpcm segment 'my leaves/images' --tags-file 'my leaves' --listed-only --model out/.masks/round-1/model.safetensors \
                 --size 448 --crf --format png --out out/.masks/masks-1 --no-report",
                "vitpcm propose --data 'my leaves' --masks out/.masks/masks-1 --out out/.masks/chosen-masks --val-share 0 \
                 --max-images 300 --json out/.masks/ranking.json",
                "vitpcm train --data 'my leaves' --out out/.masks/round-2 --epochs 10 --val-share 0 \
                 --set schedule.unfreeze=5 --pseudo-masks out/.masks/chosen-masks",
                "vitpcm segment 'my leaves/images' --tags-file 'my leaves' --listed-only --model out/.masks/round-2/model.safetensors \
                 --size 672 --crf --format png,overlay --out out --compare out/.masks/chosen-masks",
            ]
        );
    }

    #[test]
    fn a_third_round_learns_from_the_masks_of_the_second() {
        let lines = lines(&[20, 10, 10]);
        assert_eq!(lines.len(), 7);
        assert!(lines[5].ends_with("--pseudo-masks out/.masks/masks-2"), "{}", lines[5]);
        assert!(
            lines[6].contains("round-3/model") && lines[6].ends_with("--compare out/.masks/masks-2"),
            "{}",
            lines[6]
        );
    }

    #[test]
    fn rounds_share_the_features_that_are_kept() {
        let lines = lines_of(Way::SHORTEST, &[6, 3]);
        for line in [&lines[0], &lines[3]] {
            assert!(
                line.contains(
                    "--val-share 0 --set schedule.unfreeze=2 --set model.grid=20 --set schedule.effective_batch=8 \
                     --batch 8 --set views.pool=2 --features out/.masks/features"
                ),
                "{line}"
            );
        }
    }

    #[test]
    fn the_masks_of_one_round_are_checked_and_made_again_by_a_better_head() {
        let [kept, replaced] =
            [MasksBy::Network, MasksBy::Heads].map(|masks| lines_after(masks, Way::SHORT, &[4], &[]));
        assert_eq!((kept.len(), replaced.len()), (3, 4));
        assert_eq!(kept[..], replaced[..3], "what is done by then");
        assert!(
            kept[1].contains("round-1/model.safetensors") && kept[1].ends_with("--out out"),
            "{}",
            kept[1]
        );
        assert!(
            kept[2]
                .starts_with("vitpcm propose --data 'my leaves' --masks out --out out/.masks/chosen-masks")
        );
        assert!(replaced[3].contains("chosen-masks/model.safetensors") && replaced[3].ends_with("--out out"));
    }

    #[test]
    fn without_a_check_one_round_is_two_commands() {
        let plan = Plan {
            way: Way::SHORTEST,
            final_size: 448,
            rounds: vec![1],
            after_heads: None,
            images_for_heads: 200,
            seconds: 60.0,
        };
        let folders = Folders::new(Path::new("a"), Path::new("a"), Path::new("out"));
        assert_eq!(of_plan(&plan, MasksBy::Network, &folders, &[Format::Png]).len(), 2);
    }
}
