//! The program as tests run it: to its end, with its exit code and what it says; and folders to run it in.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program with arguments; what it says is kept for [`check`].
pub(crate) fn vitpcm(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vitpcm"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end and expects an exit code; gives stdout and stderr.
#[track_caller]
pub(crate) fn check(child: Child, code: i32) -> (String, String) {
    let output = child.wait_with_output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    (stdout, stderr)
}

/// Runs a line in a folder and expects an exit code; gives all that was said.
#[track_caller]
pub(crate) fn run(folder: &Path, line: &str, code: i32) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (stdout, stderr) = check(vitpcm(&words).current_dir(folder).spawn().unwrap(), code);
    stderr + &stdout
}

/// Sends a signal; a process that has ended takes none.
pub(crate) fn signal(child: &Child, name: &str) {
    let _ = Command::new("kill").args([name, &child.id().to_string()]).stderr(Stdio::null()).status();
}

/// Waits until something is so, or the process has ended.
#[track_caller]
pub(crate) fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(300), "it did not happen in five minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Rows of a run's metrics.
pub(crate) fn num_rows(run: &Path) -> usize {
    std::fs::read_to_string(run.join("metrics.csv")).map_or(0, |text| text.lines().count().saturating_sub(1))
}

/// A folder that goes with its test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a file, with its folders.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// The program in this folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = vitpcm(arguments);
        command.current_dir(self.0.path());
        command
    }

    /// Runs the program here and expects an exit code; gives stdout and stderr.
    #[track_caller]
    pub(crate) fn check(&self, arguments: &[&str], code: i32) -> (String, String) {
        check(self.command(arguments).spawn().unwrap(), code)
    }
}
