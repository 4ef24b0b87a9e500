//! A bounded fuzzer of every parser of foreign bytes: deterministic for a seed, on stable Rust, short enough for every test run
//! and as long as wanted by hand. A target must never panic, never hold more memory than its limit and never take longer than a
//! second, whatever the bytes. What each target reads is in `targets`; docs/lab/reliability.md has the figures.

pub mod allocation;
mod engine;
mod mutation;
mod targets;
mod watch;

pub use engine::{Fault, Finding, Fuzzer, Report, Seed};
pub use targets::{TARGETS, Target};
pub use watch::watch_for_hangs;
