//! The commands as a user runs them: exit codes, messages and files of CLI.md.

mod program;
mod untrained;

use program::{Folder, vitpcm};
use std::path::Path;
use vitpcm_data::DrawnScenes;
use vitpcm_masks::{IGNORE, LabelMap, StoredScores, read_label_png, write_label_png};

/// Runs a command, expects an exit code, gives what it printed: (stdout, stderr).
#[track_caller]
fn check(arguments: &[&str], code: i32) -> (String, String) {
    program::check(vitpcm(arguments).spawn().unwrap(), code)
}

impl Folder {
    fn mask(&self, name: &str, width: usize, labels: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let map = LabelMap::new(width, labels.len() / width, labels.to_vec()).unwrap();
        write_label_png(&path, &map).unwrap();
    }

    /// Six drawn scenes with tags, and an untrained model that knows their classes.
    fn with_scenes_and_model() -> Folder {
        let folder = Folder::new();
        DrawnScenes { seed: 3, side: 64 }.write(&folder.path("scenes"), 4, 2).unwrap();
        untrained::write(&folder.path("model.safetensors"), &DrawnScenes::classes(), 0);
        folder
    }
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn evaluate_prints_a_table_and_writes_json_and_a_picture() {
    let folder = Folder::new();
    folder.mask("pred/a.png", 3, &[0, 0, 1, 1, 2, 2, 2, 1, 3]);
    folder.mask("truth/a.png", 3, &[0, 0, 0, 1, 1, 2, 2, 255, 0]);
    let (pred, truth) = (folder.text("pred"), folder.text("truth"));
    let (file, picture) = (folder.text("scores.json"), folder.text("confusion.svg"));
    let (stdout, _) =
        check(&["evaluate", "--pred", &pred, "--truth", &truth, "--json", &file, "--picture", &picture], 0);
    // (1/2 + 1/3 + 2/3) / 3: worked by hand in vitpcm-masks' evaluation tests.
    assert!(stdout.contains("mIoU, 3 classes in the truth") && stdout.contains("50.00"), "{stdout}");
    let scores = json(&std::fs::read_to_string(file).unwrap());
    assert_eq!(scores["miou"], 50.0);
    assert_eq!(scores["confusion"][0], serde_json::json!([2, 1, 0, 1, 0]));
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
}

#[test]
fn evaluate_names_what_does_not_fit_and_scores_the_rest() {
    let folder = Folder::new();
    for name in ["pred/good.png", "truth/good.png", "pred/size.png", "pred/alone.png"] {
        folder.mask(name, 2, &[0, 1]);
    }
    folder.mask("truth/size.png", 1, &[0, 1]);
    folder.mask("pred/index.png", 2, &[0, 90]);
    folder.mask("truth/index.png", 2, &[0, 1]);
    let (pred, truth) = (folder.text("pred"), folder.text("truth"));
    let (stdout, stderr) =
        check(&["evaluate", "--pred", &pred, "--truth", &truth, "--classes", "voc", "--json", "-"], 1);
    assert_eq!(
        (json(&stdout)["num_images"].clone(), json(&stdout)["num_failed"].clone()),
        (1.into(), 3.into())
    );
    for expected in ["size.png", "index.png: the prediction holds class index 90", "alone: no true mask"] {
        assert!(stderr.contains(expected), "{expected} is not in\n{stderr}");
    }
}

#[test]
fn evaluate_counts_missing_predictions_even_when_it_is_quiet() {
    let folder = Folder::new();
    folder.mask("pred/there.png", 2, &[0, 1]);
    folder.mask("truth/there.png", 2, &[0, 1]);
    (0..12).for_each(|i| folder.mask(&format!("truth/gone-{i:02}.png"), 2, &[0, 1]));
    let (pred, truth) = (folder.text("pred"), folder.text("truth"));
    let arguments = ["evaluate", "--quiet", "--pred", &pred, "--truth", &truth, "--json", "-"];
    let (stdout, stderr) = check(&arguments, 1);
    let scores = json(&stdout);
    assert_eq!((&scores["num_images"], &scores["num_failed"]), (&1.into(), &12.into()));
    assert_eq!(scores["without_prediction"].as_array().unwrap().len(), 12);
    assert!(stderr.contains("gone-00: no predicted mask in") && stderr.contains("2 more have"), "{stderr}");
    std::fs::write(folder.path("list.txt"), "there\n").unwrap();
    let list = folder.text("list.txt");
    let (_, stderr) = check(&["evaluate", "--pred", &pred, "--truth", &truth, "--list", &list], 0);
    assert_eq!(stderr, "");
}

#[test]
fn evaluate_says_which_classes_a_mean_leaves_out() {
    let folder = Folder::new();
    folder.mask("pred/a.png", 2, &[0, 0, 2, 1]);
    folder.mask("truth/a.png", 2, &[0, 0, 1, 1]);
    std::fs::write(folder.path("names.txt"), "dog\ncat\n").unwrap();
    let (pred, truth, names) = (folder.text("pred"), folder.text("truth"), folder.text("names.txt"));
    let evaluate = ["evaluate", "--pred", &pred, "--truth", &truth, "--classes", &names];
    let (stdout, _) = check(&evaluate, 0);
    // Background 1, dog 1/2, cat 0: the mean that counts the cat stands first.
    let means: Vec<&str> = stdout.lines().filter(|line| line.starts_with("mIoU")).collect();
    assert!(means[0].contains("3 classes in truth or prediction") && means[0].ends_with("50.00"), "{stdout}");
    assert!(means[1].contains("2 classes in the truth") && means[1].ends_with("75.00"), "{stdout}");
    assert!(stdout.contains("nowhere in the truth (IoU 0): cat"), "{stdout}");
    let (stdout, _) = check(&[&evaluate[..], &["--json", "-"]].concat(), 0);
    let scores = json(&stdout);
    assert_eq!((&scores["miou"], &scores["miou_with_union"]), (&75.0.into(), &50.0.into()));
    assert_eq!(scores["classes_only_predicted"], serde_json::json!(["cat"]));
}

#[test]
fn evaluate_refuses_folders_whose_lists_number_the_classes_differently() {
    let folder = Folder::new();
    folder.mask("pred/a.png", 2, &[0, 0, 1, 1]);
    folder.mask("truth/a.png", 2, &[0, 0, 1, 1]);
    std::fs::write(folder.path("pred/classes.txt"), "dog\ncat\n").unwrap();
    std::fs::write(folder.path("truth/classes.txt"), "cat\ndog\n").unwrap();
    let (_, stderr) =
        check(&["evaluate", "--pred", &folder.text("pred"), "--truth", &folder.text("truth")], 2);
    assert!(stderr.contains("truth/classes.txt") && stderr.contains("in this order"), "{stderr}");
}

#[test]
fn a_class_name_of_a_million_letters_is_shown_shortened() {
    let folder = Folder::new();
    folder.mask("pred/a.png", 2, &[0, 1]);
    folder.mask("truth/a.png", 2, &[0, 1]);
    std::fs::write(folder.path("names.txt"), "x".repeat(1_000_000)).unwrap();
    let (pred, truth, names) = (folder.text("pred"), folder.text("truth"), folder.text("names.txt"));
    let output =
        vitpcm(&["evaluate", "--pred", &pred, "--truth", &truth, "--classes", &names]).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 2)), "{:?}", output.status);
    assert!(output.stdout.len() + output.stderr.len() < 20_000);
}

#[test]
#[cfg(unix)]
fn names_of_files_cannot_steer_the_terminal() {
    let folder = Folder::with_scenes_and_model();
    let name = "a\u{1b}[31m\nerror: forged\u{9b}1m\u{202e}.png";
    std::fs::write(folder.path("scenes/images").join(name), "broken").unwrap();
    let (images, out, model) =
        (folder.text("scenes/images"), folder.text("out"), folder.text("model.safetensors"));
    let gone = folder.text(&format!("gone-{name}"));
    for arguments in [
        &["segment", &images, "--model", &model, "--out", &out][..],
        &["segment", &gone, "--model", &model, "--out", &out],
        &["data", "inspect", &folder.text("scenes")],
        &["data", "inspect", &gone],
        &["model", "inspect", &gone],
        &["evaluate", "--pred", &gone, "--truth", &images],
        &["evaluate", "--classes", name, "--pred", &images, "--truth", &images],
        &["train", name, &format!("--{name}")],
    ] {
        let output = vitpcm(arguments).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(r"a\u{1b}[31m\nerror: forged\u{9b}1m\u{202e}"), "{arguments:?}\n{said}");
        assert!(!said.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{arguments:?}\n{said}");
        assert!(!said.lines().any(|line| line.starts_with("error: forged")), "{arguments:?}\n{said}");
    }
}

#[test]
fn wrong_usage_is_2_and_nothing_to_do_is_3() {
    let folder = Folder::new();
    let nowhere = folder.text("nowhere");
    check(&["evaluate", "--pred", "x"], 2);
    check(&["frobnicate"], 2);
    let (_, stderr) = check(&["data", "inspect", &nowhere], 2);
    assert!(stderr.contains("nowhere: there is no such folder"), "{stderr}");
    let empty = folder.text("");
    let (_, stderr) = check(&["data", "inspect", &empty], 3);
    assert!(stderr.contains("no data set recognised here; expected one of"), "{stderr}");
    let (_, stderr) = check(&["evaluate", "--pred", &nowhere, "--truth", &empty], 3);
    assert!(stderr.contains("nowhere"), "{stderr}");
    let (_, stderr) = check(&["--device", "tpu", "data", "inspect", &empty], 2);
    assert!(stderr.contains("expected cpu, cuda, cuda:N or metal"), "{stderr}");
    let (_, stderr) = check(&["segment", &empty, "--out", &nowhere, "--model", &nowhere], 2);
    assert!(stderr.contains("nowhere"), "{stderr}");
}

#[test]
fn a_config_file_takes_what_options_take_and_what_is_typed_wins() {
    let folder = Folder::new();
    folder.mask("pred/a.png", 2, &[0, 1]);
    folder.mask("truth/a.png", 2, &[0, 1]);
    let config = folder.text("config.toml");
    let text =
        format!("pred = {:?}\ntruth = {:?}\nclasses = \"voc\"\n", folder.text("pred"), folder.text("truth"));
    std::fs::write(&config, text).unwrap();
    let (stdout, _) = check(&["evaluate", "--config", &config], 0);
    assert!(stdout.contains("aeroplane"), "{stdout}");
    let (stdout, _) = check(&["evaluate", "--config", &config, "--classes", "coco"], 0);
    assert!(stdout.contains("person") && !stdout.contains("aeroplane"), "{stdout}");
    for in_front in
        [&["--config", &config][..], &["--quiet", "--threads", "1", &format!("--config={config}")]]
    {
        let (stdout, _) = check(&[in_front, &["evaluate"]].concat(), 0);
        assert!(stdout.contains("aeroplane"), "{stdout}");
    }
    // A list that is typed takes the place of the file's.
    folder.mask("other/a.png", 2, &[1, 1]);
    let (stdout, _) = check(&["evaluate", "--config", &config, "--pred", &folder.text("other")], 0);
    assert!(stdout.contains("50.00"), "{stdout}");
    std::fs::write(&config, "colour = true\n").unwrap();
    let (_, stderr) = check(&["evaluate", "--config", &config], 2);
    assert!(stderr.contains("unknown key `colour`; this command knows pred, truth"), "{stderr}");
}

#[test]
fn inspect_tells_what_is_in_a_drawn_data_set() {
    let folder = Folder::new();
    DrawnScenes { seed: 1, side: 48 }.write(&folder.path("scenes"), 5, 3).unwrap();
    std::fs::write(folder.path("scenes/images/broken.png"), b"\x89PNG").unwrap();
    let scenes = folder.text("scenes");
    let (stdout, _) = check(&["data", "inspect", &scenes], 0);
    assert!(stdout.contains("tags.csv") && stdout.contains("broken.png"), "{stdout}");
    let (stdout, _) = check(&["data", "inspect", &scenes, "--json", "-"], 0);
    let splits = &json(&stdout)["splits"];
    assert_eq!((&splits[0]["images"], &splits[1]["images"]), (&5.into(), &3.into()));
}

#[test]
fn inspect_warns_of_tags_that_cannot_teach_apart_from_problems() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("lakes")).unwrap();
    let mut rows = "image,tags\n".to_string();
    for i in 0..32u8 {
        let name = format!("{i}.png");
        image::RgbImage::from_pixel(8, 8, image::Rgb([i; 3])).save(folder.path("lakes").join(&name)).unwrap();
        rows += &format!("{name},water\n");
    }
    std::fs::write(folder.path("lakes/tags.csv"), &rows).unwrap();
    let lakes = folder.text("lakes");
    let (stdout, _) = check(&["data", "inspect", &lakes], 0);
    for expected in [
        "32 images; 1 class, 32 tags",
        "1 warning about what the tags can teach",
        "`water` is the only class, and it is in every image (32 of 32)",
        "no problems found",
    ] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
    let (stdout, _) = check(&["data", "inspect", &lakes, "--json", "-"], 0);
    assert_eq!(json(&stdout)["warnings"][0]["kind"], "only-class-everywhere");

    // Half of the cells emptied: nothing to warn of, and no problem either.
    let rows: Vec<&str> = rows.lines().collect();
    let emptied =
        rows.iter().enumerate().map(|(i, row)| if i > 16 { row.trim_end_matches("water") } else { row });
    std::fs::write(folder.path("lakes/tags.csv"), emptied.collect::<Vec<_>>().join("\n")).unwrap();
    let (stdout, _) = check(&["data", "inspect", &lakes], 0);
    assert!(stdout.contains("32 images, 16 of them without tags (negative examples)"), "{stdout}");
    assert!(!stdout.contains("warning") && stdout.contains("no problems found"), "{stdout}");
}

#[test]
fn segment_writes_every_format_names_failures_and_resumes() {
    let folder = Folder::with_scenes_and_model();
    std::fs::write(folder.path("scenes/images/broken.jpg"), "not an image").unwrap();
    let (images, model, out) =
        (folder.text("scenes/images"), folder.text("model.safetensors"), folder.text("out"));
    let command = [
        "segment", &images, "--model", &model, "--out", &out, "--size", "64", "--no-tags", "--format",
        "png,overlay,heatmap,npy,npz",
    ];
    let (_, stderr) = check(&command, 1);
    assert!(stderr.contains("broken.jpg: ") && stderr.contains("6 images segmented"), "{stderr}");
    let mask = read_label_png(&folder.path("out/scene-0003.png")).unwrap();
    assert_eq!(mask.size(), (64, 64));
    let stored = StoredScores::read(&folder.path("out/npz/scene-0003.npz")).unwrap();
    assert_eq!((stored.scores.size(), stored.image_size), ((4, 4), (64, 64)));
    for name in
        ["overlay/scene-0003.png", "heatmap/scene-0003/001-disc.png", "npy/scene-0003.npy", "classes.txt"]
    {
        assert!(folder.path("out").join(name).is_file(), "{name}");
    }
    // One mask cut short: a resumed run makes just that one again.
    let path = folder.path("out/scene-0003.png");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    std::fs::remove_file(folder.path("scenes/images/broken.jpg")).unwrap();
    let (_, stderr) = check(&[&command[..], &["--resume"]].concat(), 0);
    assert!(
        stderr.contains("5 of 6 images are done already") && stderr.contains("1 image segmented"),
        "{stderr}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    // What segment wrote is what evaluate takes, pictures for people left out.
    let truth = folder.text("scenes/masks");
    let (stdout, _) = check(&["evaluate", "--pred", &out, "--truth", &truth], 0);
    assert!(stdout.contains("6 images") && stdout.contains("background"), "{stdout}");
}

#[test]
fn tags_come_from_the_command_line_or_a_file() {
    let folder = Folder::with_scenes_and_model();
    let (images, model, out) =
        (folder.text("scenes/images"), folder.text("model.safetensors"), folder.text("out"));
    let base = ["segment", &images, "--model", &model, "--out", &out, "--size", "64", "--json", "-"];
    let tags_of = |more: &[&str]| json(&check(&[&base[..], more].concat(), 0).0)[0]["tags"].clone();
    assert_eq!(tags_of(&["--tags", "disc, cross"]), serde_json::json!(["disc", "cross"]));
    let scene = DrawnScenes { seed: 3, side: 64 }.scene(0);
    let classes = DrawnScenes::classes();
    let expected: Vec<&str> = scene.tags.iter().map(|tag| classes.name(usize::from(tag)).unwrap()).collect();
    assert_eq!(tags_of(&["--tags-file", &folder.text("scenes/tags.csv")]), serde_json::json!(expected));
    assert_eq!(tags_of(&["--tags-file", &folder.text("scenes")]), serde_json::json!(expected));
    // A tag file that lies elsewhere, and says nothing of five of the six images.
    std::fs::write(folder.path("elsewhere.csv"), "image,tags\nscene-0000.png,triangle\n").unwrap();
    let (_, stderr) = check(&[&base[..8], &["--tags-file", &folder.text("elsewhere.csv")]].concat(), 1);
    assert!(stderr.contains("scene-0001.png: the tag file does not name it"), "{stderr}");
    assert!(stderr.contains("1 image segmented"), "{stderr}");
    let (_, stderr) = check(&[&base[..8], &["--tags", "unicorn"]].concat(), 2);
    assert!(stderr.contains("does not know `unicorn`; it knows disc, square, triangle, cross"), "{stderr}");
    check(&[&base[..8], &["--tags", "disc", "--no-tags"]].concat(), 2);
}

#[test]
fn refine_gives_what_segment_with_crf_gives() {
    let folder = Folder::with_scenes_and_model();
    let (images, model) = (folder.text("scenes/images"), folder.text("model.safetensors"));
    let (direct, stored, refined) = (folder.text("direct"), folder.text("stored"), folder.text("refined"));
    let segment = ["segment", &images, "--model", &model, "--size", "64", "--no-tags", "--out"];
    check(&[&segment[..], &[&direct, "--crf"]].concat(), 0);
    check(&[&segment[..], &[&stored, "--format", "npz"]].concat(), 0);
    let scores = format!("{stored}/npz");
    check(&["refine", "--images", &images, "--scores", &scores, "--out", &refined], 0);
    let read = |folder: &str| read_label_png(&Path::new(folder).join("scene-0001.png")).unwrap();
    let (direct, refined) = (read(&direct), read(&refined));
    // The stored scores have 16 bits; a pixel on the edge between two classes may fall to the other side.
    let num_different = direct.labels().iter().zip(refined.labels()).filter(|(a, b)| a != b).count();
    assert!(num_different * 200 < direct.labels().len(), "{num_different} pixels differ");
    let (_, stderr) = check(&["refine", "--images", &images, "--scores", &images, "--out", &stored], 3);
    assert!(stderr.contains("has scores in"), "{stderr}");
}

#[test]
fn background_that_is_not_sure_is_left_open_or_filled() {
    let folder = Folder::with_scenes_and_model();
    let (images, model) = (folder.text("scenes/images"), folder.text("model.safetensors"));
    let segment = [
        "segment", &images, "--model", &model, "--size", "256", "--tags", "disc,cross", "--format", "png,npz",
    ];
    let labels = |out: &str, more: &[&str]| {
        let out = folder.text(out);
        check(&[&segment[..], &["--out", &out], more].concat(), 0);
        read_label_png(&Path::new(&out).join("scene-0001.png")).unwrap().into_labels()
    };
    let plain = labels("plain", &[]);
    assert!(plain.contains(&0) && plain.iter().any(|&label| label > 0), "{plain:?}");
    // No score of this network is 1: all of its background is not sure.
    let as_asked = |expected: fn(u8) -> bool, changed: &[u8]| {
        plain.iter().zip(changed).all(|(&was, &is)| if was == 0 { expected(is) } else { is == was })
    };
    assert!(as_asked(|label| label == IGNORE, &labels("open", &["--min-confidence", "1"])));
    let all = ["--min-confidence", "1", "--fill-unsure"];
    let num_background = |labels: &[u8]| labels.iter().filter(|&&label| label == 0).count();
    for fill in [&all[..], &["--fill-unsure"]] {
        let filled = labels("filled", fill);
        assert!(as_asked(|label| label != IGNORE, &filled));
        assert!(num_background(&filled) < num_background(&plain), "{fill:?}");
    }

    let (scores, out) = (folder.text("plain/npz"), folder.text("refined"));
    let refine = ["refine", "--images", &images, "--scores", &scores, "--out", &out];
    check(&[&refine[..], &all].concat(), 0);
    let refined = read_label_png(&Path::new(&out).join("scene-0001.png")).unwrap();
    assert!(!refined.labels().contains(&IGNORE));
    assert!(num_background(refined.labels()) < num_background(&plain));
    let (_, stderr) = check(&[&refine[..], &["--min-confidence", "90"]].concat(), 2);
    assert!(stderr.contains("expected a number from 0 to 1"), "{stderr}");
}

#[test]
fn model_inspect_tells_models_from_other_files() {
    let folder = Folder::with_scenes_and_model();
    let (stdout, _) = check(&["model", "inspect", &folder.text("model.safetensors")], 0);
    assert!(stdout.contains("vit-nano16") && stdout.contains("disc, square, triangle, cross"), "{stdout}");
    let (stdout, _) = check(&["model", "inspect", &folder.text("model.safetensors"), "--json", "-"], 0);
    assert_eq!(json(&stdout)["kind"], "model");
    assert_eq!(json(&stdout)["checksums"], "verified");
    let (_, stderr) = check(&["model", "inspect", &folder.text("scenes/classes.txt")], 3);
    assert!(stderr.contains("classes.txt"), "{stderr}");
}

#[test]
fn model_export_writes_onnx_and_refuses_what_is_no_model() {
    let folder = Folder::with_scenes_and_model();
    let (model, out) = (folder.text("model.safetensors"), folder.text("model.onnx"));
    let export = ["model", "export", &model, "--format", "onnx", "--out", &out, "--size", "64"];
    let (_, stderr) = check(&export, 0);
    assert!(stderr.contains("model.onnx: "), "{stderr}");
    let bytes = std::fs::read(&out).unwrap();
    let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(holds("tag_probabilities") && holds(r#"["background","disc","square""#));

    let (_, stderr) = check(&[&export[..], &["--store", "i8", "--tags", "given"]].concat(), 0);
    assert!(stderr.contains("MB"), "{stderr}");
    assert!(std::fs::metadata(&out).unwrap().len() < bytes.len() as u64 / 2);

    let (_, stderr) = check(&[&export[..], &["--size", "3"]].concat(), 2);
    assert!(stderr.contains("size 3"), "{stderr}");
    let classes = folder.text("scenes/classes.txt");
    let (_, stderr) = check(&["model", "export", &classes, "--out", &out], 3);
    assert!(stderr.contains("classes.txt"), "{stderr}");
    let (_, stderr) = check(&["model", "export", &model, "--out", &model], 2);
    assert!(stderr.contains("would be overwritten"), "{stderr}");
}

#[test]
fn a_damaged_model_is_refused_by_name_and_inspect_says_so() {
    let folder = Folder::with_scenes_and_model();
    let model = folder.text("model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let (stdout, stderr) = check(&["model", "inspect", &model], 3);
    assert!(stdout.contains("checksums       failed"), "{stdout}");
    assert!(stderr.contains("model.safetensors: the tensor `"), "{stderr}");
    let (images, out) = (folder.text("data/images"), folder.text("masks"));
    let (_, stderr) = check(&["segment", &images, "--model", &model, "--out", &out], 2);
    assert!(stderr.contains("model.safetensors: the tensor `"), "{stderr}");
    assert!(stderr.contains("does not match its checksum") && stderr.contains("restore it"), "{stderr}");

    let embedded = concat!(env!("CARGO_MANIFEST_DIR"), "/../vitpcm/model/voc20.safetensors");
    let (stdout, _) = check(&["model", "inspect", embedded], 0);
    assert!(stdout.contains("checksums       verified"), "{stdout}");
}

#[test]
fn several_processes_that_do_not_know_of_each_other_are_refused() {
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"] {
        let child = vitpcm(&["data", "inspect", "."]).env(variable, "2").spawn().unwrap();
        let (_, stderr) = program::check(child, 2);
        assert!(stderr.contains("2 processes") && stderr.contains("MPI"), "{stderr}");
    }
}

#[test]
fn segment_takes_one_split_of_a_data_set() {
    let folder = Folder::with_scenes_and_model();
    let (scenes, images) = (folder.text("scenes"), folder.text("scenes/images"));
    let (model, out) = (folder.text("model.safetensors"), folder.text("out"));
    let segment = |split: &str, code| {
        let arguments = ["segment", &images, "--model", &model, "--out", &out, "--tags-file", &scenes];
        check(&[&arguments[..], &["--split", split]].concat(), code)
    };
    let masks = || {
        let masks = (0..6).filter(|i| folder.path(&format!("out/scene-{i:04}.png")).is_file());
        masks.collect::<Vec<usize>>()
    };
    segment("val", 0);
    assert_eq!(masks(), [4, 5]);
    segment("training", 0);
    assert_eq!(masks(), [0, 1, 2, 3, 4, 5]);
    let (_, stderr) = segment("test", 2);
    assert!(stderr.contains("no split `test`; expected `training` or one of: train, val"), "{stderr}");
}
