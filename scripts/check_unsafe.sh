#!/usr/bin/env bash
# The unsafe code of docs/unsafe.md under Miri (rules of the language) and valgrind (addresses, memory that was never written). Needs a
# nightly toolchain with Miri and valgrind; an hour on two cores. GPU code is left out: nothing here can run it.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== Miri: rows of a shared buffer, dense-crf"
# So small a lattice is one block: the accesses are tried, not that threads keep apart. Tree Borrows, because Stacked Borrows stops in
# crossbeam-epoch (rayon) before our code; addresses made of integers for the same reason.
MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-num-cpus=2" \
    cargo +nightly miri test --target-dir target/miri -p dense-crf --lib blur

echo "== valgrind: all kernels, on the widest instructions that it knows (AVX2)"
binary() { # CRATE: its unit tests
    cargo test --release --no-run --lib --message-format=json |
        python3 -c "import json,sys
for line in sys.stdin:
    entry = json.loads(line)
    if entry.get('executable') and entry['target']['name'] == '$1' and entry['profile']['test']:
        print(entry['executable'])"
}
for crate in vitpcm_ops dense_crf; do
    valgrind --quiet --error-exitcode=9 --fair-sched=yes "$(binary "$crate")" --test-threads=1
done
