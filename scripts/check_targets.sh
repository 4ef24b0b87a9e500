#!/usr/bin/env bash
# The code compiles for Windows and macOS, tests and all, checked from any machine: nothing is linked, so no linker of theirs is needed.
#
#   scripts/check_targets.sh [TARGET...]      # default: the ones below
#
# A target without its standard library (rustup target add TARGET) is named and skipped. Where there is none to add, cargo can compile it:
#   RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_unwind,test scripts/check_targets.sh        (needs rust-src)
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-pc-windows-msvc x86_64-pc-windows-gnu aarch64-apple-darwin x86_64-apple-darwin)
checked=0
for target in "${targets[@]}"; do
    library=$(rustc --print target-libdir --target "$target")
    if [ -z "${CARGO_UNSTABLE_BUILD_STD:-}" ] && ! compgen -G "$library/libstd-*.rlib" >/dev/null; then
        echo "$target: skipped: it needs rustup target add $target"
        continue
    fi
    echo "== $target"
    cargo check --release --locked --workspace --all-targets --target "$target"
    checked=$((checked + 1))
done
echo "$checked of ${#targets[@]} targets compile"
