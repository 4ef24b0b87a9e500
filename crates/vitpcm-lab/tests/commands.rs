//! The commands of the laboratory as a person runs them.

mod program;

use program::{Folder, check, lab};
use std::path::Path;
use vitpcm::{Device, Model};
use vitpcm_data::DrawnScenes;
use vitpcm_masks::read_label_png;

#[test]
fn join_completes_what_the_first_masks_hold_little_of() {
    let folder = Folder::new();
    folder.mask("first/a.png", 4, &[1, 0, 0, 0]);
    folder.mask("second/a.png", 4, &[1, 1, 1, 0]);
    folder.mask("first/deeper/b.png", 4, &[1, 1, 0, 0]);
    folder.mask("second/deeper/b.png", 4, &[1, 1, 1, 0]);
    std::fs::write(folder.path("first/classes.txt"), "cat\n").unwrap();
    let (first, second, out) = (folder.text("first"), folder.text("second"), folder.text("out"));
    let (_, stderr) = check(&["join", &first, &second, "--out", &out], 0);
    assert!(stderr.contains("2 masks joined, 0 failed"), "{stderr}");
    let labels = |name: &str| read_label_png(&Path::new(&out).join(name)).unwrap().into_labels();
    assert_eq!((labels("a.png"), labels("deeper/b.png")), (vec![1, 1, 1, 0], vec![1, 1, 0, 0]));
    assert_eq!(std::fs::read_to_string(folder.path("out/classes.txt")).unwrap(), "cat\n");
    check(&["join", &first, &second, "--agreed", "--out", &out], 0);
    assert_eq!((labels("a.png"), labels("deeper/b.png")), (vec![1, 255, 255, 0], vec![1, 1, 255, 0]));

    // Of three masks one has no partner and one another size: both are named, the third is there.
    folder.mask("first/alone.png", 4, &[0; 4]);
    folder.mask("second/deeper/b.png", 2, &[1; 2]);
    let (_, stderr) = check(&["join", &first, &second, "--out", &folder.text("some")], 1);
    assert!(stderr.contains("alone: only in one of the two folders"), "{stderr}");
    assert!(stderr.contains("b.png") && stderr.contains("(4, 1) pixels, the second (2, 1)"), "{stderr}");
    assert!(folder.path("some/a.png").is_file());

    std::fs::write(folder.path("second/classes.txt"), "dog\n").unwrap();
    let (_, stderr) = check(&["join", &first, &second, "--out", &out], 2);
    assert!(stderr.contains("list different classes"), "{stderr}");
    let (_, stderr) = check(&["join", &first, &folder.text("nowhere"), "--out", &out], 2);
    assert!(stderr.contains("nowhere"), "{stderr}");
}

#[test]
fn the_mean_of_models_is_between_them_and_other_networks_are_refused() {
    let folder = Folder::new();
    let path = |name: &str| folder.text(name);
    let random = |name: &str, backbone: &str, seed: &str| {
        check(&["random", "--backbone", backbone, "--seed", seed, "--out", &path(name)], 0);
    };
    random("a.safetensors", "vit-nano16", "1");
    random("b.safetensors", "vit-nano16", "2");
    random("other.safetensors", "vit-ti16", "1");
    let average = |models: &[&str], code: i32| {
        let models = models.iter().map(|name| path(name));
        let args: Vec<String> = ["average".to_owned()].into_iter().chain(models).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--out"]).collect();
        check(&[&args[..], &[&path("mean.safetensors")]].concat(), code).1
    };
    average(&["a.safetensors", "b.safetensors", "b.safetensors"], 0);
    let load = |name: &str| Model::load(path(name), &Device::Cpu).unwrap();
    let (a, b, mean) = (load("a.safetensors"), load("b.safetensors"), load("mean.safetensors"));
    for (name, _) in mean.parameters.iter() {
        let numbers = |model: &Model| {
            let tensor = model.parameters.get(name).unwrap();
            tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        for ((a, b), mean) in numbers(&a).iter().zip(numbers(&b)).zip(numbers(&mean)) {
            assert!((mean - (a + 2.0 * b) / 3.0).abs() < 1e-6, "{name}");
        }
    }
    assert!(mean.info.provenance["averaged_from"].contains("b.safetensors"));
    let stderr = average(&["a.safetensors", "other.safetensors"], 2);
    assert!(stderr.contains("other.safetensors") && stderr.contains("differ in network"), "{stderr}");
}

#[test]
fn score_maps_become_dictionaries_and_what_is_none_is_named() {
    let folder = Folder::new();
    let classes = DrawnScenes::classes();
    let scores = vitpcm_masks::ScoreMap::new(classes.len(), 2, 2, vec![0.2; 4 * classes.len()]).unwrap();
    let alignment = vitpcm_masks::resampling::Alignment::HalfPixel;
    let stored = vitpcm_masks::StoredScores { scores, classes, image_size: (6, 5), alignment };
    std::fs::create_dir(folder.path("npz")).unwrap();
    stored.write(&folder.path("npz/a.npz")).unwrap();
    let (scores, out) = (folder.text("npz"), folder.text("psa"));
    check(&["scores", &scores, "--format", "psa", "--out", &out], 0);
    assert!(std::fs::read(folder.path("psa/a.npy")).unwrap().starts_with(b"\x93NUMPY"));
    std::fs::write(folder.path("npz/b.npz"), "none").unwrap();
    let (_, stderr) = check(&["scores", &scores, "--format", "irn", "--out", &out], 1);
    assert!(stderr.contains("b.npz") && stderr.contains("1 score map written, 1 failed"), "{stderr}");
}

#[test]
fn no_command_writes_what_it_reads() {
    let folder = Folder::new();
    DrawnScenes { seed: 2, side: 40 }.write(&folder.path("data"), 2, 0).unwrap();
    let [masks, names, model] =
        ["data/masks", "data/classes.txt", "m.safetensors"].map(|name| folder.text(name));
    check(&["random", "--backbone=vit-nano16", "--out", &model], 0);
    check(&["average", &model, &model, "--out", &model], 2);
    check(&["join", &masks, &masks, "--out", &masks], 2);
    check(&["random", "--classes", &names, "--out", &names], 2);
    check(&["foreground", "--pred", &masks, "--truth", &masks, "--list", &names, "--json", &names], 2);
    let data = folder.text("data");
    let arguments = ["attention", &folder.text("data/images"), "--weights", &model, "--size=32", "--out"];
    std::fs::create_dir_all(folder.path("head-1")).unwrap();
    std::fs::hard_link(&model, folder.path("head-1/scene-0001.png")).unwrap();
    check(&[&arguments[..], &[folder.0.path().to_str().unwrap()]].concat(), 2);
    assert!(folder.path("data/tags.csv").is_file() && !data.is_empty());
}

/// What the examples need that `vitpcm` itself would make.
fn stage() -> Folder {
    let folder = Folder::new();
    DrawnScenes { seed: 0, side: 96 }.write(&folder.path("scenes"), 16, 4).unwrap();
    for masks in ["first", "second"] {
        std::fs::create_dir(folder.path(masks)).unwrap();
        let scene = "scene-0001.png";
        std::fs::copy(folder.path("scenes/masks").join(scene), folder.path(masks).join(scene)).unwrap();
    }
    let classes = DrawnScenes::classes();
    let scores = vitpcm_masks::ScoreMap::new(classes.len(), 2, 2, vec![0.2; 4 * classes.len()]).unwrap();
    let alignment = vitpcm_masks::resampling::Alignment::HalfPixel;
    std::fs::create_dir_all(folder.path("masks/npz")).unwrap();
    let stored = vitpcm_masks::StoredScores { scores, classes, image_size: (96, 96), alignment };
    stored.write(&folder.path("masks/npz/scene-0001.npz")).unwrap();
    folder
}

#[test]
fn every_command_has_an_example_that_works_when_pasted() {
    let help = String::from_utf8(lab(&["--help"]).stdout).unwrap();
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let commands: Vec<&str> = names.into_iter().filter(|name| !name.is_empty() && *name != "help").collect();
    assert_eq!(commands.len(), 9, "{commands:?}");
    let folder = stage();
    for command in commands {
        let help = String::from_utf8(lab(&[command, "--help"]).stdout).unwrap();
        let example = help.lines().skip_while(|line| !line.starts_with("Example, to paste")).skip(1);
        let lines: Vec<&str> = example.take_while(|line| line.starts_with("  ")).map(str::trim).collect();
        let own: Vec<&&str> = lines.iter().filter(|line| line.starts_with("vitpcm-lab ")).collect();
        assert!(own.iter().any(|line| line.split(' ').nth(1) == Some(command)), "{command}: {lines:?}");
        for line in own {
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            let output = program::command(&words).current_dir(folder.0.path()).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
