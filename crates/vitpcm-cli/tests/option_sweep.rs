//! Every option of every command, and every key of `--set`, with extreme values: nothing panics, hangs, takes all memory
//! or ends with a code that is not documented. Commands and options are read from `--help`, so that new ones are
//! swept, too.
#![cfg(unix)]

mod untrained;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vitpcm_data::DrawnScenes;

const VITPCM: &str = env!("CARGO_BIN_EXE_vitpcm");

const EXTREMES: [&str; 8] = ["0", "1", "18446744073709551615", "-1", "NaN", "inf", "1e308", ""];

/// Options whose largest value asks for weeks of work, or for more threads than a small machine runs well.
const LONG: [&str; 3] = ["epochs", "steps", "threads"];

/// Longer than any of these runs should take, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Address space of a run, in KiB; threads and mapped files count.
const MEMORY_KIB: u64 = 6 << 20;

/// Lines that run each command on tiny data in a moment; `{out}` is another folder each time.
const COMMANDS: [&str; 18] = [
    "demo --data-only model.safetensors", // which is no folder: drawing all scenes takes seconds
    "masks data/classes.txt --out {out}", // which is no folder: the embedded network takes seconds
    "train --data data --out {out} --preset=demo --epochs=1 --batch=4 --set=model.grid=4 \
     --set=model.inference_grid=4 --set=validation.grid=4 --set=model.lstm_units=8 \
     --set=schedule.effective_batch=8 --set=validation.every_epochs=1 --threads=2",
    "verify --images data/images --masks data/masks --val-images data/images --val-truth data/masks \
     --classes data/classes.txt --out {out} --backbone=resnet-nano --set=crops.side=33 --scales=1 --crf \
     --crf-set=iterations=1 --batch=2 --set=schedule.steps=1 --set=validation.every_steps=0",
    "segment data/images/scene-0001.png --model model.safetensors --out {out} --size=32 --crf --crf-set=iterations=1 \
     --min-confidence=0.5 --format=png,npz,voc,labelme",
    "serve --port=0 --model model.safetensors --size=32",
    "refine --images data/images --scores scores/npz --out {out} --crf-set=iterations=1 --min-confidence=0.5",
    "propose --data nowhere --masks data/masks --out {out}", // the same
    "evaluate --pred data/masks --truth data/masks",
    "export data/masks --classes data/classes.txt --images data/images --out {out} --format=coco,labelme",
    "data inspect data",
    "model inspect model.safetensors",
    "model convert model.safetensors --store=f16 --out {out}.safetensors",
    "model export model.safetensors --size=32 --out {out}.onnx",
    "model fit-tags --model model.safetensors --data nowhere --out {out}.safetensors", // the same
    "model check-tags --model model.safetensors --data nowhere",
    "completions bash",
    "man --out {out}",
];

/// A folder with data and a model for all of these.
fn stage() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DrawnScenes { seed: 2, side: 24 }.write(&folder.path().join("data"), 6, 2).unwrap();
    untrained::write(&folder.path().join("model.safetensors"), &DrawnScenes::classes(), 0);
    let line =
        "segment data/images/scene-0001.png --model model.safetensors --out scores --size=32 --format=npz";
    assert_eq!(ended(start(&words(line), folder.path()), LIMIT).0, Some(0), "{line}");
    folder
}

fn words(line: &str) -> Vec<String> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let out = format!("out/{}", RUNS.fetch_add(1, Ordering::Relaxed));
    line.split_whitespace().map(|word| word.replace("{out}", &out)).collect()
}

fn start(arguments: &[String], folder: &Path) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {MEMORY_KIB} && exec \"$0\" \"$@\""), VITPCM]).args(arguments);
    std::fs::create_dir_all(folder.join("out")).unwrap();
    shell.current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
    shell.stdout(if arguments[0] == "serve" { Stdio::piped() } else { Stdio::null() });
    shell.spawn().unwrap()
}

/// The exit code and what was said; no code after a signal, or when the time is over.
fn ended(mut child: Child, limit: Duration) -> (Option<i32>, String) {
    let mut stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = stderr.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    });
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begin.elapsed() > limit => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    (status.code(), reader.join().unwrap())
}

fn help(command: &[&str]) -> String {
    let output = Command::new(VITPCM).args(command).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The options in a help text that take a value.
fn options(help: &str) -> Vec<String> {
    let option = |line: &str| {
        let (name, value) = line[line.find("--")? + 2..].split_once(' ')?;
        (line.trim_start().starts_with('-') && value.starts_with('<')).then(|| name.to_owned())
    };
    help.lines().filter_map(option).collect()
}

/// What a number may be at least and at most, as a refusal says it.
fn bounds(refusal: &str) -> Vec<String> {
    let range = refusal.lines().find_map(|line| line.split_once("number from ")?.1.split_once(" to "));
    range.map_or(Vec::new(), |(least, most)| vec![least.to_owned(), most.to_owned()])
}

/// The words that lead to each command that does something.
fn commands() -> Vec<Vec<String>> {
    let (mut todo, mut found) = (vec![Vec::<String>::new()], Vec::new());
    while let Some(command) = todo.pop() {
        let help = help(&command.iter().map(String::as_str).collect::<Vec<_>>());
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let names = listed.take_while(|line| !line.is_empty());
        let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let names: Vec<&str> = names.filter(|name| !name.is_empty() && *name != "help").collect();
        todo.extend(names.iter().map(|name| [&command[..], &[name.to_string()]].concat()));
        if names.is_empty() {
            found.push(command);
        }
    }
    found
}

/// Runs all lines, several at a time; every one that ends badly.
fn bad_ends(lines: &[Vec<String>], folder: &Path) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut bad = Vec::new();
        while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut child = start(line, folder);
            if line[0] == "serve" {
                // It says where it listens, and ends when it is told to.
                let mut first = [0];
                let _ = child.stdout.as_mut().unwrap().read(&mut first);
                let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
            }
            let (code, said) = ended(child, LIMIT);
            if !matches!(code, Some(0..=3)) || said.contains("panicked") {
                let said: String = said.chars().take(400).collect();
                bad.push(format!("{code:?} of vitpcm {}\n{said}", line.join(" ")));
            }
        }
        bad
    };
    // Runs this short wait for the disk half of the time.
    let num_workers = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..num_workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn no_value_of_any_option_makes_a_command_panic_or_hang() {
    let folder = stage();
    let mut lines = Vec::new();
    for command in commands() {
        let name = command.join(" ");
        let is_it = |line: &&&str| line.split_whitespace().take(command.len()).eq(command.iter());
        let base = COMMANDS.iter().find(is_it).unwrap_or_else(|| panic!("no line of COMMANDS runs {name}"));
        let options = options(&help(&command.iter().map(String::as_str).collect::<Vec<_>>()));
        assert!(options.contains(&"seed".to_owned()), "{name}: {options:?}");
        for option in &options {
            let with = |value: &str| [words(base), vec![format!("--{option}={value}")]].concat();
            lines.extend(EXTREMES.map(with));
            if !LONG.contains(&option.as_str()) {
                let (_, refusal) = ended(start(&with("NaN"), folder.path()), LIMIT);
                lines.extend(bounds(&refusal).iter().map(|bound| with(bound)));
            }
        }
        lines.push(words(base));
    }
    assert!(lines.len() > 1000, "{}", lines.len());
    let bad = bad_ends(&lines, folder.path());
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), lines.len(), bad.join("\n"));
}

#[test]
fn no_value_of_any_setting_makes_a_training_panic_or_hang() {
    let folder = stage();
    let mut lines = Vec::new();
    for command in ["train", "verify"] {
        let base = COMMANDS.iter().find(|line| line.starts_with(command)).unwrap();
        let run = words(&base.replace("{out}", command));
        assert_eq!(ended(start(&run, folder.path()), LIMIT).0, Some(0), "{run:?}");
        let config = std::fs::read_to_string(folder.path().join(command).join("config.toml")).unwrap();
        let keys = keys(&config.parse().unwrap());
        assert!(keys.len() > 20, "{keys:?}");
        for key in keys {
            let with = |value: &str| [words(base), vec![format!("--set={key}={value}")]].concat();
            lines.extend(EXTREMES.map(with));
        }
    }
    let bad = bad_ends(&lines, folder.path());
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), lines.len(), bad.join("\n"));
}

/// The dotted keys of all settings.
fn keys(table: &toml::Table) -> Vec<String> {
    let keys = table.iter().flat_map(|(key, value)| match value {
        toml::Value::Table(inner) => keys(inner).iter().map(|inner| format!("{key}.{inner}")).collect(),
        _ => vec![key.clone()],
    });
    keys.collect()
}
