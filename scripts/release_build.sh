#!/usr/bin/env bash
# Release archives that anyone can make again: the same commit and tools give the same bytes in any folder.
#
#   scripts/release_build.sh [OUT [TARGET...]]     # default: release/, x86_64 and aarch64
#
# A TARGET is x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu or x86_64-unknown-linux-gnu-cuda. For each, OUT gets
# vitpcm-VERSION-TARGET.tar.gz (program, licences, completions, manual pages) and its bill of materials; then install.sh, build.txt (tools and
# commit) and SHA256SUMS of them all. What is built is what is committed: a changed tree is refused.
#
# Needs Rust with the standard libraries of the targets (rustup target add TARGET), Python 3.8 or newer and, for a linker that knows the
# oldest glibc that the program shall start on, `pip install ziglang cargo-zigbuild`. The CUDA archive needs nvcc, and no GPU.
# Any cargo and rustc on PATH will do.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-release}")
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)
# The oldest that Rust's own standard library supports.
glibc=2.17

if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "the tree has changes that are not committed" >&2
    exit 1
fi
for tool in cargo rustc python3 cargo-zigbuild; do
    command -v $tool >/dev/null || { echo "$tool is missing; the head of this script says what is needed" >&2; exit 1; }
done
for target in "${targets[@]}"; do
    case $target in
        x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu | x86_64-unknown-linux-gnu-cuda) ;;
        *) echo "no such target: $target" >&2; exit 2 ;;
    esac
done

# Nothing of this machine or moment may get in: folders, user, time, locale, threads.
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC CARGO_INCREMENTAL=0
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
umask 022
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$PWD=/vitpcm --remap-path-prefix=$out=/out --remap-path-prefix=$cargo_home=/cargo \
--remap-path-prefix=$(rustc --print sysroot)=/rust"
export RUSTFLAGS
unset CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET CARGO_TARGET_DIR
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

features_of() { case $1 in *-cuda) echo cuda ;; esac; }
folder_of() { echo "$out/build/$1"; }

# NVIDIA's libraries are loaded when they are first called, so that the program starts without them: scripts/cuda_loader.py. PTX for
# compute capability 8.0 serves all newer GPUs. nvcc does not promise the same bytes twice.
link_cuda_lazily() { # FOLDER
    local major library
    command -v nvcc >/dev/null || { echo "the CUDA archive needs nvcc on PATH" >&2; return 1; }
    major=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    mkdir -p "$1"
    python3 scripts/cuda_loader.py "$major" >"$1/cuda_loader.c"
    cargo-zigbuild zig cc -- -target "x86_64-linux-gnu.$glibc" -O2 -fPIC -c "$1/cuda_loader.c" -o "$1/cuda_loader.o"
    # candle names these to the linker, which leaves out what it takes nothing from. `moe`, candle's kernels for quantised language models
    # (35 MB, with the toolkit's runtime), is left out because no code of vitpcm reaches it; the linker would name what does.
    for library in cuda cudart cublas cublasLt curand nvrtc moe; do
        cargo-zigbuild zig cc -- -target "x86_64-linux-gnu.$glibc" -shared -o "$1/lib$library.so" -x c /dev/null
    done
    export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
    RUSTFLAGS="$RUSTFLAGS -L native=$1 -C link-arg=$1/cuda_loader.o"
}

build() { # TARGET
    local triple=${1%-cuda} RUSTFLAGS=$RUSTFLAGS
    case $1 in *-cuda) link_cuda_lazily "$(folder_of "$1")/loader" ;; esac
    cargo zigbuild --release --locked --package vitpcm-cli --bin vitpcm --features "$(features_of "$1")" \
        --target "$triple.$glibc" --target-dir "$(folder_of "$1")"
}

program_of() { echo "$(folder_of "$1")/${1%-cuda}/release/vitpcm"; }

# A program of another processor may not run here, but its completions and manual pages are the same. cargo's setting for an emulator counts:
# CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu".
runnable() {
    local target runner
    for target in "${targets[@]}"; do
        runner=${target%-cuda}
        runner=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$runner")_RUNNER
        runner="${!runner:-} $(program_of "$target")"
        if $runner --version >/dev/null 2>&1; then echo "$runner"; return; fi
    done
    echo "none of ${targets[*]} runs on this machine, to write the manual pages; build its own target too" >&2
    return 1
}

pack() { # TARGET
    local name=vitpcm-$version-$1 folder
    folder=$out/archives/$name
    rm -rf "$folder"
    mkdir -p "$folder/completions" "$folder/man"
    install -m 755 "$(program_of "$1")" "$folder/vitpcm"
    install -m 644 README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$folder/"
    install -m 644 crates/vitpcm/model/MODEL_CARD.md crates/vitpcm/model/NOTICE "$folder/"
    "${runnable[@]}" completions bash >"$folder/completions/vitpcm.bash"
    "${runnable[@]}" completions zsh >"$folder/completions/_vitpcm"
    "${runnable[@]}" completions fish >"$folder/completions/vitpcm.fish"
    "${runnable[@]}" man --out "$folder/man" --quiet
    python3 scripts/sbom.py --target "${1%-cuda}" --features "$(features_of "$1")" --licences "$folder/THIRD-PARTY-LICENCES" >"$out/$name.cdx.json"
    install -m 644 "$out/$name.cdx.json" "$folder/vitpcm.cdx.json"
    tar --create --directory "$out/archives" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" --mode='u+rw,go=rX' "$name" | gzip -9 --no-name >"$out/$name.tar.gz"
    (cd "$out" && sha256sum "$name.tar.gz" "$name.cdx.json") >>"$out/SHA256SUMS.new"
}

mkdir -p "$out"
{
    git log -1 --format='commit %H'
    rustc --version
    cargo-zigbuild --version
    echo "zig $(python3 -m ziglang version 2>/dev/null || zig version)"
    sha256sum Cargo.lock
} >"$out/build.txt"
rm -f "$out/SHA256SUMS.new"
for target in "${targets[@]}"; do build "$target"; done
read -ra runnable < <(runnable)
for target in "${targets[@]}"; do pack "$target"; done
install -m 755 scripts/install.sh "$out/install.sh"
(cd "$out" && sha256sum install.sh build.txt) >>"$out/SHA256SUMS.new"
mv "$out/SHA256SUMS.new" "$out/SHA256SUMS"
cat "$out/build.txt" "$out/SHA256SUMS"
