#!/usr/bin/env bash
# Tries scripts/install.sh with a small stand-in for the program: what it installs, and what it says and leaves on each failure.
#
#   scripts/try_install.sh [SHELL]      # default: sh; also try `dash` and `busybox sh`
#
# Needs python3 (a server on this machine), curl and wget. As root, on a machine that allows it, it also mounts a small file system that
# runs full.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC2206 # a command of words
shell=(${1:-sh})
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill $server; umount "$work/small" 2>/dev/null || true; rm -rf "$work"' EXIT

release=$work/release
pack() { # TARGET WORDS_OF_VERSION
    local name=vitpcm-9.9.9-$1
    mkdir -p "$work/pack/$name" "$release"
    printf '#!/bin/sh\n%s\n' "$2" >"$work/pack/$name/vitpcm"
    # Random, so that the archive does not fit into the small file system.
    head -c 200000 /dev/urandom >>"$work/pack/$name/vitpcm"
    chmod 755 "$work/pack/$name/vitpcm"
    tar -C "$work/pack" -czf "$release/$name.tar.gz" "$name"
}
pack x86_64-unknown-linux-gnu 'echo vitpcm 9.9.9; exit 0'
pack aarch64-unknown-linux-gnu 'echo "GLIBC_9.9 not found" >&2; exit 1'
pack x86_64-unknown-linux-gnu-cuda 'echo vitpcm 9.9.9 with CUDA; exit 0'
sums() { (cd "$release" && sha256sum vitpcm-*.tar.gz >SHA256SUMS); }
sums

# Commands of another machine, before the real ones on PATH.
stand_in() { # NAME SCRIPT
    mkdir -p "$work/machine"
    printf '#!/bin/sh\n%s\n' "$2" >"$work/machine/$1"
    chmod 755 "$work/machine/$1"
}
as_machine() { # SYSTEM PROCESSOR LIBC
    stand_in uname "case \$1 in -s) echo '$1' ;; -m) echo '$2' ;; esac"
    stand_in getconf "echo '$3'"
}
as_machine Linux x86_64 "glibc 2.36"

tried=0
path=$work/machine:$PATH
install_from() { # FROM ARGUMENTS...
    PATH=$path VITPCM_INSTALL_DIR=$into "${shell[@]}" scripts/install.sh --from "$@" >"$work/said" 2>&1
}
broken() { echo "$1; it said:" >&2; cat "$work/said" >&2; exit 1; }
installs() { # WHAT FROM ARGUMENTS...
    local what=$1
    shift
    rm -rf "$into"
    install_from "$@" || broken "$what: not installed"
    [ "$(ls -A "$into")" = vitpcm ] || broken "$what: other files in $into"
    grep -q "is installed: $into/vitpcm" "$work/said" || broken "$what: it does not say so"
    tried=$((tried + 1))
}
refuses() { # WHAT EXPECTED_WORDS FROM ARGUMENTS...
    local what=$1 words=$2
    shift 2
    rm -rf "$into"
    mkdir -p "$into"
    echo old >"$into/vitpcm"
    if install_from "$@"; then broken "$what: installed"; fi
    [ "$(wc -l <"$work/said")" -eq 1 ] || broken "$what: expected one line"
    grep -q "^vitpcm is not installed: .*$words" "$work/said" || broken "$what: expected '$words'"
    [ "$(ls -A "$into") $(cat "$into/vitpcm")" = "vitpcm old" ] || broken "$what: $into is changed"
    tried=$((tried + 1))
}

into="$work/a home/bin"
installs "a folder" "$release"
installs "a file address" "file://$release/"
"$into/vitpcm" | grep -qx "vitpcm 9.9.9" || broken "another program"
grep -q "not on your PATH" "$work/said" || broken "it does not mention PATH"
installs "the CUDA program" "$release" --cuda
"$into/vitpcm" | grep -q CUDA || broken "another program"
installs "an update" "$release"
install_from "$release" || broken "not installed a second time"

: >"$work/server"
(cd "$release" && exec python3 -m http.server --bind 127.0.0.1 0 >"$work/server" 2>&1) &
server=$!
for _ in $(seq 100); do grep -q "port" "$work/server" && break; sleep 0.1; done
address=http://127.0.0.1:$(grep -oE 'port [0-9]+' "$work/server" | cut -d' ' -f2)
installs "curl" "$address"
mkdir "$work/few"
for tool in sh bash mktemp mkdir rm mv cp sed head cut cat tar gzip sha256sum chmod tr uname getconf dash busybox; do
    if at=$(command -v $tool); then ln -s "$at" "$work/few/"; fi
done
path=$work/machine:$work/few
refuses "no downloader" "downloading needs curl or wget" "$address"
installs "no downloader is needed for a folder" "$release"
ln -s "$(command -v wget)" "$work/few/wget"
installs "wget" "$address"
refuses "wget, an unknown file" "could not be downloaded" "$address/none"
rm "$work/few/sha256sum"
refuses "nothing that verifies" "needs sha256sum, shasum or openssl" "$release"
path=$work/machine:$PATH
refuses "curl, an unknown file" "could not be downloaded" "$address/none"
refuses "no server" "could not be downloaded" "http://127.0.0.1:1"
refuses "an unknown folder" "could not be copied" "$work/none"

as_machine Darwin arm64 ""
refuses "macOS" "no archive for Darwin" "$release"
as_machine Linux riscv64 "glibc 2.36"
refuses "an unknown processor" "no archive for the processor riscv64" "$release"
as_machine Linux x86_64 "glibc 2.12"
refuses "an old glibc" "its glibc 2.12 is too old" "$release"
stand_in getconf "exit 1"
stand_in ldd "echo 'musl libc (x86_64)' >&2; exit 1"
refuses "musl" "its C library is musl" "$release"
rm "$work/machine/ldd"
as_machine Linux aarch64 "glibc 2.36"
refuses "CUDA on aarch64" "no CUDA archive for aarch64" "$release" --cuda
refuses "a program that does not start" "does not start on this machine: GLIBC_9.9 not found" "$release"
as_machine Linux x86_64 "glibc 2.36"

cp -r "$release" "$work/kept"
printf x >>"$release/vitpcm-9.9.9-x86_64-unknown-linux-gnu.tar.gz"
refuses "a changed archive" "has the checksum .*; expected" "$release"
head -c 1000 "$work/kept/vitpcm-9.9.9-x86_64-unknown-linux-gnu.tar.gz" >"$release/vitpcm-9.9.9-x86_64-unknown-linux-gnu.tar.gz"
sums
refuses "half an archive" "could not be unpacked" "$release"
echo "garbage" >"$release/SHA256SUMS"
refuses "no such archive" "has no archive for x86_64-unknown-linux-gnu" "$release"
rm -r "$release"
mv "$work/kept" "$release"

# Root may write anywhere, so the folder cannot even be made.
echo file >"$work/file"
into=$work/file/bin
if install_from "$release"; then broken "installed below a file"; fi
grep -q "the folder $into cannot be made" "$work/said" || broken "a folder that cannot be made"
tried=$((tried + 1))
into=$work/bin
mkdir -p "$into/vitpcm"
if install_from "$release"; then broken "installed over a folder"; fi
grep -q "is a folder" "$work/said" || broken "a folder in its place"
[ "$(ls -A "$into")" = vitpcm ] || broken "a folder in its place: other files in $into"
tried=$((tried + 1))
if [ "$(id -u)" -ne 0 ]; then
    into=$work/locked
    mkdir -m 555 "$into"
    if install_from "$release"; then broken "installed into a read-only folder"; fi
    grep -q "the folder $into cannot be written to" "$work/said" || broken "a read-only folder"
    tried=$((tried + 1))
elif mkdir "$work/small" && mount -t tmpfs -o size=256k tmpfs "$work/small" 2>/dev/null; then
    into=$work/small/bin
    refuses "a full disk" "No space left on device" "$release"
    mount -o remount,ro "$work/small"
    if install_from "$release"; then broken "installed on a read-only file system"; fi
    grep -q "the folder $into cannot be written to" "$work/said" || broken "a read-only file system"
    tried=$((tried + 1))
else
    echo "a full disk was not tried: it needs a mount"
fi

if "${shell[@]}" scripts/install.sh --colour >"$work/said" 2>&1; then broken "an unknown option is taken"; fi
grep -q "^usage: " "$work/said" || broken "no usage"
echo "install.sh: $tried cases hold (${shell[*]})"
