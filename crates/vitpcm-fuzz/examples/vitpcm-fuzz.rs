//! `cargo run --release --example vitpcm-fuzz -- TARGET|all`: runs targets by hand, for as long as wanted. See
//! docs/lab/reliability.md. An example, so that `cargo run` alone means `vitpcm`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

use anyhow::bail;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use vitpcm_fuzz::allocation::CountingAllocator;
use vitpcm_fuzz::{Fuzzer, Seed, TARGETS, Target, watch_for_hangs};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Tries hostile bytes on every parser of vitpcm. Exit code 1: something was found.
#[derive(Parser)]
struct Args {
    /// A target, or `all`; without one they are listed.
    target: Option<String>,
    /// Inputs for each target.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    runs: u64,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Another seed, other inputs; several processes want one each.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Further inputs to start from: a folder with a folder for each target.
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Where inputs that break something are kept.
    #[arg(long, default_value = "fuzz-findings")]
    findings: PathBuf,
    /// Tries this one file, and says what the target says of it.
    #[arg(long, conflicts_with_all = ["runs", "corpus"])]
    input: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let targets: Vec<&'static Target> = match args.target.as_deref() {
        None => {
            TARGETS.iter().for_each(|target| println!("{:<20} {}", target.name, target.what));
            return Ok(ExitCode::SUCCESS);
        }
        Some("all") => TARGETS.iter().collect(),
        Some(name) => match Target::named(name) {
            Some(target) => vec![target],
            None => bail!("no target `{name}`; without arguments they are listed"),
        },
    };
    std::fs::create_dir_all(&args.findings)?;
    watch_for_hangs();
    let mut num_findings = 0;
    let mut executions = 0;
    for target in targets {
        let mut fuzzer = Fuzzer::new(target, Seed(args.seed), args.corpus.as_deref(), &args.findings)?;
        if let Some(input) = &args.input {
            println!("{}: {:?}", target.name, fuzzer.outcome(&std::fs::read(input)?));
            continue;
        }
        let started = Instant::now();
        let deadline = started + Duration::from_secs_f64(args.seconds);
        match fuzzer.run(args.runs, Some(deadline)) {
            Ok(report) => {
                executions += report.executions;
                println!(
                    "{:<20} {:>10} executions {:>7.0} a second, {:>4} outcomes, at most {:>6.1} MB and {:.3} s",
                    target.name,
                    report.executions,
                    report.executions as f64 / started.elapsed().as_secs_f64(),
                    report.outcomes,
                    report.peak_bytes as f64 / 1e6,
                    report.longest.as_secs_f64(),
                );
            }
            Err(finding) => {
                num_findings += 1;
                println!("{:<20} {:?}\n    kept in {}", target.name, finding.fault, finding.path.display());
            }
        }
    }
    println!("{executions} executions, {num_findings} findings");
    Ok(if num_findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
