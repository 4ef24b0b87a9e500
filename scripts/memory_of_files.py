#!/usr/bin/env python3
"""The most memory that a command ever had, on few and on many files of the same pictures.

    cargo build --release
    python3 scripts/memory_of_files.py [BINARY] [FEW MANY]      50 and 2,000 if not given

Needs Linux and Python 3.8; nothing else.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

BINARY = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/release/vitpcm")
COUNTS = tuple(map(int, sys.argv[2:4])) if len(sys.argv) > 3 else (50, 2000)
TRAIN = (
    "--preset=demo --epochs=1 --batch=4 --set=model.grid=4 --set=model.inference_grid=4 --set=validation.grid=4 "
    "--set=model.lstm_units=8 --set=loader.cache_megabytes={cache}"
)


def run(*words, program=BINARY):
    """Runs a command; gives its peak of resident memory in megabytes."""
    process = subprocess.Popen([program, *words, "--quiet", "--threads=2", "--device=cpu"], stdout=subprocess.DEVNULL)
    peak = 0
    # Asked while it runs: what the system tells afterwards includes the Python that started it.
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            peak = max([peak] + [int(line.split()[1]) for line in status if line.startswith("VmHWM")])
        time.sleep(0.003)
    if process.returncode:
        sys.exit(f"vitpcm {' '.join(words)} ended with {process.returncode}")
    return peak / 1024


def data_set(folder, drawn, count):
    """So many files, each a second name of one of the drawn scenes."""
    os.makedirs(os.path.join(folder, "images"))
    with open(os.path.join(drawn, "tags.csv"), encoding="utf-8") as file:
        rows = [row.split(",") for row in file.read().splitlines()[1:]]
    lines = ["image,tags,split"]
    for index in range(count):
        image, tags, _ = rows[index % len(rows)]
        name = f"file-{index:05}.png"
        shutil.copy(os.path.join(drawn, "images", image), os.path.join(folder, "images", name))
        lines.append(f"{name},{tags},{'val' if index % 50 == 0 else 'train'}")
    with open(os.path.join(folder, "tags.csv"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def main():
    with tempfile.TemporaryDirectory() as work:
        at = lambda *names: os.path.join(work, *names)
        run("demo", "--data-only", at("drawn"))
        run("random", "--backbone", "vit-nano16", "--out", at("model.safetensors"), program=f"{BINARY}-lab")
        found = {}
        for count in COUNTS:
            data = at(f"data-{count}")
            data_set(data, at("drawn"), count)
            for name, words in {
                "segment --format png,npz,coco": f"segment {data}/images --model {at('model.safetensors')} --size 64 "
                f"--format png,npz,coco --out {at(f'masks-{count}')}",
                "data inspect": f"data inspect {data}",
                "train, nothing cached": f"train --data {data} --out {at(f'run-{count}')} {TRAIN.format(cache=0)}",
                "evaluate": f"evaluate --pred {at(f'masks-{count}')} --truth {at(f'masks-{count}')}",
                "export --format yolo,voc": f"export {at(f'masks-{count}')} --classes {at(f'masks-{count}', 'classes.txt')} "
                f"--out {at(f'exports-{count}')} --format yolo,voc",
            }.items():
                found.setdefault(name, []).append(run(*words.split()))
    print(f"{'':<32}" + "".join(f"{count:>6} files" for count in COUNTS) + "   a file more")
    for name, peaks in found.items():
        each = (peaks[1] - peaks[0]) * 1024 / (COUNTS[1] - COUNTS[0])
        print(f"{name:<32}" + "".join(f"{peak:>9.1f} MB" for peak in peaks) + f"{each:>11.2f} kB")


if __name__ == "__main__":
    main()
