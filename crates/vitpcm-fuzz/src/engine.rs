//! The fuzzing loop: take an interesting input, mutate it, run it, keep it if the target's message is new.
//!
//! Stable Rust has no coverage instrumentation. Instead, a target's message, without numbers and names, serves as
//! coverage: our parsers name what they refuse, so each new message is a new place reached.

use crate::mutation::{MAX_LENGTH, mutate};
use crate::targets::{Subject, Target};
use crate::{allocation, watch};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use vitpcm_data::Random;

/// Time limit per input; a slow run is repeated, since the machine may have been busy.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Inputs kept in addition to the seeds.
const MAX_KEPT: usize = 1000;
/// Attempts to minimise a finding's input.
const MINIMISING_TRIES: usize = 2000;

/// Seed of a run's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// What a target must not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It panicked, with this message.
    Panic(String),
    /// It allocated this many bytes more than before.
    Memory(usize),
    /// It took this long.
    Slow(Duration),
}

/// A fault and an input that shows it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What happened.
    pub fault: Fault,
    /// The input, minimised as far as time allowed.
    pub input: Vec<u8>,
    /// Where it is saved.
    pub path: PathBuf,
}

/// Summary of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Inputs tried.
    pub executions: u64,
    /// Distinct messages of the target.
    pub outcomes: usize,
    /// Peak of allocated bytes above the level before, over all inputs.
    pub peak_bytes: usize,
    /// The longest time of one input.
    pub longest: Duration,
}

/// A target being fuzzed.
pub struct Fuzzer {
    target: &'static Target,
    subject: Subject,
    random: Random,
    inputs: Vec<Vec<u8>>,
    outcomes: HashSet<u64>,
    report: Report,
    findings: PathBuf,
    // Dropped last: the subject works in it.
    _scratch: tempfile::TempDir,
}

impl Fuzzer {
    /// Prepares a target. Adds the inputs of `corpus`, a folder with a subfolder per target, to the target's seeds;
    /// saves findings in `findings`.
    pub fn new(
        target: &'static Target,
        seed: Seed,
        corpus: Option<&Path>,
        findings: &Path,
    ) -> std::io::Result<Fuzzer> {
        keep_panics_quiet();
        let memory = Path::new("/dev/shm");
        let scratch = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }?;
        let mut inputs = (target.seeds)();
        if let Some(folder) = corpus.map(|corpus| corpus.join(target.name)).filter(|folder| folder.is_dir()) {
            let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
                .map(|file| file.map(|file| file.path()))
                .collect::<Result<_, _>>()?;
            files.sort();
            for file in files {
                inputs.push(std::fs::read(file)?);
            }
        }
        inputs.iter_mut().for_each(|input| input.truncate(MAX_LENGTH));
        let name =
            target.name.bytes().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let report = Report { executions: 0, outcomes: 0, peak_bytes: 0, longest: Duration::ZERO };
        let subject = (target.subject)(scratch.path());
        let random = Random::new(&[seed.0, name]);
        let findings = findings.to_path_buf();
        Ok(Fuzzer {
            target,
            subject,
            random,
            inputs,
            outcomes: HashSet::new(),
            report,
            findings,
            _scratch: scratch,
        })
    }

    /// The seeds and the kept inputs.
    pub fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// Runs all known inputs, then mutated ones, until `runs` inputs or `deadline` is reached.
    pub fn run(&mut self, runs: u64, deadline: Option<Instant>) -> Result<Report, Finding> {
        for index in 0..self.inputs.len() {
            let input = self.inputs[index].clone();
            self.attempt(&input)?;
        }
        while self.report.executions < runs && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let mut input = self.inputs[self.random.below(self.inputs.len())].clone();
            let other = &self.inputs[self.random.below(self.inputs.len())];
            mutate(&mut input, other, self.target.dictionary, &mut self.random);
            if let Some(repair) = self.target.repair.filter(|_| self.random.chance(0.75)) {
                repair(&mut input);
            }
            if self.attempt(&input)? && self.inputs.len() < MAX_KEPT {
                self.inputs.push(input);
            }
        }
        watch::end();
        Ok(self.report)
    }

    /// The target's message for an input, or its fault.
    pub fn outcome(&mut self, input: &[u8]) -> Result<String, Fault> {
        watch::begin(input, &self.findings.join(format!("{}.last", self.target.name)));
        let before = allocation::held();
        allocation::begin_peak();
        let started = Instant::now();
        IS_TRYING.store(true, Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.subject)(input)));
        IS_TRYING.store(false, Ordering::Relaxed);
        let (time, bytes) = (started.elapsed(), allocation::peak().saturating_sub(before));
        self.report.peak_bytes = self.report.peak_bytes.max(bytes);
        self.report.longest = self.report.longest.max(time);
        match outcome {
            Err(_) => Err(Fault::Panic(last_panic())),
            Ok(_) if bytes > self.target.max_bytes => Err(Fault::Memory(bytes)),
            Ok(_) if time > MAX_TIME => Err(Fault::Slow(time)),
            Ok(said) => Ok(said),
        }
    }

    /// Runs an input; returns whether the message is new.
    fn attempt(&mut self, input: &[u8]) -> Result<bool, Finding> {
        self.report.executions += 1;
        match self.confirmed_outcome(input) {
            Ok(said) => {
                let is_new = self.outcomes.insert(signature(&said));
                self.report.outcomes = self.outcomes.len();
                Ok(is_new)
            }
            Err(fault) => Err(self.finding(fault, input)),
        }
    }

    /// A slow run counts if it is slow three times.
    fn confirmed_outcome(&mut self, input: &[u8]) -> Result<String, Fault> {
        let mut outcome = self.outcome(input);
        for _ in 0..2 {
            if matches!(outcome, Err(Fault::Slow(_))) {
                outcome = self.outcome(input);
            }
        }
        outcome
    }

    /// Minimises the input while the fault stays the same, and saves it.
    fn finding(&mut self, fault: Fault, input: &[u8]) -> Finding {
        let kind = std::mem::discriminant(&fault);
        let tries = if matches!(fault, Fault::Panic(_)) { MINIMISING_TRIES } else { 20 };
        let mut smallest = input.to_vec();
        let mut num_tries = 0;
        let mut length = smallest.len() / 2;
        while length > 0 && num_tries < tries {
            let mut start = 0;
            while start < smallest.len() && num_tries < tries {
                let mut shorter = smallest.clone();
                shorter.drain(start..smallest.len().min(start + length));
                num_tries += 1;
                match self.outcome(&shorter) {
                    Err(fault) if std::mem::discriminant(&fault) == kind => smallest = shorter,
                    _ => start += length,
                }
            }
            length /= 2;
        }
        let fault = self.confirmed_outcome(&smallest).err().unwrap_or(fault);
        watch::end();
        let mut hasher = DefaultHasher::new();
        smallest.hash(&mut hasher);
        let path = self.findings.join(format!("{}-{:016x}", self.target.name, hasher.finish()));
        // If the folder cannot be written to, the finding is still reported.
        let _ = std::fs::create_dir_all(&self.findings).and_then(|()| std::fs::write(&path, &smallest));
        Finding { fault, input: smallest, path }
    }
}

/// A message without numbers and quotations of the input: everything between a line's first and last mark, and TOML's
/// excerpts.
fn signature(said: &str) -> u64 {
    const MARKS: [char; 4] = ['`', '"', '\'', '['];
    let mut hasher = DefaultHasher::new();
    for line in said.lines().filter(|line| !line.contains('|')).take(4) {
        let before = line.split(MARKS).next().unwrap_or_default();
        let after = line.rsplit(MARKS).next().filter(|_| before.len() < line.len()).unwrap_or_default();
        for part in [before, after] {
            let letters = part.bytes().filter(|byte| byte.is_ascii_lowercase() || *byte == b' ');
            letters.take(60).for_each(|letter| letter.hash(&mut hasher));
        }
    }
    hasher.finish()
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());
static IS_TRYING: AtomicBool = AtomicBool::new(false);

/// Panics are expected here; their messages are stored, not printed.
fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match LAST_PANIC.lock() {
            Ok(mut last) if IS_TRYING.load(Ordering::Relaxed) => *last = info.to_string(),
            _ => usual(info),
        }));
    });
}

fn last_panic() -> String {
    LAST_PANIC.lock().map(|last| last.clone()).unwrap_or_default()
}
