//! `kill -9` at random moments of training, segmentation and export. After each: every file that has its name is whole,
//! nothing that was finished is gone, and the next start goes on. In the end the results are those of an undisturbed run, byte
//! for byte. Eight kills in every test run; `VITPCM_KILLS=200 cargo test --release --test kills -- --nocapture` for more.
#![cfg(unix)] // `kill` sends the signals
#![allow(clippy::print_stdout, reason = "a table of what was done")]

mod processes;
mod program;
mod untrained;

use processes::{Stage, check, check_same, ended, files, leftovers, results};
use program::signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use vitpcm_data::Random;
use vitpcm_nets::{Model, WeightFile};
use vitpcm_train::{Settings, TrainConfig, check_saved_state};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Train,
    Segment,
    Export,
}

/// A command in a folder of its own, killed again and again.
struct Victim {
    command: Command,
    /// What an undisturbed run gave, and how long it took.
    whole: PathBuf,
    seconds: f64,
    /// Where it is killed.
    out: PathBuf,
    /// What was finished when it was last looked at.
    finished: BTreeMap<String, Vec<u8>>,
    step: u64,
    num_kills: usize,
    num_ends: usize,
    num_files_checked: usize,
    num_leftovers: usize,
}

impl Victim {
    fn new(stage: &Stage, command: Command) -> Victim {
        let whole = stage.path(&format!("{command:?}-whole"));
        let mut victim = Victim {
            command,
            out: whole.clone(),
            whole,
            seconds: 0.0,
            finished: BTreeMap::new(),
            step: 0,
            num_kills: 0,
            num_ends: 0,
            num_files_checked: 0,
            num_leftovers: 0,
        };
        let start = Instant::now();
        check(victim.start(stage), 0);
        victim.seconds = start.elapsed().as_secs_f64();
        victim.out = stage.path(&format!("{command:?}-killed"));
        victim
    }

    fn start(&self, stage: &Stage) -> Child {
        match self.command {
            Command::Train => stage.train(&self.out, &[]),
            Command::Segment => stage.segment(&self.out, &[]),
            Command::Export => stage.export(&self.out),
        }
    }

    /// Starts it, or goes on with it, and kills it at a random moment of an undisturbed run's time.
    fn kill_once(&mut self, stage: &Stage, random: &mut Random) {
        let child = self.start(stage);
        std::thread::sleep(Duration::from_secs_f64(self.seconds * f64::from(random.range(0.0, 1.0))));
        signal(&child, "-KILL");
        match ended(child) {
            (None, _) => self.num_kills += 1,
            // It was faster.
            (Some(0), _) => {
                self.num_ends += 1;
                check_same(&self.out, &self.whole);
                std::fs::remove_dir_all(&self.out).unwrap();
                (self.finished, self.step) = (BTreeMap::new(), 0);
                return;
            }
            (Some(code), stderr) => panic!("{:?} could not go on: exit code {code}\n{stderr}", self.command),
        }
        self.check();
    }

    /// What must hold at any moment.
    fn check(&mut self) {
        self.num_leftovers = self.num_leftovers.max(leftovers(&self.out).len());
        match self.command {
            Command::Train => self.check_run(),
            Command::Segment | Command::Export => self.check_results(),
        }
    }

    /// A state is whole and no older than the one before; so is a model, once there is one.
    fn check_run(&mut self) {
        let state = self.out.join("last/state.safetensors");
        if state.exists() {
            let file = WeightFile::open(&state).unwrap();
            check_saved_state(&file).unwrap();
            let progress: serde_json::Value = serde_json::from_str(&file.metadata()["progress"]).unwrap();
            let step = progress["step"].as_u64().unwrap();
            assert!(step >= self.step, "the state went back from step {} to {step}", self.step);
            self.step = step;
            self.num_files_checked += 1;
        } else {
            assert_eq!(self.step, 0, "the state is gone");
        }
        let model = self.out.join("model.safetensors");
        if model.exists() {
            Model::load(&model, &vitpcm::Device::Cpu).unwrap();
            self.num_files_checked += 1;
        }
        if let Ok(text) = std::fs::read_to_string(self.out.join("config.toml")) {
            TrainConfig::from_toml(&text).unwrap();
        }
    }

    /// Masks and scores are those of the undisturbed run, and stay. So are files of exports, except those that are made anew of
    /// what there is.
    fn check_results(&mut self) {
        let whole = results(&self.whole);
        let found = results(&self.out);
        for (name, bytes) in &found {
            let grows = self.command == Command::Segment && name.starts_with("coco/");
            assert!(grows || whole.get(name) == Some(bytes), "{name} is not what it should be");
            if name.ends_with(".json") {
                serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
            }
        }
        for name in self.finished.keys() {
            assert!(found.contains_key(name), "{name} was finished and is gone");
        }
        self.num_files_checked += found.len();
        self.finished = found;
    }

    /// Lets it go to its end.
    fn finish(&mut self, stage: &Stage) {
        check(self.start(stage), 0);
        check_same(&self.out, &self.whole);
        assert_eq!(leftovers(&self.out), Vec::<String>::new(), "half-written files of killed processes");
    }
}

fn variable(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn nothing_is_lost_or_half_written_however_often_it_is_killed() {
    let num_kills = variable("VITPCM_KILLS", 8);
    let mut random = Random::new(&[variable("VITPCM_SEED", 11) as u64]);
    let stage = Stage::new();
    let mut victims = [Command::Train, Command::Segment, Command::Export].map(|one| Victim::new(&stage, one));
    let start = Instant::now();
    let mut turn = 0;
    while victims.iter().map(|victim| victim.num_kills).sum::<usize>() < num_kills {
        let index = turn % victims.len();
        victims[index].kill_once(&stage, &mut random);
        turn += 1;
    }
    println!("command   kills  ended before  files checked  half-written, at most");
    for victim in &mut victims {
        victim.finish(&stage);
        let Victim { command, num_kills, num_ends, num_files_checked, num_leftovers, .. } = victim;
        println!(
            "{:<8}  {num_kills:>5}  {num_ends:>12}  {num_files_checked:>13}  {num_leftovers:>21}",
            format!("{command:?}").to_lowercase()
        );
    }
    println!("{num_kills} kills in {:.0} s, no file lost, none read in part", start.elapsed().as_secs_f64());
    assert!(is_same_data(&stage), "the data set was written to");
}

/// Whether the images are as they were drawn: exports link to them.
fn is_same_data(stage: &Stage) -> bool {
    let again = tempfile::tempdir().unwrap();
    let scenes = vitpcm_data::DrawnScenes { seed: 2, side: 40 };
    scenes.write(again.path(), processes::NUM_IMAGES - 8, 8).unwrap();
    let same = |folder: &Path| files(&folder.join("images"));
    same(again.path()) == same(&stage.path("data"))
}
