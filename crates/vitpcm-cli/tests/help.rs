//! Help that teaches: the examples of every command work when pasted into a shell, and the manual pages and
//! completions know every command.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

const VITPCM: &str = env!("CARGO_BIN_EXE_vitpcm");

fn stdout(arguments: &[&str]) -> String {
    let output = Command::new(VITPCM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_string())
    });
    names.collect()
}

/// All commands with their help, the program itself first.
fn all_commands() -> Vec<(Vec<String>, String)> {
    let mut todo: Vec<Vec<String>> = vec![Vec::new()];
    let mut commands = Vec::new();
    while let Some(words) = todo.pop() {
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        arguments.push("--help");
        let help = stdout(&arguments);
        for name in subcommands(&help) {
            todo.push(words.iter().cloned().chain([name]).collect());
        }
        commands.push((words, help));
    }
    commands
}

/// The lines below "Example".
fn pasteable(help: &str) -> Option<String> {
    let mut lines = help.lines().skip_while(|line| !line.starts_with("Example"));
    lines.next()?;
    let lines: Vec<&str> = lines.take_while(|line| line.starts_with("  ")).collect();
    Some(lines.join("\n"))
}

#[test]
fn every_command_has_an_example_that_works_when_pasted() {
    let commands = all_commands();
    assert!(commands.len() >= 14, "{commands:?}");
    let folder = tempfile::tempdir().unwrap();
    let mut done = std::collections::HashSet::new();
    for (words, help) in &commands {
        let name = format!("vitpcm {}", words.join(" "));
        let script = pasteable(help).unwrap_or_else(|| panic!("{name}: no example to paste in\n{help}"));
        assert!(script.contains(name.trim_end()), "{name}: the example is of something else:\n{script}");
        for line in script.lines() {
            assert!(line.chars().count() <= 80, "{name}: wraps on a narrow terminal: {line}");
        }
        // Minutes of training, what has no end, and what an example before has done.
        let is_run = |line: &&str| {
            let runs_long = line.contains("demo --out") || line.contains("vitpcm serve");
            !runs_long && (line.ends_with('\\') || done.insert(line.to_string()))
        };
        let script: String = script.lines().filter(is_run).map(|line| format!("{line}\n")).collect();
        let programs = Path::new(VITPCM).parent().unwrap().display();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell
            .args(["-e", "-c", &script])
            .current_dir(folder.path())
            .env("PATH", path)
            .env("HOME", folder.path());
        let output = shell.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}:\n{script}\n{stderr}");
    }
}

#[test]
fn every_command_has_a_manual_page_and_every_shell_its_completions() {
    let folder = tempfile::tempdir().unwrap();
    stdout(&["man", "--out", folder.path().to_str().unwrap()]);
    for (words, _) in all_commands() {
        let page =
            folder.path().join(format!("{}.1", [vec!["vitpcm".to_string()], words].concat().join("-")));
        let text =
            std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".TH") && text.contains("Example"), "{}", page.display());
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains("segment") && script.contains("label-studio"), "{shell}");
    }
}
