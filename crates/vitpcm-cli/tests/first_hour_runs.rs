//! The first hour of a new user, as far as runs go: a `--resume` in the wrong folder, Ctrl-C too early, a run folder for a
//! model, what a training says while it runs and at its end, and folders that cannot be written.
#![cfg(unix)] // `kill` sends the signals, and permissions are those of Unix
#![allow(clippy::print_stderr, reason = "a test says what it skipped")]

mod program;
mod untrained;

use program::{Folder, check, num_rows, signal, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use vitpcm_data::DrawnScenes;
use vitpcm_masks::Classes;

/// A network of seconds, with the default's habit of holding images out.
const SMALL: [&str; 12] = [
    "--preset=demo",
    "--device=cpu",
    "--threads=2",
    "--batch=4",
    "--set=model.grid=4",
    "--set=model.inference_grid=4",
    "--set=validation.grid=4",
    "--set=model.lstm_units=8",
    "--set=schedule.effective_batch=8",
    "--set=validation.every_epochs=1",
    "--set=validation.held_out=0.1",
    "--set=loader.save_minutes=0.002",
];

impl Folder {
    /// Drawn scenes with tags, and neither masks nor splits, as people have them.
    fn with_images(num_images: usize) -> Folder {
        let stage = Folder::new();
        DrawnScenes { seed: 2, side: 32 }.write(&stage.path("drawn"), num_images, 0).unwrap();
        std::fs::create_dir(stage.path("data")).unwrap();
        std::fs::rename(stage.path("drawn/images"), stage.path("data/images")).unwrap();
        let table = std::fs::read_to_string(stage.path("drawn/tags.csv")).unwrap();
        let lines = table.lines().map(|line| line.rsplit_once(',').unwrap().0.to_owned() + "\n");
        std::fs::write(stage.path("data/tags.csv"), lines.collect::<String>()).unwrap();
        stage
    }

    fn train<'a>(&self, more: &[&'a str]) -> Vec<&'a str> {
        [&["train", "--data=data", "--out=run"], &SMALL[..], more].concat()
    }

    /// Starts a command, and sends it Ctrl-C once a run folder has so many rows.
    #[track_caller]
    fn interrupt(&self, arguments: &[&str], run: &str, rows: usize) -> String {
        let mut child = self.command(arguments).spawn().unwrap();
        wait_until(&mut child, || num_rows(&self.path(run)) >= rows);
        signal(&child, "-INT");
        let (_, stderr) = check(child, 130);
        stderr
    }
}

fn last_line(text: &str) -> &str {
    text.trim_end().lines().last().unwrap_or_default()
}

#[test]
fn resume_in_a_folder_without_a_run_says_so_and_stops() {
    let stage = Folder::with_images(8);
    let images = ["--images=data/images", "--val-images=data/images", "--val-truth=drawn/masks"];
    let verify =
        [&["verify", "--out=out", "--masks=drawn/masks", "--classes=drawn/classes.txt"], &images[..]];
    for command in [
        &["train", "--data=data", "--out=out"][..],
        &verify.concat(),
        &["segment", "data/images", "--out=out"],
        &["masks", "data", "--out=out"],
    ] {
        let (_, stderr) = stage.check(&[command, &["--resume"]].concat(), 2);
        assert!(stderr.contains("out: there is no") && stderr.contains("to resume"), "{command:?}: {stderr}");
        assert!(stderr.contains("without --resume starts"), "{command:?}: {stderr}");
        assert!(!stage.path("out").exists(), "{command:?} left a folder");
    }
    // And without it, a folder of other things is not called a run.
    std::fs::create_dir_all(stage.path("out")).unwrap();
    std::fs::write(stage.path("out/notes.txt"), "mine").unwrap();
    let (_, stderr) = stage.check(&["train", "--data=data", "--out=out"], 2);
    assert!(stderr.contains("not empty") && !stderr.contains("--resume"), "{stderr}");
}

#[test]
fn ctrl_c_in_the_first_epoch_leaves_a_model_that_segments() {
    let stage = Folder::with_images(60);
    let stderr = stage.interrupt(&stage.train(&["--epochs=1000"]), "run", 1);
    assert!(stderr.contains("The model so far: run/model.safetensors"), "{stderr}");
    stage.check(&["segment", "data/images/scene-0001.png", "--model=run", "--out=masks"], 0);
    assert!(stage.path("masks/scene-0001.png").is_file());
    // The run goes on from where it was, and keeps the newest model.
    let before = std::fs::read(stage.path("run/model.safetensors")).unwrap();
    stage.interrupt(&stage.train(&["--epochs=1000", "--resume"]), "run", 12);
    assert!(std::fs::read(stage.path("run/model.safetensors")).unwrap() != before);
}

#[test]
fn ctrl_c_leaves_a_model_of_verify_too() {
    let stage = Folder::with_images(8);
    let verify = [
        "verify", "--images=data/images", "--masks=drawn/masks", "--val-images=data/images",
        "--val-truth=drawn/masks", "--classes=drawn/classes.txt", "--backbone=resnet-nano",
        "--set=crops.side=33", "--batch=2", "--threads=2", "--steps=100000", "--out=run",
    ];
    let stderr = stage.interrupt(&verify, "run", 2);
    assert!(stderr.contains("The model so far: run/model.safetensors"), "{stderr}");
    stage.check(&["segment", "data/images/scene-0001.png", "--model=run", "--out=masks"], 0);
}

#[test]
fn a_run_folder_stands_for_its_model_wherever_one_is_taken() {
    let stage = Folder::with_images(4);
    std::fs::create_dir_all(stage.path("run")).unwrap();
    std::fs::create_dir_all(stage.path("empty")).unwrap();
    untrained::write(&stage.path("run/model.safetensors"), &Classes::voc(), 0);
    let (stdout, _) = stage.check(&["model", "inspect", "run"], 0);
    assert!(stdout.contains("vit-nano16"), "{stdout}");
    let image = "data/images/scene-0001.png";
    stage.check(&["segment", image, "--model=run", "--out=masks", "--size=32"], 0);
    stage.check(&["model", "convert", "run", "--store=f16", "--out=small.safetensors"], 0);
    std::fs::create_dir_all(stage.path("others")).unwrap();
    std::fs::copy(stage.path(image), stage.path("others/1.png")).unwrap();
    std::fs::remove_file(stage.path("run/model.safetensors")).unwrap();
    let classes = ["disc", "square", "triangle", "cross"].map(str::to_owned);
    let classes =
        Classes::from_names([["background".to_owned()].to_vec(), classes.to_vec()].concat()).unwrap();
    untrained::write(&stage.path("run/model.safetensors"), &classes, 0);
    let tags = ["--model=run", "--data=data", "--others", "others"];
    stage.check(&[&["model", "check-tags"], &tags[..]].concat(), 0);
    stage.check(&[&["model", "fit-tags", "--out=head.safetensors"], &tags[..]].concat(), 0);
    for command in [
        &["model", "check-tags", "--data=data", "--model=empty"][..],
        &["segment", image, "--out=other", "--model=empty"],
        &["serve", "--port=0", "--model=empty"],
        &["train", "--data=data", "--out=other", "--weights=empty"],
        &["model", "inspect", "empty"],
    ] {
        let (_, stderr) = stage.check(command, 2);
        assert!(stderr.contains("'empty'") && stderr.contains("no model.safetensors"), "{stderr}");
    }
}

#[test]
fn training_ends_with_a_verdict_on_images_that_were_held_out() {
    let stage = Folder::with_images(120);
    let (stdout, stderr) = stage.check(&stage.train(&["--epochs=4"]), 0);
    assert!(stderr.contains("held out to measure the result"), "{stderr}");
    let verdict = last_line(&stdout);
    assert!(verdict.starts_with("verdict: ") && verdict.contains("held-out image"), "{stdout}");
    for class in ["disc", "square", "triangle", "cross"] {
        assert!(stdout.lines().any(|line| line.starts_with(class)), "{class}: {stdout}");
    }
    assert!(stdout.contains("ranked right (chance 50 %)"), "{stdout}");
    let page = std::fs::read_to_string(stage.path("run/report.html")).unwrap();
    assert!(page.contains("Verdict: ") && page.contains("<h2 id=\"verdict\">"), "no verdict in the report");
    assert!(!page.contains("The run is finished"));
    // All of them get masks all the same.
    stage.check(&["segment", "data/images", "--model=run", "--out=masks", "--no-report"], 0);
    let is_mask = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|it| it == "png");
    let masks = std::fs::read_dir(stage.path("masks")).unwrap().flatten().filter(is_mask);
    assert_eq!(masks.count(), 120);
}

#[test]
fn a_folder_too_small_to_hold_images_out_is_not_judged() {
    let stage = Folder::with_images(8);
    let (stdout, _) = stage.check(&stage.train(&["--epochs=1"]), 0);
    let verdict = last_line(&stdout);
    assert!(verdict.starts_with("verdict: Not measured: 8 images are too few"), "{stdout}");
    assert!(!stage.path("run/last/held-out.json").exists());
}

#[test]
fn a_resumed_run_keeps_its_held_out_images_whatever_became_of_the_others() {
    let stage = Folder::with_images(120);
    stage.interrupt(&stage.train(&["--epochs=1000"]), "run", 3);
    let list = || std::fs::read_to_string(stage.path("run/last/held-out.json")).unwrap();
    let held_out: Vec<String> = serde_json::from_str(&list()).unwrap();
    assert!((8..=20).contains(&held_out.len()), "{held_out:?}");
    // Two are gone: one that was held out and one that was not.
    let other = (0..).map(|i| format!("scene-{i:04}.png")).find(|name| !held_out.contains(name)).unwrap();
    for name in [&held_out[0], &other] {
        std::fs::remove_file(stage.path("data/images").join(name)).unwrap();
    }
    let before = list();
    let (stdout, stderr) = stage.check(&stage.train(&["--epochs=2", "--resume"]), 1);
    assert!(stderr.contains("images that the run began with is gone"), "{stderr}");
    let on = format!("in {} held-out images", held_out.len() - 1);
    assert!(stdout.contains(&on) || stdout.contains(&on[3..]), "{on}: {stdout}");
    assert_eq!(list(), before);
}

#[test]
fn progress_is_said_in_plain_words_and_in_the_methods_with_verbose() {
    let stage = Folder::with_images(20);
    let train = stage.train(&["--epochs=1", "--val-share=0.3"]);
    let (_, stderr) = stage.check(&train, 0);
    assert!(stderr.contains("learning 4 classes from the tags of"), "{stderr}");
    assert!(stderr.contains("epoch 1/1: loss ") && stderr.contains("tags ") && stderr.contains("% right"));
    for jargon in ["equivariance", "penalty", "parameters"] {
        assert!(!stderr.contains(jargon), "{jargon}: {stderr}");
    }
    std::fs::remove_dir_all(stage.path("run")).unwrap();
    let (_, stderr) = stage.check(&[&train[..], &["--verbose"]].concat(), 0);
    assert!(stderr.contains("equivariance") && stderr.contains("parameters"), "{stderr}");
    let metrics = std::fs::read_to_string(stage.path("run/metrics.csv")).unwrap();
    assert!(metrics.starts_with("epoch,step,images,rate,loss,loss_mce,loss_et"), "{metrics}");
    let (_, stderr) = stage.check(&["segment", "data/images/scene-0001.png", "--model=run", "--out=out"], 0);
    assert!(stderr.contains("1 image segmented"), "{stderr}");
}

#[test]
fn a_read_only_folder_is_named_as_such_before_any_work() {
    let stage = Folder::with_images(4);
    let mode = |name: &str, bits: u32| {
        std::fs::set_permissions(stage.path(name), std::fs::Permissions::from_mode(bits)).unwrap();
    };
    std::fs::create_dir(stage.path("locked")).unwrap();
    mode("", 0o755);
    mode("locked", 0o555);
    for command in [
        &["train", "--data=data", "--out=locked/run", "--preset=demo"][..],
        &["segment", "data/images", "--out=locked/masks"],
        &["masks", "data", "--out=locked/masks"],
        &["model", "convert", "model.safetensors", "--store=f16", "--out=locked/model.safetensors"],
        &["data", "inspect", "data", "--json=locked/inspection.json"],
        &["demo", "--out=locked/demo"],
        &["demo", "--data-only=locked/scenes"],
    ] {
        let mut command = stage.command(command);
        // Root may write anywhere.
        if std::fs::write(stage.path("locked/probe"), "").is_ok() {
            std::fs::remove_file(stage.path("locked/probe")).unwrap();
            command.uid(65534).gid(65534);
        }
        let Ok(child) = command.spawn() else {
            return eprintln!("skipped: no other user can run the program here");
        };
        let (_, stderr) = check(child, 3);
        assert!(stderr.contains("the folder locked is read-only"), "{stderr}");
    }
    mode("locked", 0o755);
}

#[test]
fn help_knows_what_its_examples_use() {
    let stage = Folder::new();
    for (command, option, used) in [("train", "--preset", "demo"), ("verify", "--backbone", "resnet-nano")] {
        let (help, _) = stage.check(&[command, "--help"], 0);
        assert!(help.contains(&format!("{option} {used}")), "the example of {command} has changed");
        let described = help.split("\nExample").next().unwrap();
        assert!(described.contains(used), "{command} --help does not know {option} {used}");
    }
    // In the order of use: where to, what with, what of it, and how to go on.
    for (command, order) in [
        (
            "segment",
            &["--out <", "--model <", "--tags <", "--format <", "--crf\n", "--resume\n", "--size <"][..],
        ),
        (
            "train",
            &["--data <", "--out <", "--resume\n", "--epochs <", "--weights <", "--preset <", "--set <"],
        ),
        ("masks", &["--out <", "--minutes <", "--format <", "--dry-run\n", "--resume\n"]),
    ] {
        let (help, _) = stage.check(&[command, "--help"], 0);
        let places =
            order.iter().map(|option| help.find(option).unwrap_or_else(|| panic!("{option}: {help}")));
        assert!(places.collect::<Vec<_>>().is_sorted(), "{command} --help is not in the order of use");
    }
}
