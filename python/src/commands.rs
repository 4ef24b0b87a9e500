//! Commands of the program in this process. Each runs on a thread of its own; the thread that called listens to it, to Ctrl-C and to
//! the callbacks, and asks it to stop where one of these raises.

use crate::{Error, UsageError};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use vitpcm_cli::in_process::{self, Failure, Program, ProgressBar, Said};
use vitpcm_cli::outcome::Outcome;

/// How often Ctrl-C is looked for.
const LISTEN_FOR: Duration = Duration::from_millis(50);
/// How often progress within a stage is told, at most.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// As much as the program's main thread has on Linux.
const STACK: usize = 8 << 20;

/// Run a command line without its first word. say(kind, text) hears "note", "failure" and "result"; progress(stage, done, total)
/// is told how far the work is.
#[pyfunction]
pub(crate) fn run_command(
    py: Python<'_>,
    words: Vec<OsString>,
    say: &Bound<'_, PyAny>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let words: Vec<OsString> = [OsString::from("vitpcm")].into_iter().chain(words).collect();
    let (hears, mut heard) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let program = Program { hears, stop: stop.clone() };
    let worker = std::thread::Builder::new().name("vitpcm".to_owned()).stack_size(STACK);
    let worker = worker.spawn(move || in_process::run(&words, program))?;

    let mut listener = Listener { say, progress, stage: None, work: None };
    let mut raised = None;
    loop {
        let said = py.detach(|| {
            let heard = &mut heard;
            heard.recv_timeout(LISTEN_FOR)
        });
        let signal = py.check_signals();
        let is_over = matches!(said, Err(RecvTimeoutError::Disconnected));
        if raised.is_some() {
            // Asked again: the work ends in the background, at its next safe point.
            signal?;
        } else if let Err(error) = signal.and_then(|()| listener.hear(said.ok())) {
            stop.store(true, Ordering::SeqCst);
            raised = Some(error);
        }
        if is_over {
            break;
        }
    }
    let ended = py.detach(|| worker.join());
    if let Some(error) = raised {
        return Err(error);
    }
    match ended {
        // Inputs that failed were said.
        Ok(Ok(Outcome::Done | Outcome::SomeFailed)) => Ok(()),
        Ok(Ok(Outcome::Interrupted)) => Err(PyKeyboardInterrupt::new_err(())),
        Ok(Err(Failure::Usage(text))) => Err(UsageError::new_err(text)),
        Ok(Err(Failure::Other(text))) => Err(Error::new_err(text)),
        Err(_) => Err(Error::new_err("a bug stopped the command; please report it")),
    }
}

/// What a caller is told.
struct Listener<'a, 'py> {
    say: &'a Bound<'py, PyAny>,
    progress: Option<&'a Bound<'py, PyAny>>,
    stage: Option<String>,
    work: Option<Work>,
}

/// Work of a known length.
struct Work {
    stage: String,
    bar: ProgressBar,
    /// What was told of it last, and when.
    told: Option<((u64, u64), Instant)>,
}

impl Listener<'_, '_> {
    fn hear(&mut self, said: Option<Said>) -> PyResult<()> {
        let (kind, text) = match said {
            None => return self.tell_progress(false),
            Some(Said::Stage(stage)) => {
                self.tell_progress(true)?;
                (self.stage, self.work) = (Some(stage), None);
                return Ok(());
            }
            Some(Said::Progress { what, bar }) => {
                self.tell_progress(true)?;
                let stage = match &self.stage {
                    Some(stage) => format!("{stage}: {what}"),
                    None => what.to_owned(),
                };
                self.work = Some(Work { stage, bar, told: None });
                return self.tell_progress(false);
            }
            Some(Said::Note(text)) => ("note", text),
            Some(Said::Failure(text)) => ("failure", text),
            Some(Said::Result(text)) => ("result", text),
        };
        self.say.call1((kind, text))?;
        self.tell_progress(false)
    }

    /// Calls `progress` if there is anything new; not too often, unless it is the last time for this work.
    fn tell_progress(&mut self, is_last: bool) -> PyResult<()> {
        let (Some(progress), Some(work)) = (self.progress, &mut self.work) else { return Ok(()) };
        let (done, total) = (work.bar.position(), work.bar.length().unwrap_or(0));
        let is_due = match work.told {
            None => true,
            Some((told, _)) if told == (done, total) => false,
            Some((_, moment)) => is_last || done == total || moment.elapsed() >= TELL_EVERY,
        };
        // The length of a training run is known once it begins.
        if total == 0 || !is_due {
            return Ok(());
        }
        work.told = Some(((done, total), Instant::now()));
        progress.call1((&work.stage, done, total)).map(drop)
    }
}

/// The program `vitpcm` with these words, the first of which is its name; returns the exit code. It takes over Ctrl-C: for the console
/// script alone.
#[pyfunction]
pub(crate) fn run_program(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| vitpcm_cli::vitpcm_with(words))
}
