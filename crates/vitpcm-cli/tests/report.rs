//! The reports as users get them: what they hold, that names in them stay text, and that runs which are interrupted, resumed
//! or bounded are told rightly.

mod program;
mod untrained;

use program::Folder;
#[cfg(unix)]
use program::{signal, wait_until};
#[cfg(unix)]
use std::path::Path;
use vitpcm_data::DrawnScenes;
use vitpcm_masks::Classes;

/// A class name that would run a script if it became markup.
const HOSTILE: &str = "\"><script>alert(1)</script>";

impl Folder {
    /// Drawn scenes with masks, and an untrained model whose fourth class has a hostile name.
    fn with_scenes(num_scenes: usize) -> Folder {
        let scratch = Folder::new();
        DrawnScenes { seed: 3, side: 48 }.write(&scratch.path("scenes"), num_scenes - 2, 2).unwrap();
        let names = DrawnScenes::classes().names()[1..4].join("\n");
        std::fs::write(scratch.path("names.txt"), format!("{names}\n{HOSTILE}\n")).unwrap();
        let classes = Classes::from_file(&scratch.path("names.txt")).unwrap();
        untrained::write(&scratch.path("model.safetensors"), &classes, 0);
        scratch
    }

    fn report(&self, folder: &str) -> String {
        std::fs::read_to_string(self.path(folder).join("report.html")).unwrap()
    }
}

const SEGMENT: [&str; 5] = ["segment", "--model=model.safetensors", "--size=64", "--no-tags", "--out=out"];

fn segment<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SEGMENT[..], more].concat()
}

fn num_cards(html: &str) -> usize {
    html.matches("<article class=\"card\">").count()
}

#[test]
fn a_report_holds_everything_loads_nothing_and_names_stay_text() {
    let scratch = Folder::with_scenes(6);
    let hostile_file = "<img src=x onerror=alert(2)> & 'co' #1%41.png";
    std::fs::copy(
        scratch.path("scenes/images/scene-0000.png"),
        scratch.path("scenes/images").join(hostile_file),
    )
    .unwrap();
    let (_, stderr) = scratch.check(&segment(&["scenes/images"]), 0);
    assert!(stderr.contains("the report is out/report.html"), "{stderr}");
    let html = scratch.report("out");
    assert!(
        html.contains("<strong>7</strong> of 7 images segmented by model.safetensors"),
        "{}",
        &html[..9000]
    );
    assert_eq!(num_cards(&html), 7);
    assert!(!html.contains("<script>alert") && !html.contains("<img src=x"));
    assert!(html.contains("&lt;img src=x onerror=alert(2)&gt; &amp; &#39;co&#39; #1%41"));
    assert!(html.contains(
        "href=\"./%3Cimg%20src%3Dx%20onerror%3Dalert%282%29%3E%20%26%20%27co%27%20%231%2541.png\""
    ));
    // What it shows is in it; the confusion picture's name space is no address.
    let without_name_space = html.replace("http://www.w3.org/2000/svg", "");
    for address in ["http:", "https:", "src=\"/", "url(", "@import", "<link"] {
        assert!(!without_name_space.contains(address), "{address}");
    }
    assert!(
        html.contains("vitpcm segment --model=model.safetensors --size=64 --no-tags --out=out scenes/images")
    );
    assert!(html.contains("<code>--size</code></th><td><code>64</code>"));
}

#[test]
fn a_true_mask_is_scored_as_evaluate_does() {
    let scratch = Folder::with_scenes(6);
    scratch.check(&segment(&["scenes/images", "--truth=scenes/masks"]), 0);
    let (scores, _) = scratch.check(&["evaluate", "--pred=out", "--truth=scenes/masks", "--json=-"], 0);
    let scores: serde_json::Value = serde_json::from_str(&scores).unwrap();
    let miou = format!("<dt>mIoU</dt><dd>{:.2} <small>% · 6 true masks", scores["miou"].as_f64().unwrap());
    assert!(scratch.report("out").contains(&miou), "{miou}");
    // The data set's own masks are of other classes than the model's: they are not used unasked.
    scratch.check(&segment(&["scenes"]), 0);
    assert!(!scratch.report("out").contains("true masks"));
    // A model that has the data set's classes finds them by itself.
    let names = DrawnScenes::classes().names()[1..].join("\n");
    std::fs::write(scratch.path("names.txt"), names).unwrap();
    untrained::write(&scratch.path("model.safetensors"), &DrawnScenes::classes(), 0);
    scratch.check(&segment(&["scenes"]), 0);
    assert!(scratch.report("out").contains("6 true masks"));
    // One that does not fit is named, and the mask is there all the same.
    std::fs::copy(scratch.path("scenes/images/scene-0000.png"), scratch.path("scenes/masks/scene-0001.png"))
        .unwrap();
    let (_, stderr) = scratch.check(&segment(&["scenes/images", "--truth=scenes/masks"]), 0);
    assert!(stderr.contains("scene-0001.png: not scored: "), "{stderr}");
    assert!(scratch.report("out").contains("5 true masks"));
    scratch.check(&segment(&["scenes/images", "--truth=nowhere"]), 2);
}

#[test]
fn tags_that_contradict_the_scores_are_listed() {
    let scratch = Folder::with_scenes(4);
    std::fs::write(scratch.path("tags.csv"), "image,tags\nscene-0000.png,disc\nscene-0001.png,square\n")
        .unwrap();
    let tagged = ["segment", "scenes/images/scene-0000.png", "scenes/images/scene-0001.png", "--out=out"];
    scratch.check(
        &[&tagged[..], &["--model=model.safetensors", "--size=64", "--tags-file=tags.csv"]].concat(),
        0,
    );
    let html = scratch.report("out");
    assert!(html.contains("Likely tag mistakes") && html.contains("in 2 tagged images"), "no tag section");
    // The random network gives no class a tenth or nine tenths, or it does: the count is that of the rows.
    let listed =
        html.matches("given, but improbable").count() + html.matches("not given, but probable").count();
    assert!(html.contains(&format!("<dd>{listed} <small>to look at")), "{listed} rows");
}

#[test]
fn a_resumed_run_reports_what_was_done_before() {
    let scratch = Folder::with_scenes(6);
    let two = ["scenes/images/scene-0001.png", "scenes/images/scene-0004.png"];
    scratch.check(&segment(&two), 0);
    assert!(scratch.report("out").contains("<strong>2</strong> of 2 images"));
    let (_, stderr) = scratch.check(&segment(&["scenes/images", "--resume"]), 0);
    assert!(stderr.contains("2 of 6 images are done already"), "{stderr}");
    let html = scratch.report("out");
    assert!(html.contains("<strong>6</strong> of 6 images"));
    assert_eq!(num_cards(&html), 6);
    // Run again as it is, it says the same of the same images.
    scratch.check(&segment(&["scenes/images", "--resume"]), 0);
    assert!(scratch.report("out").contains("<strong>6</strong> of 6 images"));
    // A new run does not know of the old one; a run without a report leaves none, and is owned up to later.
    std::fs::remove_dir_all(scratch.path("out")).unwrap();
    scratch.check(&segment(&["scenes/images", "--no-report"]), 0);
    assert!(!scratch.path("out/report.html").exists() && !scratch.path("out/.report").exists());
    scratch.check(&segment(&["scenes/images", "--resume"]), 0);
    assert!(scratch.report("out").contains("6 more have results but no review"));
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_reports_what_is_done() {
    let scratch = Folder::with_scenes(30);
    let slow = ["scenes/images", "--size=640", "--threads=1"];
    let mut child = scratch.command(&segment(&slow)).spawn().unwrap();
    let has_mask = |folder: &Path| {
        std::fs::read_dir(folder).is_ok_and(|mut files| {
            files.any(|file| file.unwrap().path().extension().is_some_and(|e| e == "png"))
        })
    };
    wait_until(&mut child, || has_mask(&scratch.path("out")));
    signal(&child, "-INT");
    program::check(child, 130);
    let html = scratch.report("out");
    assert!(html.contains("of 30 images") && html.contains("The run was interrupted"), "{}", &html[..9000]);
    assert!((1..30).contains(&num_cards(&html)), "{} cards", num_cards(&html));
    scratch.check(&[&segment(&slow)[..], &["--resume"]].concat(), 0);
    let html = scratch.report("out");
    assert!(html.contains("<strong>30</strong> of 30 images") && !html.contains("interrupted"));
}

#[test]
fn masks_that_are_compared_with_others_show_how_far_both_agree() {
    let scratch = Folder::with_scenes(4);
    scratch.check(&segment(&["scenes/images", "--no-report"]), 0);
    let again = |more: &[&'static str]| {
        let mut arguments = segment(&["scenes/images", "--out=again"]);
        arguments.retain(|argument| *argument != "--out=out");
        [&arguments[..], more].concat()
    };
    scratch.check(&again(&["--compare=out"]), 0);
    let html = scratch.report("again");
    assert!(html.contains("How far to trust the masks") && html.contains("over 4 images."));
    assert!(html.contains("agreement 100 %") && html.contains("stable: look at a few masks"));
    std::fs::create_dir(scratch.path("nothing")).unwrap();
    let (_, refusal) = scratch.check(&again(&["--compare=nothing"]), 2);
    assert!(refusal.contains("--compare nothing: none of the images has a mask there"), "{refusal}");
}
