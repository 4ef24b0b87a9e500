//! Commands that another program runs in its process: what it hears, and how it stops them.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use vitpcm_cli::in_process::{self, Failure, Program, Said};
use vitpcm_cli::outcome::Outcome;
use vitpcm_data::DrawnScenes;

/// Runs a command, and sets its flag to stop when it says something for which `is_enough`.
fn run(words: &[&str], is_enough: fn(&Said) -> bool) -> (Result<Outcome, Failure>, Vec<Said>) {
    let (hears, heard) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let words: Vec<OsString> = ["vitpcm", "--device=cpu"].iter().chain(words).map(OsString::from).collect();
    let program = Program { hears, stop: stop.clone() };
    std::thread::scope(|scope| {
        let command = scope.spawn(|| in_process::run(&words, program));
        let mut all = Vec::new();
        for said in heard {
            stop.fetch_or(is_enough(&said), Ordering::SeqCst);
            all.push(said);
        }
        (command.join().unwrap(), all)
    })
}

fn scenes(folder: &Path) -> (String, String) {
    DrawnScenes { seed: 4, side: 32 }.write(&folder.join("data"), 4, 1).unwrap();
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    (text("data"), text("run"))
}

#[test]
fn a_program_hears_notes_progress_and_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = scenes(folder.path());
    let words = ["train", "--data", &data, "--out", &out, "--preset=demo", "--epochs=3", "--json=-"];
    let (outcome, heard) = run(&words, |_| false);
    assert!(matches!(outcome, Ok(Outcome::Done)));
    let notes: Vec<&String> =
        heard.iter().filter_map(|said| if let Said::Note(text) = said { Some(text) } else { None }).collect();
    assert!(notes.iter().any(|note| note.contains("classes from the tags of 4 images")), "{notes:?}");
    let bars: Vec<_> = heard
        .iter()
        .filter_map(|said| if let Said::Progress { what, bar } = said { Some((*what, bar)) } else { None })
        .collect();
    assert_eq!(bars.len(), 1);
    let (what, bar) = bars[0];
    assert_eq!((what, bar.position(), bar.length()), ("training", 3, Some(3)));
    let Some(Said::Result(text)) = heard.last() else { panic!("the result comes last") };
    let result: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!((&result["steps"], &result["images"]), (&3.into(), &4.into()));
    assert_eq!(result["classes"].as_array().unwrap().len(), DrawnScenes::classes().len() - 1);
    assert_eq!(
        (&result["verdict"]["measured_on"], &result["verdict"]["images"]),
        (&"validation".into(), &1.into())
    );
}

#[test]
fn a_run_that_the_program_stopped_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = scenes(folder.path());
    let words = ["train", "--data", &data, "--out", &out, "--preset=demo", "--epochs=2000", "--json=-"];
    let (outcome, heard) = run(&words, |said| matches!(said, Said::Progress { .. }));
    assert!(matches!(outcome, Ok(Outcome::Interrupted)));
    assert!(!heard.iter().any(|said| matches!(said, Said::Result(_))), "there is no result yet");
    let (outcome, heard) =
        run(&["train", "--data", &data, "--out", &out, "--epochs=2", "--resume"], |_| false);
    assert!(matches!(outcome, Ok(Outcome::Done)));
    assert!(
        heard.iter().any(|said| matches!(said, Said::Note(text) if text.contains("continuing after step")))
    );
}

#[test]
fn stages_are_said_and_a_job_stops_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = scenes(folder.path());
    let job = ["masks", &data, "--out", &out, "--minutes=0.1", "--json=-"];
    let (outcome, heard) = run(&job, |said| matches!(said, Said::Stage(_)));
    assert!(matches!(outcome, Ok(Outcome::Interrupted)));
    let stages: Vec<_> = heard
        .iter()
        .filter_map(|said| if let Said::Stage(text) = said { Some(text.as_str()) } else { None })
        .collect();
    assert_eq!(stages, ["1/2 learning from the tags"]);
}

#[test]
fn wrong_usage_is_told_without_what_helps_at_a_terminal() {
    let (outcome, heard) = run(&["train", "--data=x"], |_| false);
    let Err(Failure::Usage(text)) = outcome else { panic!("expected wrong usage") };
    assert!(text.starts_with("the following required arguments were not provided"), "{text}");
    assert!(!text.contains("--help") && heard.is_empty(), "{text}");
    let (outcome, _) = run(&["train", "--data=nowhere", "--out=run"], |_| false);
    assert!(
        matches!(outcome, Err(Failure::Usage(text)) if text == "nowhere: there is no such folder or file")
    );
}
