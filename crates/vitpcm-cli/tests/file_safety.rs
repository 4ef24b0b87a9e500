//! No command changes a file that it reads. Every command is run with every output option set to each of its inputs, in all
//! ways to spell a path; afterwards every input has the bytes it had before. A path option that this sweep does not know makes
//! it fail.
#![cfg(unix)] // symbolic links

mod untrained;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use vitpcm_data::DrawnScenes;

/// A command with its arguments and path options.
struct Case {
    command: &'static str,
    /// Arguments that are needed, the output options left out.
    arguments: &'static [&'static str],
    /// Options that name a file to write, with values for the others that are required.
    output_files: &'static [&'static str],
    /// Options that name a folder to write.
    output_folders: &'static [&'static str],
    /// Options that name a file or folder to read.
    inputs: &'static [&'static str],
    /// What is read, below the stage's folder.
    read: &'static [&'static str],
}

const IMAGE: &str = "data/images/scene-0001.png";
const MASK: &str = "data/masks/scene-0001.png";

/// Every command that writes, and every option of each that takes a path.
const CASES: [Case; 14] = [
    Case {
        command: "masks",
        arguments: &["data", "--dry-run"],
        output_files: &["--json"],
        output_folders: &["--out"],
        inputs: &[],
        read: &[IMAGE, "data/tags.csv", "none.toml"],
    },
    Case {
        command: "propose",
        arguments: &["--data=data", "--masks=masks"],
        output_files: &["--json"],
        output_folders: &["--out"],
        inputs: &["--data", "--masks", "--classes", "--split-lists"],
        read: &[IMAGE, "masks/scene-0001.png", "data/tags.csv", "none.toml"],
    },
    Case {
        command: "segment",
        arguments: &[
            "data/images", "--size=64", "--model=m.safetensors", "--tags-file=data/tags.csv",
            "--truth=data/masks", "--compare=data/masks",
        ],
        output_files: &["--json"],
        output_folders: &["--out"],
        inputs: &["--model", "--tags-file", "--truth", "--compare"],
        read: &[IMAGE, MASK, "m.safetensors", "data/tags.csv", "data/classes.txt", "none.toml"],
    },
    Case {
        command: "refine",
        arguments: &["--images=data/images", "--scores=masks/npz", "--format=png,npz,labelme"],
        output_files: &[],
        output_folders: &["--out"],
        inputs: &["--images", "--scores"],
        read: &[IMAGE, "masks/npz/scene-0001.npz"],
    },
    Case {
        command: "evaluate",
        arguments: &["--pred=masks", "--truth=data/masks", "--list=names.txt", "--classes=data/classes.txt"],
        output_files: &["--json", "--picture"],
        output_folders: &[],
        inputs: &["--pred", "--truth", "--list", "--classes"],
        read: &[MASK, "masks/scene-0001.png", "names.txt", "data/classes.txt", "none.toml"],
    },
    Case {
        command: "export",
        arguments: &[
            "masks",
            "--images=data/images",
            "--scores=masks/npz",
            "--classes=data/classes.txt",
            "--format=png,coco,yolo,labelme,voc",
        ],
        output_files: &[],
        output_folders: &["--out"],
        inputs: &["--images", "--scores", "--classes"],
        read: &[IMAGE, "masks/scene-0001.png", "masks/npz/scene-0001.npz", "data/classes.txt"],
    },
    Case {
        command: "data inspect",
        arguments: &["data", "--classes=names.txt"],
        output_files: &["--json"],
        output_folders: &[],
        inputs: &["--classes", "--split-lists"],
        read: &[IMAGE, MASK, "data/tags.csv", "names.txt", "none.toml"],
    },
    Case {
        command: "model inspect",
        arguments: &["m.safetensors"],
        output_files: &["--json"],
        output_folders: &[],
        inputs: &[],
        read: &["m.safetensors"],
    },
    Case {
        command: "model convert",
        arguments: &["m.safetensors", "--store=f16"],
        output_files: &["--out"],
        output_folders: &[],
        inputs: &[],
        read: &["m.safetensors", "none.toml"],
    },
    Case {
        command: "model export",
        arguments: &["m.safetensors", "--format=onnx"],
        output_files: &["--out"],
        output_folders: &[],
        inputs: &[],
        read: &["m.safetensors", "none.toml"],
    },
    Case {
        command: "model fit-tags",
        arguments: &["--model=m.safetensors", "--data=data", "--others=data/images"],
        output_files: &["--out"],
        output_folders: &[],
        inputs: &["--model", "--data", "--others"],
        read: &[IMAGE, "m.safetensors", "data/tags.csv", "none.toml"],
    },
    Case {
        command: "model check-tags",
        arguments: &["--model=m.safetensors", "--data=data", "--others=data/images"],
        output_files: &["--json"],
        output_folders: &[],
        inputs: &["--model", "--data", "--others"],
        read: &[IMAGE, "m.safetensors", "data/tags.csv", "none.toml"],
    },
    Case {
        command: "train",
        arguments: &[
            "--data=data", "--preset=demo", "--pseudo-masks=data/masks", "--classes=data/classes.txt",
        ],
        output_files: &["--json"],
        output_folders: &["--out"],
        inputs: &["--data", "--weights", "--pseudo-masks", "--classes", "--split-lists"],
        read: &[IMAGE, MASK, "data/tags.csv", "data/classes.txt"],
    },
    Case {
        command: "verify",
        arguments: &[
            "--images=data/images", "--masks=data/masks", "--val-images=data/images",
            "--val-truth=data/masks", "--classes=data/classes.txt", "--list=names.txt",
            "--backbone=resnet-nano",
        ],
        output_files: &["--json"],
        output_folders: &["--out"],
        inputs: &[
            "--images", "--masks", "--val-images", "--val-truth", "--list", "--val-list", "--classes",
            "--weights",
        ],
        read: &[IMAGE, MASK, "data/classes.txt", "names.txt"],
    },
];

/// Commands without a file of their own to read, or to write.
const OTHERS: [(&str, &[&str]); 5] = [
    ("demo", &["--out", "--data-only"]),
    ("man", &["--out"]),
    ("serve", &["--model"]),
    ("completions", &[]),
    // A cache: its files have names of their own.
    ("train", &["--features"]),
];

struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Stage {
        let stage = Stage(tempfile::tempdir().unwrap());
        DrawnScenes { seed: 3, side: 32 }.write(&stage.path("data"), 3, 1).unwrap();
        fs::write(stage.path("names.txt"), "scene-0000\nscene-0001\n").unwrap();
        fs::write(stage.path("none.toml"), "quiet = true\n").unwrap();
        for name in ["m.safetensors", "n.safetensors"] {
            untrained::write(&stage.path(name), &DrawnScenes::classes(), 0);
        }
        let model = "--model=m.safetensors";
        let formats = "--format=png,npz";
        stage.check(&["segment", "data/images", model, "--size=64", "--no-tags", formats, "--out=masks"], 0);
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
        command
            .current_dir(self.0.path())
            .args(["--device=cpu", "--threads=1"])
            .args(arguments)
            .output()
            .unwrap()
    }

    #[track_caller]
    fn check(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stderr}");
        stderr
    }

    /// All files below a folder, with their bytes; folders that are links are not entered.
    fn files(&self, below: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut rest = vec![self.path(below)];
        while let Some(next) = rest.pop() {
            match fs::symlink_metadata(&next).unwrap().is_dir() {
                true => rest.extend(fs::read_dir(&next).unwrap().map(|entry| entry.unwrap().path())),
                false => _ = files.insert(next.clone(), fs::read(&next).unwrap_or_default()),
            }
        }
        files
    }

    /// All inputs of the sweep: none of them may ever change.
    fn inputs(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let is_input = |path: &PathBuf| {
            let name = path.strip_prefix(self.0.path()).unwrap().to_string_lossy().into_owned();
            CASES.iter().any(|case| case.read.contains(&name.as_str()))
                || name.starts_with("data/images/scene") && !name[12..].contains('/')
                || name.starts_with("data/masks/scene")
        };
        self.files("").into_iter().filter(|(path, _)| is_input(path)).collect()
    }

    /// Ways to name a file or folder, links among them.
    fn spellings(&self, name: &str) -> Vec<String> {
        let _ = fs::remove_dir_all(self.path("links"));
        fs::create_dir(self.path("links")).unwrap();
        let target = self.path(name);
        let (folder, file) = (target.parent().unwrap(), target.file_name().unwrap().to_str().unwrap());
        symlink(&target, self.path("links/link")).unwrap();
        symlink(folder, self.path("links/folder")).unwrap();
        let mut spellings = vec![
            name.to_string(),
            format!("links/../{name}"),
            "links/link".to_string(),
            format!("links/folder/{file}"),
        ];
        if target.is_file() {
            fs::hard_link(&target, self.path("links/hard")).unwrap();
            spellings.push("links/hard".to_string());
        }
        let other_case = folder.join(file.to_uppercase());
        if other_case.exists() {
            spellings.push(other_case.to_str().unwrap().to_string());
        }
        spellings
    }
}

/// What differs, by name.
#[track_caller]
fn check_unchanged(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
    for (path, bytes) in before {
        assert!(after.get(path) == Some(bytes), "{what}: {} changed", path.display());
    }
}

#[test]
fn a_file_that_is_read_is_never_written() {
    let stage = Stage::new();
    let before = stage.inputs();
    for case in &CASES {
        for option in case.output_files {
            for input in case.read {
                for spelling in stage.spellings(input) {
                    let mut arguments: Vec<&str> = case.command.split(' ').collect();
                    arguments.extend(case.arguments);
                    arguments.extend([option, spelling.as_str(), "--config=none.toml"]);
                    if !case.output_folders.is_empty() {
                        arguments.push("--out=elsewhere");
                    }
                    let stderr = stage.check(&arguments, 2);
                    assert!(stderr.contains("would be overwritten"), "{arguments:?}\n{stderr}");
                    check_unchanged(&before, &stage.inputs(), &format!("{arguments:?}"));
                    assert!(!stage.path("elsewhere").exists(), "{arguments:?} did some work");
                }
            }
        }
    }
}

#[test]
fn no_output_folder_costs_an_input() {
    let stage = Stage::new();
    let before = stage.inputs();
    for case in &CASES {
        for option in case.output_folders {
            let mut folders: Vec<&str> =
                case.read.iter().filter_map(|name| Some(name.rsplit_once('/')?.0)).collect();
            folders.push("data");
            folders.dedup();
            for folder in folders {
                for spelling in stage.spellings(folder) {
                    let mut arguments: Vec<&str> = case.command.split(' ').collect();
                    arguments.extend(case.arguments);
                    arguments.extend([option, spelling.as_str()]);
                    let output = stage.run(&arguments);
                    let code = output.status.code();
                    let stderr = String::from_utf8_lossy(&output.stderr);
                    // Results of earlier commands lie among the inputs by now: there may be nothing to do.
                    assert!(matches!(code, Some(0..=3)), "{arguments:?}: {code:?}\n{stderr}");
                    check_unchanged(&before, &stage.inputs(), &format!("{arguments:?}"));
                }
            }
        }
    }
}

#[test]
fn masks_never_replace_photographs() {
    let stage = Stage::new();
    let before = stage.inputs();
    symlink(stage.path("data/images"), stage.path("link")).unwrap();
    for [path, out] in [
        ["data/images", "data/images"],
        ["data/images", "link"],
        ["link", "data/images"],
        [IMAGE, "data/images"],
    ] {
        let stderr = stage.check(&["segment", path, "--model=m.safetensors", "--size=64", "--out", out], 2);
        assert!(stderr.contains("is the input"), "{stderr}");
    }
    let beside = Command::new(env!("CARGO_BIN_EXE_vitpcm"))
        .current_dir(stage.path("data/images"))
        .args(["segment", "scene-0001.png", "--model=../../m.safetensors", "--size=64", "--out=."])
        .output();
    assert_eq!(beside.unwrap().status.code(), Some(2));
    stage.check(&["export", "masks", "--out=masks", "--format=png"], 2);
    stage.check(&["export", "masks", "--out=coco", "--format=coco"], 0);
    stage.check(&["export", "coco/coco", "--out=coco", "--format=coco"], 2);
    // Training writes no masks, but appends to what a link leads to.
    fs::create_dir(stage.path("run")).unwrap();
    fs::write(stage.path("run/config.toml"), "").unwrap();
    symlink(stage.path("data/tags.csv"), stage.path("run/metrics.csv")).unwrap();
    let stderr = stage.check(&["train", "--data=data", "--preset=demo", "--resume", "--out=run"], 2);
    assert!(stderr.contains("run/metrics.csv") && stderr.contains("data/tags.csv"), "{stderr}");
    check_unchanged(&before, &stage.inputs(), "masks");
}

#[test]
fn masks_beside_photographs_of_other_names_are_fine() {
    let stage = Stage::new();
    let image = image::open(stage.path(IMAGE)).unwrap().to_rgb8();
    let segment = |out: &str, more: &[&str], code| {
        let base = ["segment", "photos", "--model=m.safetensors", "--size=64", "--no-tags", "--out", out];
        stage.check(&[&base[..], more].concat(), code)
    };
    for out in ["photos", "photos/masks", "photos/results"] {
        let _ = fs::remove_dir_all(stage.path("photos"));
        fs::create_dir(stage.path("photos")).unwrap();
        image.save(stage.path("photos/a.jpg")).unwrap();
        segment(out, &["--format=png,labelme"], 0);
        // What it wrote is no photograph the second time.
        let stderr = segment(out, &["--format=png,labelme", "--resume"], 0);
        assert!(stderr.contains("1 of 1 image is done already"), "{stderr}");
    }
    // A person's own picture is.
    image.save(stage.path("photos/b.jpg")).unwrap();
    image.save(stage.path("photos/b.png")).unwrap();
    let stderr = segment("elsewhere", &[], 2);
    assert!(stderr.contains("photos/b.jpg") && stderr.contains("photos/b.png"), "{stderr}");
    assert!(!stage.path("elsewhere").exists());
}

#[test]
fn results_of_two_images_never_share_a_file() {
    let stage = Stage::new();
    for name in ["x.png", "overlay/x.png", "labelme/x.png", "heatmap/x/001-disc.png"] {
        let path = stage.path("photos").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(stage.path(IMAGE), path).unwrap();
    }
    let segment = |format: &str, code| {
        let base = ["segment", "photos", "--model=m.safetensors", "--size=64", "--no-tags", "--out=results"];
        stage.check(&[&base[..], &["--format", format]].concat(), code)
    };
    for (formats, name) in [
        ("png,overlay", "overlay/x.png"),
        ("labelme", "labelme/x.png"),
        ("png,heatmap", "heatmap/x/001-disc.png"),
    ] {
        let stderr = segment(formats, 2);
        assert!(stderr.contains(name) && stderr.contains("photos/x.png"), "{stderr}");
        assert!(!stage.path("results").exists());
    }
    segment("png,npz", 0);
    let stderr = stage.check(
        &["segment", "photos/x.png", "--model=m.safetensors", "--size=64", "--out=more", "--json=more/x.png"],
        2,
    );
    assert!(stderr.contains("more/x.png"), "{stderr}");
}

#[test]
fn drawing_scenes_replaces_nothing() {
    let stage = Stage::new();
    stage.check(&["demo", "--data-only=scenes"], 0);
    stage.check(&["demo", "--data-only=scenes"], 0);
    for name in ["tags.csv", "images/scene-0007.png"] {
        fs::create_dir_all(stage.path("own/images")).unwrap();
        fs::write(stage.path("own").join(name), "mine").unwrap();
        let before = stage.files("own");
        let stderr = stage.check(&["demo", "--data-only=own"], 2);
        assert!(stderr.contains(name), "{stderr}");
        assert_eq!(stage.files("own"), before);
        fs::remove_dir_all(stage.path("own")).unwrap();
    }
}

#[test]
fn the_sweep_knows_every_option_that_takes_a_path() {
    let stage = Stage(tempfile::tempdir().unwrap());
    let mut commands: Vec<&str> =
        CASES.iter().map(|case| case.command).chain(OTHERS.map(|(name, _)| name)).collect();
    commands.dedup();
    for group in ["", "data ", "model "] {
        let text = help(&stage, group);
        let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
        // Lines that go on from the one before stand further in.
        for name in listed.filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()) {
            let is_it = |command: &&str| {
                command.strip_prefix(group).is_some_and(|rest| rest.split(' ').next() == Some(name))
            };
            assert!(name == "help" || commands.iter().any(is_it), "{group}{name}");
        }
    }
    for command in commands {
        let of_case = |case: &Case| [case.output_files, case.output_folders, case.inputs].concat();
        let mut known: Vec<&str> =
            CASES.iter().filter(|case| case.command == command).flat_map(of_case).collect();
        known.extend(
            OTHERS.iter().filter(|(name, _)| *name == command).flat_map(|(_, options)| options.iter()),
        );
        for line in help(&stage, command).lines().map(str::trim).filter(|line| line.starts_with("--")) {
            let (option, value) = line.split_once(' ').unwrap_or((line, ""));
            let is_path = ["FILE", "DIR", "RUN", "PATH"].iter().any(|word| value.contains(word));
            assert!(
                !is_path || option == "--config" || known.contains(&option),
                "{command} {option} {value}"
            );
        }
    }
}

fn help(stage: &Stage, command: &str) -> String {
    let arguments: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
    String::from_utf8(stage.run(&arguments).stdout).unwrap()
}
