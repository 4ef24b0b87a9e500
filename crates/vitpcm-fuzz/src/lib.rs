//! A bounded fuzzer for every parser of untrusted bytes: deterministic for a seed, on stable Rust, short enough for
//! every test run and as long as wanted by hand. Whatever the input, a target must not panic, exceed its memory limit
//! or take longer than a second. `targets` lists the parsers; docs/lab/reliability.md has the figures.

pub mod allocation;
mod engine;
mod mutation;
mod targets;
mod watch;

pub use engine::{Fault, Finding, Fuzzer, Report, Seed};
pub use targets::{TARGETS, Target};
pub use watch::watch_for_hangs;
