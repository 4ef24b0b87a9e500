//! `vitpcm masks` as a user runs it: the plan, a whole small job with the embedded network, stopping and resuming.
#![cfg(unix)] // `kill` sends the signals

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vitpcm_data::DrawnScenes;

fn vitpcm(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
    command.current_dir(folder).args(["--device=cpu", "--threads=2"]).args(arguments);
    command
}

#[track_caller]
fn check(output: Output, code: i32) -> [String; 2] {
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(code), "{}", texts[1]);
    texts
}

/// A folder `data` of so many drawn scenes.
fn scenes(num_images: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DrawnScenes { seed: 5, side: 32 }.write(&folder.path().join("data"), num_images, 1).unwrap();
    folder
}

#[test]
fn a_dry_run_says_the_plan_and_writes_nothing() {
    let folder = scenes(20);
    let run = vitpcm(&["masks", "data", "--out=out", "--dry-run", "--json=-"], folder.path()).output();
    let [json, messages] = check(run.unwrap(), 0);
    let said: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(said["images"], 21);
    assert!(said["plan"]["rounds"][0].as_u64().unwrap() >= 1, "{json}");
    for command in said["commands"].as_array().unwrap() {
        assert!(messages.contains(command.as_str().unwrap()), "{messages}");
    }
    assert!(messages.contains("fewer than 15"), "{messages}");
    assert!(!folder.path().join("out").exists());
}

/// A folder with so many different images, `NN.png`, of these sizes and tags.
fn folder_of(images: &[((u32, u32), &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut table = "image,tags\n".to_owned();
    for (i, &((width, height), tags)) in images.iter().enumerate() {
        let pixel = |x: u32, y: u32| image::Rgb([(x * 7) as u8, (y * 5) as u8, i as u8]);
        let path = folder.path().join("data").join(format!("{i:02}.png"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_fn(width, height, pixel).save(path).unwrap();
        table += &format!("{i:02}.png,{tags}\n");
    }
    std::fs::write(folder.path().join("data/tags.csv"), table).unwrap();
    folder
}

/// What `data inspect` and the plan say of a folder.
#[track_caller]
fn inspected_and_planned(folder: &Path) -> [String; 2] {
    [&["data", "inspect", "data"][..], &["masks", "data", "--out=out", "--dry-run"]].map(|arguments| {
        let [stdout, stderr] = check(vitpcm(arguments, folder).output().unwrap(), 0);
        stdout + &stderr
    })
}

#[test]
fn inspect_and_the_plan_warn_of_what_tags_cannot_teach() {
    let (small, large) = ((24, 24), (1800, 4));
    let mut images = vec![(small, "leaf"); 20];
    images.extend([(small, "leaf;rust;miner"); 16]);
    images.extend([(large, "leaf;phoma"); 6]);
    let folder = folder_of(&images);
    let data = folder.path().join("data");
    std::fs::copy(data.join("00.png"), data.join("41.png")).unwrap();
    for said in inspected_and_planned(folder.path()) {
        for part in [
            "`leaf` is in 42 of 42 images: too few images without it",
            "add images without it",
            "16 of 16 images with `miner` also have `rust`",
            "add images that show one without the other",
            "`phoma` has 6 images: fewer than 15",
            "1 picture is in the data set more than once, with different tags: 00.png (leaf) = 41.png (leaf, phoma)",
            "keep one image of each",
            "5 of 42 images are large (longer side: 1800 pixels, median) and are reduced to 448",
            "cut the images into tiles",
        ] {
            assert!(said.contains(part), "`{part}` is missing in\n{said}");
        }
    }
    let folder = folder_of(&[(small, "water"); 16]);
    for said in inspected_and_planned(folder.path()) {
        assert!(said.contains("`water` is the only class, and it is in every image (16 of 16)"), "{said}");
    }
}

#[test]
fn inspect_and_the_plan_are_silent_about_sound_tags() {
    let images = ["rust", "miner", ""].map(|tags| vec![((24, 24), tags); 15]).concat();
    let folder = folder_of(&images);
    for said in inspected_and_planned(folder.path()) {
        assert!(!said.contains("warning") && !said.contains("To do"), "{said}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_any_work() {
    let folder = scenes(3);
    std::fs::create_dir(folder.path().join("untagged")).unwrap();
    std::fs::write(folder.path().join("untagged/tags.csv"), "image,tags\n").unwrap();
    for (arguments, part) in [
        (&["masks", "nowhere", "--out=out"][..], "nowhere: there is no such folder; expected a folder"),
        (&["masks", "data", "--out=data/masks-of-it"], "choose one outside"),
        (&["masks", "data", "--out=out", "--resume"], "no job to resume"),
        (&["masks", "data", "--out=out", "--minutes=0"], "0.1"),
    ] {
        let [_, messages] = check(vitpcm(arguments, folder.path()).output().unwrap(), 2);
        assert!(messages.contains(part), "{arguments:?}: {messages}");
        assert!(!folder.path().join("out").exists(), "{arguments:?}");
    }
    std::fs::create_dir(folder.path().join("full")).unwrap();
    std::fs::write(folder.path().join("full/model.safetensors"), "mine").unwrap();
    let [_, messages] = check(vitpcm(&["masks", "data", "--out=full"], folder.path()).output().unwrap(), 2);
    assert!(messages.contains("expected an empty folder"), "{messages}");
    assert_eq!(std::fs::read(folder.path().join("full/model.safetensors")).unwrap(), b"mine");
    let untagged = vitpcm(&["masks", "untagged", "--out=out"], folder.path()).output().unwrap();
    assert_ne!(untagged.status.code(), Some(0));
}

/// Starts a job in `out`, and stops it by a signal once its first round has begun.
fn stopped_in_training(arguments: &[&str], folder: &Path) -> Output {
    let mut child: Child = vitpcm(arguments, folder).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while !folder.join("out/.masks/round-1/config.toml").exists() && child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(120), "training has not begun");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

#[test]
fn a_job_that_was_stopped_goes_on_to_a_mask_for_every_image() {
    let folder = scenes(4);
    let arguments = ["masks", "data", "--out=out", "--minutes=0.1", "--json=said.json"];
    let [_, messages] = check(stopped_in_training(&arguments, folder.path()), 130);
    assert!(messages.contains("--resume goes on"), "{messages}");

    let [_, again] = check(vitpcm(&arguments, folder.path()).output().unwrap(), 2);
    assert!(again.contains("holds a job already"), "{again}");

    let resumed = [&arguments[..], &["--resume"]].concat();
    let [summary, messages] = check(vitpcm(&resumed, folder.path()).output().unwrap(), 0);
    assert!(messages.contains("--minutes is not used"), "{messages}");
    // One round leaves nothing to compare with, and that is said.
    assert!(summary.contains("there are no masks of another round to compare with"), "{summary}");
    let out = folder.path().join("out");
    for index in 0..5 {
        assert!(out.join(format!("scene-{index:04}.png")).is_file(), "{index}");
    }
    assert!(out.join("report.html").is_file() && out.join("model.safetensors").is_file());
    let said = std::fs::read_to_string(folder.path().join("said.json")).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["seconds"].as_array().unwrap().len(), said["commands"].as_array().unwrap().len());

    // What was removed is made again; another folder's job is not continued.
    std::fs::remove_file(out.join("scene-0002.png")).unwrap();
    check(vitpcm(&resumed, folder.path()).output().unwrap(), 0);
    assert!(out.join("scene-0002.png").is_file());
    DrawnScenes { seed: 6, side: 32 }.write(&folder.path().join("others"), 4, 1).unwrap();
    let other = ["masks", "others", "--out=out", "--resume"];
    let [_, refusal] = check(vitpcm(&other, folder.path()).output().unwrap(), 2);
    assert!(refusal.contains("differs in FOLDER"), "{refusal}");

    // The masks are found although they lie beside a hidden folder with others.
    let scored =
        ["evaluate", "--pred=out", "--truth=data/masks", "--classes=data/classes.txt", "--json=scores.json"];
    check(vitpcm(&scored, folder.path()).output().unwrap(), 0);
}

#[test]
fn the_masks_of_a_single_round_are_checked_before_the_job_ends() {
    let folder = scenes(15);
    let arguments = ["masks", "data", "--out=out", "--minutes=0.1", "--json=said.json"];
    check(stopped_in_training(&arguments, folder.path()), 130);
    // As if there had been more time: a check, and a head that makes the masks if they look wrong.
    let kept = folder.path().join("out/.masks/progress.json");
    let mut progress: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    assert_eq!(progress["plan"]["rounds"].as_array().unwrap().len(), 1);
    progress["plan"]["after_heads"] = serde_json::json!([]);
    std::fs::write(&kept, progress.to_string()).unwrap();

    let resumed = [&arguments[..], &["--resume"]].concat();
    check(vitpcm(&resumed, folder.path()).output().unwrap(), 0);
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(name)).unwrap()).unwrap()
    };
    let by_head = read("out/.masks/ranking.json")["chosen"] != "the given masks";
    let commands = read("said.json")["commands"].as_array().unwrap().clone();
    assert_eq!(commands.len(), if by_head { 4 } else { 3 }, "{commands:?}");
    let model = if by_head { "out/.masks/chosen-masks" } else { "out/.masks/round-1" };
    let model = folder.path().join(model).join("model.safetensors");
    assert_eq!(
        std::fs::read(model).unwrap(),
        std::fs::read(folder.path().join("out/model.safetensors")).unwrap()
    );

    // What was removed is made again by the model of the masks that are kept.
    let mask = folder.path().join("out/scene-0003.png");
    let before = std::fs::read(&mask).unwrap();
    std::fs::remove_file(&mask).unwrap();
    check(vitpcm(&resumed, folder.path()).output().unwrap(), 0);
    assert_eq!(std::fs::read(&mask).unwrap(), before);
}
