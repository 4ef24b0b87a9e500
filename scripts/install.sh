#!/bin/sh
# Installs the program `vitpcm` for this user, on Linux x86-64 or aarch64, from a release's archive:
#
#   curl -fsSL https://github.com/vitpcm/vitpcm/releases/latest/download/install.sh | sh
#   sh install.sh [--cuda] [--version X.Y.Z] [--from FOLDER|URL]
#
#   --cuda       the program that also computes on NVIDIA GPUs (x86-64)
#   --version    a certain release, not the newest
#   --from       take archive and SHA256SUMS from a folder or another address
#
# It goes to $VITPCM_INSTALL_DIR, by default ~/.local/bin. The archive's checksum is verified, and the program started once, before anything is
# replaced; on any failure everything stays as it was. Nothing else is changed: no settings, no PATH.
set -eu

releases=https://github.com/vitpcm/vitpcm/releases
other_way='build it instead: cargo install --git https://github.com/vitpcm/vitpcm vitpcm-cli'

fail() {
    echo "vitpcm is not installed: $(echo "$*" | tr -s '\n' ' ')" >&2
    exit 1
}

usage() {
    echo "usage: install.sh [--cuda] [--version X.Y.Z] [--from FOLDER|URL]" >&2
    exit 2
}

has() { command -v "$1" >/dev/null 2>&1; }

# The target of the archive for this machine.
machine() {
    system=$(uname -s)
    [ "$system" = Linux ] || fail "there is no archive for $system; $other_way"
    processor=$(uname -m)
    case $processor in
        x86_64 | amd64) processor=x86_64 ;;
        aarch64 | arm64) processor=aarch64 ;;
        *) fail "there is no archive for the processor $processor; $other_way" ;;
    esac
    if [ "$processor$cuda" = aarch64yes ]; then
        fail "there is no CUDA archive for aarch64; $other_way --features cuda"
    fi
    check_libc
    echo "$processor-unknown-linux-gnu$([ $cuda = no ] || echo -cuda)"
}

# glibc 2.17 or newer. Where its version cannot be found out, starting the program decides.
check_libc() {
    named=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 || true)
    case $named in
        *musl*) fail "its C library is musl, and the archives need glibc; $other_way" ;;
    esac
    version=$(echo "$named" | sed -n '1s/.* \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p')
    major=${version%%.*}
    minor=${version#*.}
    if [ -n "$version" ] && { [ "$major" -lt 2 ] || { [ "$major" -eq 2 ] && [ "$minor" -lt 17 ]; }; }; then
        fail "its glibc $version is too old; the archives need 2.17"
    fi
}

# Copies or downloads one file of the release.
get() { # NAME TO
    case $from in
        http://* | https://*)
            if has curl; then
                said=$(curl --fail --silent --show-error --location --retry 2 --output "$2" "$from/$1" 2>&1)
            elif has wget; then
                said=$(wget -q -O "$2" "$from/$1" 2>&1)
            else
                fail "downloading needs curl or wget"
            fi || fail "$from/$1 could not be downloaded to $work${said:+: $said}"
            ;;
        *) said=$(cp "${from#file://}/$1" "$2" 2>&1) || fail "$from/$1 could not be copied to $work: $said" ;;
    esac
}

checksum() { # FILE
    if has sha256sum; then
        said=$(sha256sum <"$1")
    elif has shasum; then
        said=$(shasum -a 256 <"$1")
    elif has openssl; then
        said=$(openssl dgst -sha256 -r <"$1")
    else
        fail "verifying the download needs sha256sum, shasum or openssl"
    fi
    echo "${said%% *}"
}

main() {
    cuda=no
    from=$releases/latest/download
    while [ $# -gt 0 ]; do
        case $1 in
            --cuda) cuda=yes ;;
            --version) [ $# -gt 1 ] || usage; from=$releases/download/v${2#v}; shift ;;
            --from) [ $# -gt 1 ] || usage; from=${2%/}; shift ;;
            *) usage ;;
        esac
        shift
    done
    target=$(machine)
    for tool in tar gzip; do has $tool || fail "unpacking needs $tool"; done

    into=${VITPCM_INSTALL_DIR:-${HOME:?}/.local/bin}
    said=$(mkdir -p "$into" 2>&1) || fail "the folder $into cannot be made: $said"
    # In the same folder, so that the last step is one renaming, and so that a full disk shows before it.
    work=$(mktemp -d "$into/.vitpcm-install.XXXXXX" 2>/dev/null) || fail "the folder $into cannot be written to"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP

    get SHA256SUMS "$work/SHA256SUMS"
    archive=$(sed -n "s/^[0-9a-f]* [ *]\(vitpcm-[0-9][^ /]*-$target\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS" | head -n 1)
    [ -n "$archive" ] || fail "$from has no archive for $target"
    expected=$(sed -n "s/^\([0-9a-f]*\) [ *]$archive\$/\1/p" "$work/SHA256SUMS")
    get "$archive" "$work/$archive"
    found=$(checksum "$work/$archive")
    [ "$found" = "$expected" ] || fail "$archive has the checksum $found; expected $expected"

    name=${archive%.tar.gz}
    said=$(cd "$work" && gzip -dc "$archive" 2>&1 >archive.tar && tar -xf archive.tar "$name/vitpcm" 2>&1) ||
        fail "$archive could not be unpacked in $work: $said"
    program=$work/$name/vitpcm
    chmod 755 "$program"
    said=$("$program" --version 2>&1) || fail "the program does not start on this machine: $said"
    [ ! -d "$into/vitpcm" ] || fail "$into/vitpcm is a folder"
    moved=$(mv -f "$program" "$into/vitpcm" 2>&1) || fail "$into/vitpcm cannot be written: $moved"

    echo "$said is installed: $into/vitpcm"
    case :$PATH: in
        *":$into:"*) ;;
        *) echo "This folder is not on your PATH; add it: export PATH=\"$into:\$PATH\"" ;;
    esac
    echo "Try it: vitpcm demo"
}

# On the last line, so that half a script does nothing.
main "$@"
