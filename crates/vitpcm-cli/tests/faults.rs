//! What goes wrong around a run: a full disk, a folder that cannot be written, data that changes or disappears, no GPU, a
//! scheduler's SIGTERM, a second process. For each: what is said, with which exit code, what stays, and that one can go on.
//! `kill -9` is `kills.rs`.
#![cfg(target_os = "linux")] // small file systems are mounted, where that is allowed
#![allow(clippy::print_stderr, reason = "a test says what it skipped")]

mod processes;
mod program;
mod untrained;

use processes::{NUM_IMAGES, Stage, check, check_same, ended, files, leftovers, results};
use program::{num_rows, signal, wait_until};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use vitpcm_data::DrawnScenes;
use vitpcm_masks::LOCK_FILE;

/// A file system of a few bytes, in memory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None where it cannot be mounted: that needs root.
    fn mount(at: &Path, kilobytes: usize) -> Option<SmallDisk> {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={kilobytes}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: mounting a small file system is not allowed here");
            return None;
        }
        Some(SmallDisk(at.to_path_buf()))
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn training_on_a_full_disk_keeps_the_last_state_and_goes_on_when_there_is_room() {
    let stage = Stage::new();
    let whole = stage.path("whole");
    check(stage.train(&whole, &[]), 0);
    let state = std::fs::metadata(whole.join("last/state.safetensors")).unwrap().len() as usize;
    // Room for the first state, and for half of the one that is to replace it.
    let Some(disk) = SmallDisk::mount(&stage.path("disk"), state * 3 / 2 / 1024 + 40) else { return };
    let out = disk.path("run");
    let stderr = check(stage.train(&out, &[]), 3);
    assert!(stderr.contains("the disk is full") && stderr.contains("disk/run"), "{stderr}");
    let kept = std::fs::read(out.join("last/state.safetensors")).unwrap();
    assert_eq!(leftovers(&out), Vec::<String>::new());
    // Another try fails as clearly, and changes nothing.
    let (code, stderr) = ended(stage.train(&out, &[]));
    assert!(code == Some(3) && stderr.contains("the disk is full"), "{code:?} {stderr}");
    assert!(std::fs::read(out.join("last/state.safetensors")).unwrap() == kept);
    disk.remount("size=64m");
    check(stage.train(&out, &[]), 0);
    check_same(&out, &whole);
}

#[test]
fn masks_and_exports_on_a_full_disk_are_whole_or_absent() {
    let stage = Stage::new();
    let (masks, exports) = (stage.path("masks"), stage.path("exports"));
    check(stage.segment(&masks, &[]), 0);
    check(stage.export(&exports), 0);
    let Some(disk) = SmallDisk::mount(&stage.path("disk"), 120) else { return };
    let check_parts = |out: &Path, whole: &Path| {
        let whole = results(whole);
        for (name, bytes) in results(out) {
            assert!(name.starts_with("coco/") || whole[&name] == bytes, "{name} is not whole");
        }
        assert_eq!(leftovers(out), Vec::<String>::new());
    };
    let (code, stderr) = ended(stage.segment(&disk.path("masks"), &[]));
    assert!(matches!(code, Some(1 | 3)) && stderr.contains("the disk is full"), "{code:?} {stderr}");
    check_parts(&disk.path("masks"), &masks);
    let (code, stderr) = ended(stage.export(&disk.path("exports")));
    assert!(matches!(code, Some(1 | 3)) && stderr.contains("the disk is full"), "{code:?} {stderr}");
    check_parts(&disk.path("exports"), &exports);
    disk.remount("size=64m");
    check(stage.segment(&disk.path("masks"), &[]), 0);
    check_same(&disk.path("masks"), &masks);
    check(stage.export(&disk.path("exports")), 0);
    check_same(&disk.path("exports"), &exports);
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_left_as_it_is() {
    let stage = Stage::new();
    let Some(disk) = SmallDisk::mount(&stage.path("disk"), 64 << 10) else { return };
    check(stage.train(&disk.path("run"), &["--epochs=1"]), 0);
    check(stage.segment(&disk.path("masks"), &[]), 0);
    let before = files(&disk.0);
    disk.remount("ro");
    let runs: [(Child, &str); 4] = [
        (stage.train(&disk.path("run"), &["--epochs=2"]), "disk/run"),
        (stage.segment(&disk.path("masks"), &[]), "disk/masks"),
        (stage.export(&disk.path("exports")), "disk/exports"),
        (stage.verify(&disk.path("verify"), &["--steps=2"]), "disk/verify"),
    ];
    for (child, name) in runs {
        let stderr = check(child, 3);
        assert!(stderr.contains(name) && stderr.contains("is read-only"), "{stderr}");
    }
    assert!(files(&disk.0) == before);
    disk.remount("rw");
    check(stage.train(&disk.path("run"), &["--epochs=2"]), 0);
}

/// Data that others change meanwhile: one image replaced, one cut, one removed.
fn disturb(stage: &Stage, names: [&str; 3]) {
    let [replaced, cut, removed] = names.map(|name| stage.path("data/images").join(name));
    DrawnScenes { seed: 9, side: 24 }.scene(3).image.save(&replaced).unwrap();
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::remove_file(&removed).unwrap();
}

#[test]
fn training_goes_on_when_images_change_are_cut_or_disappear() {
    let stage = Stage::new();
    let (out, lost) = (stage.path("run"), stage.path("data/images/scene-0003.png"));
    let lost_bytes = std::fs::read(&lost).unwrap();
    let mut child = stage.train(&out, &["--epochs=400"]);
    wait_until(&mut child, || num_rows(&out) >= 2);
    disturb(&stage, ["scene-0001.png", "scene-0002.png", "scene-0003.png"]);
    // Two whole epochs later all of them have been met.
    let rows = num_rows(&out);
    wait_until(&mut child, || num_rows(&out) >= rows + 10);
    signal(&child, "-TERM");
    let stderr = check(child, 130);
    for name in ["scene-0002.png", "scene-0003.png"] {
        assert_eq!(stderr.matches(name).count(), 1, "each is named once: {stderr}");
    }
    assert!(!stderr.contains("scene-0001.png"), "{stderr}");
    // The replaced image is noticed when the run is resumed.
    let stderr = check(stage.train(&out, &["--epochs=400"]), 2);
    assert!(
        stderr.contains("1 of the 32 training images") && stderr.contains(": scene-0001.png;"),
        "{stderr}"
    );
    assert!(stderr.contains("--accept-changed-images"), "{stderr}");
    // Accepted, it goes on without the broken and the missing one, and says so; with it when it is back.
    let go_on = |more: &[&str]| {
        let mut child = stage.train(&out, &[&["--epochs=400"], more].concat());
        let rows = num_rows(&out);
        wait_until(&mut child, || num_rows(&out) >= rows + 10);
        signal(&child, "-TERM");
        check(child, 130)
    };
    let stderr = go_on(&["--accept-changed-images"]);
    assert!(stderr.contains("1 of the 32 images that the run began with is gone"), "{stderr}");
    assert!(stderr.contains("scene-0002.png") && stderr.contains("scene-0003.png"), "{stderr}");
    std::fs::write(lost, lost_bytes).unwrap();
    let stderr = go_on(&[]);
    assert!(stderr.contains("scene-0002.png") && !stderr.contains("scene-0003.png"), "{stderr}");
}

#[test]
fn segmentation_goes_on_when_images_are_cut_or_disappear() {
    let stage = Stage::new();
    let out = stage.path("masks");
    let mut child = stage.segment(&out, &[]);
    wait_until(&mut child, || out.join("scene-0000.png").exists());
    disturb(&stage, ["scene-0037.png", "scene-0038.png", "scene-0039.png"]);
    let (code, stderr) = ended(child);
    if code == Some(0) {
        eprintln!("skipped: the segmentation was faster than the disturbance");
        return;
    }
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("scene-0038.png") && stderr.contains("scene-0039.png"), "{stderr}");
    let num_masks = results(&out).into_keys().filter(|name| name.ends_with(".png")).count();
    assert_eq!(num_masks, NUM_IMAGES - 2);
    // The list is made anew: what is gone is no fault any more.
    let stderr = check(stage.segment(&out, &[]), 1);
    assert!(stderr.contains("scene-0038.png") && !stderr.contains("scene-0039.png"), "{stderr}");
}

#[test]
fn where_there_is_no_gpu_it_is_said_and_the_run_goes_on_without() {
    let stage = Stage::new();
    let out = stage.path("run");
    check(stage.train(&out, &["--epochs=1"]), 0);
    let before = files(&out);
    let (code, stderr) = ended(stage.train(&out, &["--epochs=2", "--device=cuda"]));
    if code == Some(0) {
        eprintln!("skipped: this machine and build have a GPU");
        return;
    }
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.to_lowercase().contains("cuda") && stderr.lines().count() == 1, "{stderr}");
    assert!(files(&out) == before, "the run folder was touched");
    check(stage.train(&out, &["--epochs=2"]), 0);
}

#[test]
fn a_schedulers_sigterm_leaves_everything_to_go_on_from() {
    let stage = Stage::new();
    let run = stage.path("verify");
    let mut child = stage.verify(&run, &["--steps=100000"]);
    wait_until(&mut child, || num_rows(&run) >= 2);
    signal(&child, "-TERM");
    check(child, 130);
    let rows = num_rows(&run);
    check(stage.verify(&run, &[&format!("--steps={}", rows + 2)]), 0);
    assert_eq!(num_rows(&run), rows + 2);

    let (whole, masks) = (stage.path("whole"), stage.path("masks"));
    check(stage.segment(&whole, &[]), 0);
    let mut child = stage.segment(&masks, &[]);
    wait_until(&mut child, || masks.join("scene-0000.png").exists());
    signal(&child, "-TERM");
    let (code, stderr) = ended(child);
    assert!(matches!(code, Some(130 | 0)), "{code:?} {stderr}");
    check(stage.segment(&masks, &[]), 0);
    check_same(&masks, &whole);

    let child = stage.export(&stage.path("exports"));
    signal(&child, "-TERM");
    // Before it listens, at work, or after its end.
    let (code, stderr) = ended(child);
    assert!(matches!(code, None | Some(130 | 0)), "{code:?} {stderr}");
    check(stage.export(&stage.path("exports")), 0);
    let mut server = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
    server
        .args(["serve", "--port=0", "--quiet", "--device=cpu", "--model"])
        .arg(stage.path("model.safetensors"));
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    signal(&server, "-TERM");
    check(server, 0);

    for folder in ["verify", "masks", "exports"] {
        assert_eq!(leftovers(&stage.path(folder)), Vec::<String>::new(), "{folder}");
    }
}

#[test]
fn a_second_process_on_a_folder_is_refused_and_told_by_whom() {
    let stage = Stage::new();
    let out = stage.path("run");
    let mut first = stage.train(&out, &["--epochs=100000"]);
    wait_until(&mut first, || num_rows(&out) >= 1);
    let stderr = check(stage.train(&out, &["--epochs=100000"]), 2);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let holder = format!("process {} on {} (vitpcm train", first.id(), host.trim());
    assert!(stderr.contains(&holder) && stderr.lines().count() == 1, "{stderr}");
    assert!(first.try_wait().unwrap().is_none(), "the first is not disturbed");
    // Other commands do not write into a run either.
    let stderr = check(stage.export(&out), 2);
    assert!(stderr.contains(&holder), "{stderr}");

    // What a killed process leaves is no lock.
    signal(&first, "-KILL");
    ended(first);
    assert!(out.join(LOCK_FILE).exists());
    std::fs::write(out.join(".model.4294967295-a1B2c3.tmp"), "half a model").unwrap();
    check(stage.train(&out, &["--epochs=1"]), 0);
    assert_eq!(leftovers(&out), Vec::<String>::new());
}
