#!/usr/bin/env bash
# The Python wheel as a user gets it: in a fresh Debian without Rust, pip installs it; then it segments a photograph and trains on 40
# tagged images, by the package and by the command that comes with it.
#
#   scripts/try_wheel.sh WHEEL [SUITE]      # SUITE: a Debian release [default: bookworm]
#
# Needs root, mmdebstrap (apt-get install mmdebstrap), Debian's packages, and PyPI for NumPy. The Debian lies in a temporary folder
# and is removed at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "$1")
suite=${2:-bookworm}
[ "$(id -u)" = 0 ] || { echo "it needs root, for chroot" >&2; exit 2; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mmdebstrap --quiet --variant=minbase --include=python3-venv,ca-certificates "$suite" "$root"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# A machine behind its own certificate authority says so to pip.
if [ -n "${PIP_CERT:-}" ]; then
    cp "$PIP_CERT" "$root/root/pip.pem"
    export PIP_CERT=/root/pip.pem
fi
unset PIP_FIND_LINKS
mkdir "$root/root/trial"
cp "$wheel" "$here/docs/photographs.jpg" "$root/root/trial"

cat >"$root/root/trial/trial.py" <<'PYTHON'
"""Segments a photograph and trains on the 40 images."""
import csv, pathlib, shutil
import numpy, vitpcm

result = vitpcm.Segmenter().segment("photographs.jpg", crf=True)
result.save("mask.png")
print(result)
assert result.tags and result.mask.any(), "nothing was found in the photograph"

# 40 of the drawn images, with their tags.
few = pathlib.Path("few")
few.mkdir()
with open("scenes/tags.csv", newline="") as file:
    header, *rows = csv.reader(file)
image, tags = header.index("image"), header.index("tags")
with open(few / "tags.csv", "w", newline="") as file:
    write = csv.writer(file).writerow
    write(["image", "tags"])
    for row in rows[:40]:
        name = pathlib.Path(row[image]).name
        shutil.copy(pathlib.Path("scenes/images") / name, few / name)
        write([name, row[tags]])

told = []
run = vitpcm.train(few, "run", preset="demo", epochs=3, batch=8, val_share=0.25, progress=lambda *step: told.append(step))
print(run.summary["images"] + run.summary["verdict"]["images"], "images:", run.verdict)
assert run.summary["images"] + run.summary["verdict"]["images"] == 40
stage, done, total = told[-1]
assert done == total == run.summary["steps"], told[-1]
learned = vitpcm.Segmenter(run.model).segment(few / name, tags=None)
print(learned, "by the model that was trained on", ", ".join(run.classes))
PYTHON

cat >"$root/root/trial/trial.sh" <<'SHELL'
set -eu
cd /root/trial
! command -v rustc && ! command -v cc
ldd --version | head -n 1
python3 -m venv venv
venv/bin/pip install --quiet ./vitpcm-*.whl
venv/bin/pip list
venv/bin/vitpcm --version
venv/bin/vitpcm demo --data-only scenes
venv/bin/python trial.py
# The command with the model that Python trained.
venv/bin/vitpcm segment few --model run --no-tags --out masks
test "$(ls masks/*.png | wc -l)" = 40
if venv/bin/vitpcm segment nowhere --out nothing; then exit 1; else test $? = 3; fi
SHELL
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    ${PIP_CERT:+PIP_CERT="$PIP_CERT"} ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    ${PIP_DEFAULT_TIMEOUT:+PIP_DEFAULT_TIMEOUT="$PIP_DEFAULT_TIMEOUT"} \
    ${https_proxy:+https_proxy="$https_proxy"} /bin/sh /root/trial/trial.sh
echo "the wheel works in a fresh $suite"
