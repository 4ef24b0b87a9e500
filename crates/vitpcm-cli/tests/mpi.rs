//! Several ranks, started by `mpirun` as a user does: the same run as one process, whatever happens to a rank.
//! Needs Open MPI's `mpirun`.
#![cfg(all(feature = "mpi", target_os = "linux"))]

mod program;
mod untrained;

use program::{Folder, check};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vitpcm_data::DrawnScenes;

const VITPCM: &str = env!("CARGO_BIN_EXE_vitpcm");

/// Six epochs of three steps of eight images (the last of four), in batches of four.
const SMALL: [&str; 12] = [
    "--preset=demo",
    "--quiet",
    "--epochs=6",
    "--batch=4",
    "--threads=1",
    "--set=model.grid=4",
    "--set=model.inference_grid=4",
    "--set=validation.grid=4",
    "--set=model.lstm_units=8",
    "--set=schedule.effective_batch=8",
    "--set=validation.every_epochs=1",
    "--set=loader.save_minutes=0.002",
];
const DROPOUT: &str = "--set=model.dropout.backbone=0.1";

impl Folder {
    fn with_scenes() -> Folder {
        let scratch = Folder::new();
        DrawnScenes { seed: 2, side: 40 }.write(&scratch.path("data"), 20, 5).unwrap();
        scratch
    }

    fn train_arguments(&self, out: &str, more: &[&str]) -> Vec<String> {
        let mut arguments =
            ["train", "--data", &self.text("data"), "--out", &self.text(out)].map(str::to_owned).to_vec();
        arguments.extend(SMALL.iter().chain(more).map(|&argument| argument.to_owned()));
        arguments
    }

    /// Trains on so many ranks; 1 means without `mpirun`.
    fn start(&self, ranks: usize, out: &str, more: &[&str]) -> Child {
        start(ranks, &self.train_arguments(out, more))
    }

    fn rows(&self, out: &str) -> Vec<Vec<f64>> {
        let text = std::fs::read_to_string(self.path(out).join("metrics.csv")).unwrap_or_default();
        let cell = |cell: &str| cell.parse().unwrap_or(f64::NAN);
        text.lines().skip(1).map(|line| line.split(',').map(cell).collect()).collect()
    }

    /// Starts a run and waits until it is so far, and still running.
    #[track_caller]
    fn start_and_wait_for_rows(&self, ranks: usize, out: &str, more: &[&str], rows: usize) -> Child {
        let mut child = self.start(ranks, out, more);
        let start = Instant::now();
        while self.rows(out).len() < rows {
            assert!(start.elapsed() < Duration::from_secs(300), "no {rows} rows in five minutes");
            if child.try_wait().unwrap().is_some() {
                panic!("ended before row {rows}: {:?}", child.wait_with_output());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    /// Holds the losses and the validation of two whole runs together.
    #[track_caller]
    fn check_same(&self, one: &str, other: &str) {
        let heading = std::fs::read_to_string(self.path(one).join("metrics.csv")).unwrap();
        let columns: Vec<&str> = heading.lines().next().unwrap().split(',').collect();
        let (one, other) = (self.rows(one), self.rows(other));
        assert_eq!((one.len(), other.len()), (18, 18));
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one[..3], other[..3], "epoch, step, images");
            for (column, &name) in columns.iter().enumerate().skip(3) {
                let tolerance = match name {
                    "images_per_second" => continue,
                    name if name.starts_with("val_") => 0.5, // percent
                    _ => 1e-4,
                };
                let (one_value, other_value) = (one[column], other[column]);
                let close = (one_value - other_value).abs() <= tolerance;
                assert!(close || (one_value.is_nan() && other_value.is_nan()), "{one:?}\n{other:?}");
            }
        }
    }
}

fn mpirun() -> Command {
    let mut command = Command::new("mpirun");
    // As root in a container, on fewer cores than ranks.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["--oversubscribe", "--bind-to", "none"]);
    command
}

fn start(ranks: usize, arguments: &[impl AsRef<std::ffi::OsStr>]) -> Child {
    let mut command = match ranks {
        1 => Command::new(VITPCM),
        _ => {
            let mut command = mpirun();
            command.args(["-n", &ranks.to_string(), VITPCM]);
            command
        }
    };
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends a signal to one rank.
fn signal_rank(mpirun: &Child, rank: usize, signal: &str) {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", mpirun.id())).unwrap();
    let is_rank = |process: &&str| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let process = children.split_whitespace().find(is_rank).expect("mpirun's child");
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

#[test]
fn two_and_three_ranks_train_what_one_process_trains() {
    let scratch = Folder::with_scenes();
    for (dropout, name) in [("--set=model.dropout.backbone=0", "without"), (DROPOUT, "with")] {
        let [one, two] = [1, 2].map(|ranks| format!("{name} dropout on {ranks}"));
        check(scratch.start(1, &one, &[dropout]), 0);
        let (stdout, _) = check(scratch.start(2, &two, &[dropout]), 0);
        assert_eq!(stdout.matches("model.safetensors").count(), 1, "{stdout}");
        scratch.check_same(&one, &two);
    }
    // Groups of four images, two of which cannot be shared by three: refused. Three can.
    let (_, stderr) = check(scratch.start(3, "too many", &[]), 2);
    assert!(stderr.contains("rank 0 of 3") && stderr.contains("at least 12"), "{stderr}");
    assert!(!scratch.path("too many").exists());
    let more = ["--set=schedule.effective_batch=12", "--epochs=1"];
    check(scratch.start(3, "three", &more), 0);
    assert_eq!(scratch.rows("three").len(), 2);
}

#[test]
fn a_rank_that_dies_ends_all_and_any_number_of_ranks_goes_on_from_the_state() {
    let scratch = Folder::with_scenes();
    check(scratch.start(1, "whole", &[DROPOUT]), 0);
    let child = scratch.start_and_wait_for_rows(2, "broken", &[DROPOUT], 4);
    signal_rank(&child, 1, "-KILL");
    let (_, stderr) = check(child, 137);
    assert!(stderr.contains("rank 1"), "{stderr}");

    // One process goes on, two after it, and one rank that is asked to stop stops both.
    let child = scratch.start_and_wait_for_rows(1, "broken", &[DROPOUT, "--resume"], 8);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    check(child, 130);
    let child = scratch.start_and_wait_for_rows(2, "broken", &[DROPOUT, "--resume"], 12);
    signal_rank(&child, 1, "-TERM");
    check(child, 130);
    check(scratch.start(2, "broken", &[DROPOUT, "--resume"]), 0);
    scratch.check_same("whole", "broken");

    // One epoch more, without an image that is gone since: all ranks learn of it.
    std::fs::remove_file(scratch.path("data/images/scene-0003.png")).unwrap();
    let (_, stderr) = check(scratch.start(2, "broken", &[DROPOUT, "--resume", "--epochs=7"]), 1);
    assert!(stderr.contains("1 of the 20 images that the run began with is gone"), "{stderr}");
    assert_eq!(stderr.matches("scene-0003.png").count(), 1, "{stderr}");
    assert_eq!(scratch.rows("broken").len(), 21);
}

#[test]
fn an_error_of_one_rank_names_it_and_ends_all() {
    let scratch = Folder::with_scenes();
    let good = scratch.train_arguments("run", &[]);
    // The second rank cannot find its data, then has another idea of the run.
    for (more, message) in
        [(["--data", "/nowhere"], "rank 1 of 2: /nowhere"), (["--seed", "7"], "same settings")]
    {
        let mut command = mpirun();
        command.args(["-n", "1", VITPCM]).args(&good);
        command.args([":", "-n", "1", VITPCM]).args(&good).args(more);
        let (_, stderr) = check(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), 2);
        assert!(stderr.contains(message), "{stderr}");
        assert!(!scratch.path("run").exists());
    }
    // What all of them come upon is said once.
    let (_, stderr) = check(start(2, &["segment", "--out", "nowhere"]), 2);
    assert_eq!(stderr.matches("Usage:").count(), 1, "{stderr}");
    let (_, stderr) = check(start(2, &["evaluate", "--pred", "a", "--truth", "b"]), 2);
    assert_eq!(stderr.matches("runs as one process").count(), 1, "{stderr}");
}

#[test]
fn ranks_share_a_folder_of_images_and_write_one_list_of_tags() {
    let scratch = Folder::with_scenes();
    let path = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    let (images, model) = (path("data/images"), path("model.safetensors"));
    untrained::write(&scratch.path("model.safetensors"), &DrawnScenes::classes(), 0);
    std::fs::write(scratch.path("data/images/broken.png"), "no image").unwrap();
    let mut tags = Vec::new();
    for ranks in [1, 2] {
        let (out, json) = (path(&format!("masks {ranks}")), path(&format!("tags {ranks}.json")));
        let segment = ["segment", &images, "--model", &model, "--out", &out, "--json", &json];
        let more = ["--size=64", "--threads=1", "--format=png,npz,coco"];
        let (_, stderr) = check(start(ranks, &[&segment[..], &more[..]].concat()), 1);
        assert_eq!(stderr.matches("broken.png").count(), 1, "{stderr}");
        assert_eq!(stderr.matches("25 images segmented").count(), 1, "{stderr}");
        assert!(stderr.contains("1 failed"), "{stderr}");
        tags.push(std::fs::read_to_string(&json).unwrap());
        let (_, stderr) = check(start(ranks, &[&segment[..], &more[..], &["--resume"]].concat()), 1);
        assert_eq!(stderr.matches("25 of 26 images are done already").count(), 1, "{stderr}");
        let report = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
        assert!(report.contains("<strong>25</strong> of 26 images"), "{ranks} ranks: {}", &report[..9000]);
        for scene in (0..25).map(|i| format!("scene-{i:04}: its mask")) {
            assert_eq!(report.matches(&scene).count(), 1, "{ranks} ranks: {scene}");
        }
        let refined = path(&format!("refined {ranks}"));
        let scores = path(&format!("masks {ranks}/npz"));
        let refine = ["refine", "--images", &images, "--scores", &scores, "--out", &refined];
        check(start(ranks, &refine), 0);
    }
    for folder in ["masks", "refined"] {
        let [one, two] = [1, 2].map(|ranks| scratch.path(&format!("{folder} {ranks}")));
        assert_eq!(files(&one), files(&two));
        for name in files(&one) {
            assert!(
                std::fs::read(one.join(&name)).unwrap() == std::fs::read(two.join(&name)).unwrap(),
                "{name}"
            );
        }
    }
    // What there is one of, the first rank writes once all are done.
    let coco =
        |ranks: usize| std::fs::read(scratch.path(&format!("masks {ranks}/coco/instances_default.json")));
    assert!(coco(1).unwrap() == coco(2).unwrap());
    assert!(tags[0] == tags[1] && tags[0].contains("scene-0003.png"), "{}", tags[1]);
}

/// All but the report, which tells the command and the time.
fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut names: Vec<String> = files.map(|file| file.file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "report.html");
    names.sort();
    names
}
