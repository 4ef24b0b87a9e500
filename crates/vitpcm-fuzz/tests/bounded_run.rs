//! Every target, for a moment, in every test run: its own inputs must be accepted, and changed ones must do no harm. Longer runs
//! are for `vitpcm-fuzz` (docs/lab/reliability.md). One test, because memory is counted for the whole program.

use vitpcm_fuzz::allocation::CountingAllocator;
use vitpcm_fuzz::{Fuzzer, Seed, TARGETS, watch_for_hangs};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Inputs for each target: seconds in all.
const RUNS: u64 = 2000;

#[test]
fn no_target_panics_hangs_or_takes_memory_by_its_inputs_word() {
    watch_for_hangs();
    let folder = tempfile::tempdir().unwrap();
    for target in TARGETS {
        let mut fuzzer = Fuzzer::new(target, Seed(1), None, folder.path()).unwrap();
        for input in fuzzer.inputs().to_vec() {
            let outcome = fuzzer.outcome(&input).unwrap();
            assert!(outcome.starts_with("ok"), "{} refuses an input of its own: {outcome}", target.name);
        }
        let report = fuzzer.run(RUNS, None).unwrap_or_else(|finding| {
            panic!("{}: {:?} on {:?}", target.name, finding.fault, finding.input.escape_ascii().to_string())
        });
        assert!(report.outcomes > 1, "{} says always the same: {report:?}", target.name);
    }
}
