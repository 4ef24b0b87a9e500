#!/usr/bin/env bash
# The unsafe code of docs/lab/unsafe.md under four tools: addresses (AddressSanitizer), threads that keep apart (ThreadSanitizer), rules
# of the language (Miri), memory that was never written (valgrind).
#
#     scripts/check_unsafe.sh [address] [thread] [miri] [valgrind]     all of them where none is named
#
# Needs a nightly toolchain with Miri and rust-src, and valgrind. Each sanitizer builds everything anew: minutes on two cores. GPU
# code is left out: nothing here can run it.
set -euo pipefail
cd "$(dirname "$0")/.."
machine=$(rustc -vV | sed -n 's/^host: //p')

under_sanitizer() { # KIND ARGUMENTS...
    local kind=$1
    shift
    RUSTFLAGS="-Zsanitizer=$kind" cargo +nightly test --release --locked --target "$machine" --target-dir "target/$kind-sanitizer" "$@"
}

# Every kernel on every path the machine has, AVX-512 too, in all sizes that the tests know.
address() {
    under_sanitizer address -p vitpcm-ops -p dense-crf --lib --tests
}

# Four threads on however few cores. The standard library is built with it, or its own locks would look like races.
thread() {
    RAYON_NUM_THREADS=4 under_sanitizer thread -Zbuild-std -p vitpcm-ops -p dense-crf --lib
    RAYON_NUM_THREADS=4 under_sanitizer thread -Zbuild-std -p dense-crf --test input
}

# On few and small sizes, without vector instructions. Tree Borrows, because Stacked Borrows stops in crossbeam-epoch (rayon) before our
# code; addresses made of integers for the same reason.
miri() {
    export MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-num-cpus=2"
    cargo +nightly miri test --locked --target-dir target/miri -p dense-crf --lib -- blur
    cargo +nightly miri test --locked --target-dir target/miri -p vitpcm-ops --lib -- for_any cpu::matmul
    VITPCM_FEW_SIZES=1 cargo +nightly miri test --locked --target-dir target/miri -p vitpcm-ops --lib -- cpu::lstm
}

# On the widest instructions that it knows (AVX2).
under_valgrind() {
    binary() { # CRATE: its unit tests
        cargo test --release --locked --no-run --lib --message-format=json |
            python3 -c "import json,sys
for line in sys.stdin:
    entry = json.loads(line)
    if entry.get('executable') and entry['target']['name'] == '$1' and entry['profile']['test']:
        print(entry['executable'])"
    }
    local watch=(valgrind --quiet --error-exitcode=9 --fair-sched=yes)
    "${watch[@]}" "$(binary dense_crf)" --test-threads=1
    "${watch[@]}" "$(binary vitpcm_ops)" --test-threads=1 --skip cpu::lstm
    # Its reference, a plain loop taken some thousand times, would need an hour.
    VITPCM_FEW_SIZES=1 "${watch[@]}" "$(binary vitpcm_ops)" --test-threads=1 cpu::lstm
}

[ $# -gt 0 ] || set -- address thread miri valgrind
for tool in "$@"; do
    echo "== $tool"
    case $tool in
        address | thread | miri) "$tool" ;;
        valgrind) under_valgrind ;;
        *) echo "no such tool: $tool" >&2; exit 2 ;;
    esac
done
