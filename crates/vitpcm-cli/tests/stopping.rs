//! Signals: every command ends when it is asked to, also in the middle of one long image, and leaves nothing half-written.
#![cfg(unix)]

mod processes;
mod program;
mod untrained;

use processes::{Stage, ended, leftovers};
use program::{signal, vitpcm, wait_until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vitpcm_masks::{Picture, StoredScores};

fn start(folder: &Path, line: &str) -> Child {
    let words: Vec<&str> = line.split_whitespace().collect();
    vitpcm(&words).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// A folder with an image that a CRF of 1000 iterations works on for minutes.
fn with_long_image() -> Stage {
    let stage = Stage::new();
    let (width, height) = (2400, 1600);
    let colour = |i: usize| (i / 3 % width / 7 * 31 + i / 3 / width / 5 * 17 + i % 3 * 80) as u8;
    std::fs::create_dir(stage.path("long")).unwrap();
    let rgb = (0..3 * width * height).map(colour).collect();
    Picture { width, height, rgb }.write_png(&stage.path("long/long.png")).unwrap();
    stage
}

#[test]
fn a_signal_ends_a_crf_in_the_middle_of_an_image() {
    let stage = with_long_image();
    let root = stage.folder.path();
    let crf = "--crf-set=iterations=1000 --threads=2";
    let begin = "segment long --model model.safetensors --no-tags --size=64 --format=npz --out";
    let (code, said) = ended(start(root, &format!("{begin} scores")));
    assert_eq!(code, Some(0), "{said}");
    StoredScores::read(&stage.path("scores/npz/long.npz")).unwrap();
    for (out, line) in [
        ("masks", format!("{begin} masks --crf {crf}")),
        ("refined", format!("refine --images long --scores scores/npz --out refined {crf}")),
    ] {
        for name in ["-TERM", "-INT"] {
            let mut child = start(root, &line);
            wait_until(&mut child, || stage.path(out).is_dir());
            std::thread::sleep(Duration::from_secs(1)); // into the iterations
            signal(&child, name);
            let (code, said) = ended(child);
            assert_eq!(code, Some(130), "{line}: {said}");
            let files = processes::files(&stage.path(out));
            assert!(!files.keys().any(|name| name.contains("long.")), "{line}: {:?}", files.keys());
            let half = leftovers(&stage.path(out));
            assert!(half.iter().all(|name| name.ends_with(".lock")), "{half:?}");
        }
    }
}

#[test]
fn every_command_ends_at_once_where_it_has_nothing_to_save() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new("mkfifo").arg(folder.path().join("silent.toml")).status().unwrap();
    assert!(status.success());
    let commands = "demo train verify segment serve refine evaluate export propose masks data_inspect \
                    model_inspect model_convert model_export model_fit-tags model_check-tags completions \
                    man";
    for command in commands.split_whitespace() {
        // Waits for ever for somebody who writes its options.
        let child = start(folder.path(), &format!("{} --config silent.toml", command.replace('_', " ")));
        std::thread::sleep(Duration::from_millis(200));
        signal(&child, "-TERM");
        let (code, said) = ended(child);
        assert_eq!(code, Some(130), "{command}: {said}");
    }
}

#[test]
fn the_demo_starts_in_a_new_folder_and_goes_on_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let child = start(folder.path(), "demo --out shown");
        // The state is there once the training runs; then as much again, so that it steps.
        let began = Instant::now();
        while !folder.path().join("shown/run/last").is_dir() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
        signal(&child, "-TERM");
        let (code, said) = ended(child);
        assert_eq!(code, Some(130), "{said}");
        assert!(!said.contains("error"), "{said}");
    }
}
