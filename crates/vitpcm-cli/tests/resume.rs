//! `segment --resume` as a user meets it: what counts as done, what is done again, and that nothing a person edited is lost.

mod program;
mod untrained;

use program::Folder;
use std::fs;
use std::path::PathBuf;
use vitpcm_data::DrawnScenes;

struct Stage(Folder);

impl Stage {
    fn new() -> Stage {
        let stage = Stage(Folder::new());
        DrawnScenes { seed: 5, side: 40 }.write(&stage.path("data"), 3, 1).unwrap();
        for seed in [0, 1] {
            let model = stage.path(&format!("model-{seed}.safetensors"));
            untrained::write(&model, &DrawnScenes::classes(), seed);
        }
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[track_caller]
    fn check(&self, arguments: &[&str], code: i32) -> String {
        self.0.check(&[&["--device=cpu", "--threads=1"], arguments].concat(), code).1
    }

    #[track_caller]
    fn segment(&self, more: &[&str], code: i32) -> String {
        let base = ["segment", "data/images", "--model=model-0.safetensors", "--size=64", "--out=out"];
        self.check(&[&base[..], more].concat(), code)
    }
}

#[test]
fn another_model_or_other_options_are_refused_and_named() {
    let stage = Stage::new();
    stage.segment(&["--no-tags"], 0);
    for (more, expected) in [
        (&["--no-tags", "--crf"][..], "--crf was false and is true now"),
        (&["--no-tags", "--size=48"], "--size was 64 and is 48 now"),
        (&["--tag-threshold=0.4"], "--tag-threshold"),
        (&["--no-tags", "--model=model-1.safetensors"], "--model was"),
    ] {
        let stderr = stage.segment(&[more, &["--resume"]].concat(), 2);
        assert!(stderr.contains(expected) && stderr.contains("leave out --resume"), "{stderr}");
    }
    // Where and how much is written does not matter.
    let stderr =
        stage.segment(&["--no-tags", "--resume", "--no-report", "--threads=2", "--format=png,coco"], 0);
    assert!(stderr.contains("4 of 4 images are done already"), "{stderr}");
    // A run that begins anew takes the folder over, also where it has not come far.
    stage.segment(&["--no-tags", "--model=model-1.safetensors"], 0);
    let stderr = stage.segment(&["--no-tags", "--model=model-1.safetensors", "--resume"], 0);
    assert!(stderr.contains("4 of 4 images are done already"), "{stderr}");
}

#[test]
fn images_and_tags_that_changed_since_are_done_again() {
    let stage = Stage::new();
    let tags = ["--tags-file=data/tags.csv"];
    stage.segment(&tags, 0);
    let before = stage.read("out/scene-0002.png");
    fs::copy(stage.path("data/images/scene-0001.png"), stage.path("data/images/scene-0002.png")).unwrap();
    let resumed = [&tags[..], &["--resume"]].concat();
    let stderr = stage.segment(&resumed, 0);
    assert!(
        stderr.contains("3 of 4 images are done already") && stderr.contains("changed since: 1"),
        "{stderr}"
    );
    assert!(stage.read("out/scene-0002.png") != before);
    // Other tags for one image.
    let table = fs::read_to_string(stage.path("data/tags.csv")).unwrap();
    let line = table.lines().find(|line| line.starts_with("scene-0003")).unwrap();
    let other = if line.contains("disc") { "scene-0003.png,square,val" } else { "scene-0003.png,disc,val" };
    fs::write(stage.path("data/tags.csv"), table.replace(line, other)).unwrap();
    let stderr = stage.segment(&resumed, 0);
    assert!(stderr.contains("3 of 4 images are done already"), "{stderr}");
    // A copy with another time stamp is the same image.
    let image = stage.read("data/images/scene-0000.png");
    fs::write(stage.path("data/images/scene-0000.png"), image).unwrap();
    let stderr = stage.segment(&resumed, 0);
    assert!(stderr.contains("4 of 4 images are done already"), "{stderr}");
}

#[test]
fn what_a_person_edited_stays() {
    let stage = Stage::new();
    let all = ["--no-tags", "--format=png,npz,coco,labelme,voc,yolo,label-studio,cvat"];
    stage.segment(&all, 0);
    let edited = [
        "scene-0001.png",
        "coco/instances_default.json",
        "labelme/scene-0001.json",
        "voc/SegmentationClass/scene-0001.png",
        "yolo/labels/scene-0001.txt",
        "label-studio/tasks.json",
        "cvat/segmentation-mask-1.1.zip",
    ];
    // Masks of other images: readable, and not what was written.
    let masks = ["scene-0002", "scene-0003"].map(|name| stage.read(&format!("out/{name}.png")));
    let content = |name: &str| match name {
        "scene-0001.png" => masks[0].clone(),
        "voc/SegmentationClass/scene-0001.png" => masks[1].clone(),
        _ => b"{\"edited\": true}".to_vec(),
    };
    for name in edited {
        fs::write(stage.path("out").join(name), content(name)).unwrap();
    }
    let untouched = stage.read("out/labelme/scene-0000.json");
    // Also where there is something new to export.
    fs::copy(stage.path("data/images/scene-0000.png"), stage.path("data/images/scene-9999.png")).unwrap();
    let stderr = stage.segment(&[&all[..], &["--resume"]].concat(), 0);
    assert!(stderr.contains("4 of 5 images are done already"), "{stderr}");
    assert!(
        stderr.contains("changed since vitpcm wrote them") && stderr.contains("out/.vitpcm/new"),
        "{stderr}"
    );
    for name in edited {
        assert!(stage.read(&format!("out/{name}")) == content(name), "{name} was overwritten");
    }
    assert!(stage.read("out/labelme/scene-0000.json") == untouched);
    assert!(stage.path("out/labelme/scene-9999.json").is_file());
    let own = stage.read("out/.vitpcm/new/coco/instances_default.json");
    assert!(String::from_utf8(own).unwrap().contains("scene-9999"));
    // A run that begins anew keeps it aside.
    let stderr = stage.segment(&all, 0);
    assert!(stderr.contains("out/.vitpcm/replaced-1"), "{stderr}");
    for name in edited {
        assert!(stage.read(&format!("out/.vitpcm/replaced-1/{name}")) == content(name), "{name} is gone");
        assert!(stage.read(&format!("out/{name}")) != content(name));
    }
    // So does an export.
    stage.check(&["export", "out", "--images=data/images", "--out=exports", "--format=labelme"], 0);
    fs::write(stage.path("exports/labelme/scene-0001.json"), "mine").unwrap();
    let stderr =
        stage.check(&["export", "out", "--images=data/images", "--out=exports", "--format=labelme"], 0);
    assert!(stderr.contains("exports/.vitpcm/replaced-1"), "{stderr}");
    assert_eq!(stage.read("exports/.vitpcm/replaced-1/labelme/scene-0001.json"), b"mine");
    // What is kept there is no mask and no Labelme file of the folder.
    let stderr = stage.check(&["export", "exports/labelme", "--out=again", "--format=png"], 0);
    assert!(stderr.contains("5 masks written"), "{stderr}");
    let stderr = stage.check(&["export", "out", "--out=more", "--format=coco"], 0);
    assert!(stderr.contains("5 masks written"), "{stderr}");
}

#[test]
fn a_folder_of_an_earlier_version_is_gone_on_with() {
    let stage = Stage::new();
    stage.segment(&["--no-tags"], 0);
    fs::remove_dir_all(stage.path("out/.vitpcm")).unwrap();
    fs::remove_file(stage.path("out/scene-0001.png")).unwrap();
    let stderr = stage.segment(&["--no-tags", "--resume"], 0);
    assert!(stderr.contains("3 of 4 images are done already") && stderr.contains("no record"), "{stderr}");
    // From now on there is one.
    fs::copy(stage.path("data/images/scene-0001.png"), stage.path("data/images/scene-0002.png")).unwrap();
    let stderr = stage.segment(&["--no-tags", "--resume"], 0);
    assert!(stderr.contains("3 of 4 images are done already") && !stderr.contains("no record"), "{stderr}");
    stage.segment(&["--no-tags", "--resume", "--crf"], 2);
}

#[test]
fn settings_are_those_of_the_run_that_did_the_first_image() {
    let stage = Stage::new();
    fs::create_dir(stage.path("none")).unwrap();
    fs::write(stage.path("none/broken.png"), "no image").unwrap();
    let base = ["segment", "none", "--model=model-0.safetensors", "--size=64", "--out=out", "--no-tags"];
    stage.check(&base, 3);
    stage.segment(&["--no-tags", "--resume", "--crf"], 0);
    let stderr = stage.segment(&["--no-tags", "--resume"], 2);
    assert!(stderr.contains("--crf was true and is false now"), "{stderr}");
    stage.segment(&["--no-tags", "--resume", "--crf"], 0);
}

#[test]
fn a_record_that_was_cut_short_does_no_harm() {
    let stage = Stage::new();
    stage.segment(&["--no-tags"], 0);
    let (record, mask) = (stage.path("out/.vitpcm/record-0.jsonl"), stage.read("out/scene-0003.png"));
    let whole = fs::read(&record).unwrap();
    for keep in [whole.len() - 30, whole.len() / 2, 20, 0] {
        fs::write(&record, &whole[..keep]).unwrap();
        stage.segment(&["--no-tags", "--resume"], 0);
        assert!(stage.read("out/scene-0003.png") == mask);
        assert!(!stage.path("out/.vitpcm/new").exists(), "its own masks were taken for edited ones");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn names_that_are_not_utf_8_do_not_cost_the_json() {
    use std::os::unix::ffi::OsStrExt;
    let stage = Stage::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.png");
    fs::copy(stage.path("data/images/scene-0001.png"), stage.path("data/images").join(name)).unwrap();
    stage.segment(&["--json=tags.json"], 0);
    let tags: serde_json::Value = serde_json::from_slice(&stage.read("tags.json")).unwrap();
    let images: Vec<&str> =
        tags.as_array().unwrap().iter().map(|row| row["image"].as_str().unwrap()).collect();
    assert_eq!(images.len(), 5);
    assert_eq!(images[0], "data/images/caf\u{fffd}.png");
}
