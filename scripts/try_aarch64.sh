#!/usr/bin/env bash
# The aarch64 program on an emulated processor: the library tests, which run every NEON and dot-product kernel, and the mask of a photograph beside
# that of x86-64.
#
#   scripts/try_aarch64.sh tests [CRATE...]     # default: the ones below; minutes to build, minutes to run
#   scripts/try_aarch64.sh masks RELEASE        # RELEASE: both archives of scripts/release_build.sh; needs Pillow
#
# Needs qemu-aarch64-static, a glibc for it in $SYSROOT (apt install qemu-user-static libc6-arm64-cross) and, for the tests, the tools of
# scripts/release_build.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
sysroot=${SYSROOT:-/usr/aarch64-linux-gnu}
# All instructions that qemu knows: dot products and i8mm too.
emulator=(qemu-aarch64-static -cpu max -L "$sysroot")
[ -e "$sysroot/lib/ld-linux-aarch64.so.1" ] || { echo "$sysroot has no glibc for aarch64; SYSROOT names another folder" >&2; exit 1; }

tests() {
    local crates=("$@") packages=() crate
    [ ${#crates[@]} -gt 0 ] || crates=(dense-crf vitpcm-masks vitpcm-data vitpcm-ops vitpcm-nets)
    for crate in "${crates[@]}"; do packages+=(--package "$crate"); done
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="${emulator[*]}"
    # The recurrence's reference, a plain loop, would need an hour for all sizes.
    VITPCM_FEW_SIZES=1 cargo-zigbuild test --release --locked --lib --target $target.2.17 "${packages[@]}"
}

masks() { # RELEASE
    local name precision
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for name in "$1"/vitpcm-*-{x86_64,aarch64}-unknown-linux-gnu.tar.gz; do tar -xzf "$name" -C "$work"; done
    cp reference/nets/photos/chelsea.jpg "$work/"
    # At 448 pixels, as otherwise, the emulator needs many minutes.
    mv "$work"/vitpcm-*-x86_64-*/vitpcm "$work/vitpcm-x86_64"
    mv "$work"/vitpcm-*-aarch64-*/vitpcm "$work/vitpcm-aarch64"
    for precision in f32 int8; do
        "$work/vitpcm-x86_64" segment "$work" --out "$work/x86_64-$precision" --size 112 --precision $precision --quiet >/dev/null
        "${emulator[@]}" "$work/vitpcm-aarch64" segment "$work" --out "$work/aarch64-$precision" --size 112 --precision $precision --quiet >/dev/null
        python3 - "$work/x86_64-$precision" "$work/aarch64-$precision" $precision <<'PYTHON'
import pathlib, sys
from PIL import Image
first, second, precision = sys.argv[1:]
for path in sorted(pathlib.Path(first).glob("*.png")):
    one, other = (Image.open(pathlib.Path(folder) / path.name).tobytes() for folder in (first, second))
    assert len(one) == len(other)
    print(f"{precision} {path.name}: {sum(a != b for a, b in zip(one, other))} of {len(one)} pixels differ, {sum(map(bool, one))} are an object's")
PYTHON
    done
}

case ${1:-} in
    tests) tests "${@:2}" ;;
    masks) masks "${2:?"usage: scripts/try_aarch64.sh masks RELEASE"}" ;;
    *) echo "usage: scripts/try_aarch64.sh tests [CRATE...] | masks RELEASE" >&2; exit 2 ;;
esac
