//! The first hour with one's own tags, as a person writes them: paths, spellings, tables, slips. Each stumble says what was
//! understood or what to do, and ends with the right exit code.

mod program;
mod untrained;

use program::Folder;
use vitpcm_data::DrawnScenes;

/// Six drawn scenes `images/scene-000N.png`, and an untrained model of their classes: disc, square, triangle, cross.
struct Desk(Folder);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(Folder::new());
        DrawnScenes { seed: 3, side: 32 }.write(&desk.path("drawn"), 4, 2).unwrap();
        std::fs::rename(desk.path("drawn/images"), desk.path("images")).unwrap();
        desk.file("names.txt", DrawnScenes::classes().names()[1..].join("\n"));
        untrained::write(&desk.path("m.safetensors"), &DrawnScenes::classes(), 0);
        desk
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        self.0.file(name, content);
    }

    /// A folder with the images in it, and nothing else.
    fn photos(&self, folder: &str) {
        let images = self.path(folder).join("images");
        std::fs::create_dir_all(&images).unwrap();
        for file in std::fs::read_dir(self.path("images")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), images.join(file.file_name())).unwrap();
        }
    }

    /// Runs a command here, expects an exit code, gives all that it said.
    #[track_caller]
    fn check(&self, arguments: &[&str], code: i32) -> String {
        let (stdout, stderr) = self.0.check(arguments, code);
        stdout + &stderr
    }

    /// Segments with an untrained model, and gives all that was said and the tags of the first image.
    #[track_caller]
    fn segment(&self, arguments: &[&str], code: i32) -> (String, Vec<String>) {
        let rest =
            ["--model=m.safetensors", "--size=32", "--out=out", "--no-report", "--json=tags-read.json"];
        let said = self.check(&[&["segment"], arguments, &rest].concat(), code);
        let json = std::fs::read(self.path("tags-read.json")).unwrap_or_default();
        let images: serde_json::Value = serde_json::from_slice(&json).unwrap_or_default();
        let tags = images[0]["tags"].as_array().into_iter().flatten();
        (said, tags.map(|tag| tag.as_str().unwrap().to_string()).collect())
    }
}

#[track_caller]
fn demand(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing in\n{said}");
    }
}

#[test]
fn a_tag_file_names_images_by_its_own_folder_by_the_one_given_or_by_file_name() {
    let desk = Desk::new();
    desk.photos("tf");
    let names: Vec<String> = (0..6).map(|i| format!("scene-{i:04}.png")).collect();
    let table = |folder: &str| -> String {
        let rows = names.iter().map(|name| format!("{folder}{name},cross\n"));
        "image,tags\n".chars().map(String::from).chain(rows).collect()
    };
    let first = "images/scene-0000.png";
    for folder in ["images/", "", "D:\\photos\\", "elsewhere/"] {
        desk.file("tags.csv", table(folder));
        desk.file("tf/tags.csv", table(folder));
        for arguments in [
            &[first, "--tags-file=tags.csv"][..],
            &["images", "--tags-file=tags.csv"],
            &["tf/images", "--tags-file=tf/tags.csv"],
            &["tf", "--tags-file=tf/tags.csv"],
        ] {
            let (_, tags) = desk.segment(arguments, 0);
            assert_eq!(tags, ["cross"], "{folder}: {arguments:?}");
        }
    }

    // A name that two images have is named with both; the images that are named in full are done.
    std::fs::copy(desk.path(first), desk.path("scene-0000.png")).unwrap();
    desk.file("tags.csv", table(""));
    let (said, _) = desk.segment(&["images", "--tags-file=tags.csv"], 1);
    demand(
        &said,
        &["line 2 names `scene-0000.png`", "./scene-0000.png, images/scene-0000.png; write its folder too"],
    );
    demand(&said, &["scene-0000.png: the tag file does not name it", "5 images segmented"]);
    let (said, _) = desk.segment(&["scene-0000.png", "--tags-file=names.txt"], 2);
    demand(&said, &["names.txt: it names none of the images (scene-0000.png)"]);
}

#[test]
fn an_image_that_is_not_named_does_not_get_the_tags_of_one_of_the_same_name() {
    let desk = Desk::new();
    desk.photos("data/train");
    desk.photos("data/val");
    desk.file("data/tags.csv", "image,tags\ntrain/images/scene-0000.png,cross\n");
    let unnamed = "data/val/images/scene-0000.png";
    for tags in ["--tags-file=data/tags.csv", "--tags-file=data"] {
        let (said, _) = desk.segment(&[unnamed, tags], 2);
        demand(&said, &[&format!("it names none of the images ({unnamed})")]);
        assert_eq!(desk.segment(&["data/train/images/scene-0000.png", tags], 0).1, ["cross"]);
    }
    // A copy outside of the data set is that image.
    assert_eq!(desk.segment(&["images/scene-0000.png", "--tags-file=data"], 0).1, ["cross"]);
}

#[test]
fn class_names_are_typed_in_any_case_and_slips_are_asked_about() {
    let desk = Desk::new();
    let (_, tags) = desk.segment(&["images", "--tags= CROSS,Disc,cross"], 0);
    assert_eq!(tags, ["cross", "disc"]);
    assert_eq!(desk.segment(&["images", "--tags=cross; Disc|square"], 0).1, ["cross", "disc", "square"]);
    let (said, _) = desk.segment(&["images", "--tags=crosss"], 2);
    demand(&said, &["the model does not know `crosss` (did you mean `cross`?); it knows disc, square"]);
    let (said, _) = desk.segment(&["images", "--tags=crosss,Disk"], 2);
    demand(&said, &["`crosss` (did you mean `cross`?), `Disk` (did you mean `disc`?); it knows"]);
    desk.file("tags.csv", "image,tags\nscene-0000.png,Squares\n");
    let (said, _) = desk.segment(&["images/scene-0000.png", "--tags-file=tags.csv"], 2);
    demand(&said, &["tags.csv: the model does not know `Squares` (did you mean `square`?)"]);
    desk.file("tags.csv", "image,tags\nscene-0000.png,SQUARE\n");
    assert_eq!(desk.segment(&["images/scene-0000.png", "--tags-file=tags.csv"], 0).1, ["square"]);
}

#[test]
fn inspect_train_and_masks_say_what_was_merged_and_what_looks_like_a_slip() {
    let desk = Desk::new();
    desk.photos("leaves");
    let rows = "id,filename,disease\n1,scene-0000.png,Leaf rust\n2,scene-0001.png,leaf rust\n3,scene-0002.png,\"leaf rust, Miner\"\n\
        4,scene-0003.png,miner|healthy\n5,scene-0004.png,miners\n6,scene-0005.png,\n";
    desk.file("leaves/labels.csv", rows);
    let said = desk.check(&["data", "inspect", "leaves"], 0);
    let merged = "`Leaf rust` (1 image), `leaf rust` (2 images) are one class, `leaf rust`";
    let warned = ["`miners` (1 image) and `miner` (2 images)", "`healthy` (1 image)"];
    demand(&said, &["6 images, 1 of them without tags (negative examples); 4 classes", "no problems found"]);
    demand(&said, &["images from `filename`, tags from `disease`; not used: `id`", merged, "2 cells split"]);
    demand(&said, &warned);
    let said = desk.check(&["masks", "leaves", "--out=masks", "--dry-run"], 0);
    demand(&said, &[merged, "2 cells split", warned[0], warned[1]]);
    let train = [
        "train", "--data=leaves", "--out=run", "--backbone=vit-nano16", "--weights=none", "--epochs=1",
        "--set=model.grid=4",
    ];
    let said = desk.check(&train, 0);
    demand(&said, &[merged, "2 cells split", warned[0], warned[1]]);
}

#[test]
fn tables_of_other_kinds_are_read_or_asked_about() {
    let desk = Desk::new();
    desk.photos("leaves");
    let table = "Image Name,Severity,Disease name\nscene-0000.png,2,rust\nscene-0001.png,0,\nscene-0002.png,1,rust and miner\n\
                 scene-0003.png,1,miner\n";
    desk.file("leaves/labels/season.csv", table);
    desk.file("leaves/~$season.xlsx", "open in Excel");
    let said = desk.check(&["data", "inspect", "leaves"], 0);
    demand(
        &said,
        &["labels/season.csv", "4 images, 1 of them without tags", "2 classes", "no problems found"],
    );
    demand(
        &said,
        &[
            "tags from `Disease name`; not used: `Severity`",
            "`rust and miner` (1 image) is read as `rust` and `miner`",
        ],
    );
    std::fs::remove_dir_all(desk.path("leaves/labels")).unwrap();
    desk.file("leaves/labels.txt", "scene-0000.png rust\nscene-0001.png miner\n");
    demand(&desk.check(&["data", "inspect", "leaves"], 0), &["2 images; 2 classes, 2 tags"]);
    desk.file("leaves/labels.txt", "rust\nminer\n");
    desk.file("leaves/labels.json", "{\"scene-0000.png\": 7}");
    desk.file("leaves/leaves.csv", "image,night,what\nscene-0000.png,1,rust\nscene-0001.png,0,miner\n");
    let said = desk.check(&["data", "inspect", "leaves"], 0);
    demand(&said, &["1 class"]);
    std::fs::remove_file(desk.path("leaves/labels.json")).unwrap();
    let said = desk.check(&["data", "inspect", "leaves"], 3);
    demand(
        &said,
        &["labels.txt: not read as tags", "leaves.csv: not read as tags: which column holds the tags?"],
    );
    // 0 and 1 are classes, and it is said what that means.
    desk.file("leaves/tags.csv", "image,label\nscene-0000.png,0\nscene-0001.png,1\n");
    demand(&desk.check(&["data", "inspect", "leaves"], 0), &["the classes are numbers", "use class names"]);
}

#[test]
fn two_images_whose_masks_would_have_one_name_are_refused_before_the_training() {
    let desk = Desk::new();
    desk.photos("leaves");
    std::fs::copy(desk.path("images/scene-0001.png"), desk.path("leaves/images/scene-0000.jpg")).unwrap();
    desk.file("leaves/tags.csv", "image,tags\nscene-0000.png,rust\nscene-0001.png,\n");
    let said = desk.check(&["masks", "leaves", "--out=masks"], 2);
    demand(&said, &["scene-0000.jpg and", "the results of both would be called scene-0000"]);
    std::fs::remove_file(desk.path("leaves/images/scene-0000.jpg")).unwrap();
    desk.file("leaves/tags.csv", "image,tags\nscene-0000.png,rust\nscene-0001.png,\ngone.png,rust\n");
    let said = desk.check(&["masks", "leaves", "--out=masks", "--dry-run"], 0);
    demand(&said, &["1 problem in the files; `vitpcm data inspect leaves` lists them"]);
}

#[test]
fn tables_that_say_nothing_end_with_an_error_and_how_to_write_tags() {
    let desk = Desk::new();
    desk.photos("leaves");
    let commands: [&[&str]; 3] = [
        &["data", "inspect", "leaves"],
        &["masks", "leaves", "--out=masks"],
        &["train", "--data=leaves", "--out=run", "--backbone=vit-nano16", "--weights=none"],
    ];
    let refused = |parts: &[&str]| {
        for command in commands {
            let said = desk.check(command, 3);
            demand(&said, parts);
            assert!(!said.contains("\\n"), "{said}");
            demand(&said, &["    image,tags\n    a.jpg,rust;mildew"]);
        }
    };
    refused(&["leaves: 6 images, and none of them has a tag"]);
    desk.file("leaves/labels.csv", "image,place,weather\nscene-0000.png,field,sun\n");
    refused(&["labels.csv: not read as tags: which column holds the tags? It may be `place`, `weather`"]);
    desk.file("leaves/tags.csv", "image,tags\nscene-0000.png,\nscene-0001.png,none\n");
    refused(&["2 images, and none of them has a tag"]);
    desk.file("leaves/tags.csv", "filename,place,weather\nscene-0000.png,field,sun\n");
    refused(&["no tagged image", "tags.csv: unreadable annotation: which column holds the tags?"]);
    // Names of another extension: which image may be meant.
    desk.file("leaves/tags.csv", "image,tags\nscene-0000.jpg,rust\n");
    refused(&["names `scene-0000.jpg`, but there is no such image; there is `images/scene-0000.png`"]);
    std::fs::rename(desk.path("leaves/tags.csv"), desk.path("leaves/labels.csv")).unwrap();
    refused(&["it names `scene-0000.jpg`, for example, and there is `images/scene-0000.png`"]);
    // JSON of any name, if nothing else could be meant.
    std::fs::remove_file(desk.path("leaves/labels.csv")).unwrap();
    desk.file("leaves/_annotations.coco.json", "{\"images\": [{\"file\": \"scene-0000.png\"}]}");
    refused(&["_annotations.coco.json: not read as tags: it looks like COCO's"]);
    std::fs::remove_file(desk.path("leaves/_annotations.coco.json")).unwrap();
    desk.file("leaves/tags.csv", "image,tags\n");
    let said = desk.check(&["data", "inspect", "leaves/images"], 3);
    demand(&said, &["tags.csv: there is a tag file in the folder above; name that folder instead"]);
}
