#!/usr/bin/env bash
# Installs a release archive on a system without Rust, as a user would, and works with it: the demonstration, and masks for a photograph.
#
#   scripts/try_archive.sh RELEASE [SUITE [MIRROR]]     # default: Debian bullseye (glibc 2.31) from deb.debian.org
#
# RELEASE is what scripts/release_build.sh made. The system is a minimal one in a temporary folder, made by mmdebstrap or, where that is missing, debootstrap.
# Needs root, for chroot. An archive of another processor is tried with VITPCM_TRY_ARCH (arm64) and its qemu-ARCH-static, slowly.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(realpath "${1:?"usage: scripts/try_archive.sh RELEASE [SUITE [MIRROR]]"}")
suite=${2:-bullseye}
mirror=${3:-http://deb.debian.org/debian}
arch=${VITPCM_TRY_ARCH:-$(dpkg --print-architecture)}
[ "$(id -u)" -eq 0 ] || { echo "making and entering another system needs root" >&2; exit 1; }

system=$(mktemp -d)
mounted=
cleanup() {
    [ -z "$mounted" ] || umount "$system/proc"
    rm -rf --one-file-system "$system"
}
trap cleanup EXIT
if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --variant=essential --architectures="$arch" "$suite" "$system" "$mirror"
else
    debootstrap --variant=minbase --arch="$arch" "$suite" "$system" "$mirror" >/dev/null
fi
mkdir -p "$system/release" "$system/photos" "$system/proc"
cp "$release"/install.sh "$release"/SHA256SUMS "$release"/vitpcm-*.tar.gz "$system/release/"
cp reference/nets/photos/chelsea.jpg "$system/photos/"
mount -t proc proc "$system/proc"
mounted=yes

inside() { chroot "$system" /usr/bin/env -i HOME=/root PATH=/root/.local/bin:/usr/bin:/bin "$@"; }
echo "== $suite, $arch: $(inside ldd --version | head -n 1)"
if inside sh -c 'command -v cargo rustc cc'; then echo "the system has a compiler" >&2; exit 1; fi
inside sh /release/install.sh --from /release
inside vitpcm segment /photos/chelsea.jpg --out /masks --format png,overlay
inside find /masks -name "chelsea*.png" -size +0 | grep . || { echo "there is no mask of chelsea.jpg" >&2; exit 1; }
if [ -z "${VITPCM_TRY_NO_DEMO:-}" ]; then
    start=$SECONDS
    inside vitpcm demo --out /demo --quiet
    echo "the demonstration took $((SECONDS - start)) s"
fi
echo "the archive works on $suite"
