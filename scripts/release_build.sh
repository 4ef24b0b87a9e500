#!/usr/bin/env bash
# A release that anyone can make again: the same commit and toolchain give the same bytes in any folder.
#
#   scripts/release_build.sh [OUT]      # default: release/
#
# OUT gets `vitpcm`, its bill of materials, the lock file's and the binary's checksums. What is built is what is committed: a changed
# tree is refused. Features by $VITPCM_FEATURES (`cuda`, `mpi`); those link what the machine has, and are not claimed to be reproducible.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-release}")
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "the tree has changes that are not committed" >&2
    exit 1
fi

# Nothing of this machine or moment may get in: folders, user, time, locale, threads.
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC CARGO_INCREMENTAL=0
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$PWD=/vitpcm --remap-path-prefix=$out=/out --remap-path-prefix=$cargo_home=/cargo \
--remap-path-prefix=$(rustc --print sysroot)=/rust"
export RUSTFLAGS
unset CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS

cargo build --release --locked --target-dir "$out/target" --package vitpcm-cli --features "${VITPCM_FEATURES:-}"
install -m 755 "$out/target/release/vitpcm" "$out/vitpcm"
python3 scripts/sbom.py >"$out/vitpcm.cdx.json"
{
    rustc --version
    git log -1 --format='commit %H'
    (cd "$out" && sha256sum vitpcm vitpcm.cdx.json)
    sha256sum Cargo.lock
} | tee "$out/checksums.txt"
