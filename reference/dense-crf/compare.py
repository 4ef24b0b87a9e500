"""dense-crf against pydensecrf on real images: parity of the marginals, or speed and memory.

    python reference/dense-crf/compare.py parity [--images N]
    python reference/dense-crf/compare.py speed [--rounds N]

Needs pydensecrf, numpy and pillow in this Python, VOC images in ../shared/data/voc-mini (or --voc DIR) and the example
`run_on_arrays` built by `cargo build --release -p dense-crf --examples`. Nothing is written but temporary files.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from scene import energies, smooth_scores

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "target/release/examples/run_on_arrays"


def theirs(image, unary, iterations=10, gaussian=(3, 1), bilateral=(4, 67, 3)):
    import pydensecrf.densecrf as dcrf

    height, width = image.shape[:2]
    crf = dcrf.DenseCRF2D(width, height, len(unary))
    crf.setUnaryEnergy(unary)
    crf.addPairwiseGaussian(gaussian[1], gaussian[0])
    crf.addPairwiseBilateral(bilateral[1], bilateral[2], image, bilateral[0])
    return np.array(crf.inference(iterations))


def run_ours(folder, image, unary, *keys, out="-"):
    height, width = image.shape[:2]
    image.tofile(folder / "image.u8")
    unary.tofile(folder / "unary.f32")
    command = [OURS, width, height, len(unary), folder / "image.u8", folder / "unary.f32", out, *keys]
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def images(folder, count, size=None):
    paths = sorted((folder / "JPEGImages").glob("*.jpg"))
    if size:
        paths = [p for p in paths if Image.open(p).size == size]
    step = max(1, len(paths) // count)
    return [(p.stem, np.array(Image.open(p).convert("RGB"))) for p in paths[::step][:count]]


def parity(args):
    class_counts = [2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 20, 21]
    print("| image | size | classes | mean abs. difference | largest | arg-max equal |")
    print("|---|---|---|---|---|---|")
    worst_mean, worst_equal = 0.0, 1.0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for i, (name, image) in enumerate(images(args.voc, args.images)):
            height, width = image.shape[:2]
            num_classes = class_counts[i % len(class_counts)]
            unary = energies(smooth_scores(num_classes, height, width, seed=i + 1))
            q = theirs(image, unary)
            run_ours(folder, image, unary, out=folder / "out.f32")
            ours = np.fromfile(folder / "out.f32", np.float32).reshape(q.shape)
            difference = np.abs(ours - q)
            equal = (ours.argmax(0) == q.argmax(0)).mean()
            worst_mean, worst_equal = max(worst_mean, difference.mean()), min(worst_equal, equal)
            print(f"| {name} | {width}×{height} | {num_classes} | {difference.mean():.1e} | {difference.max():.1e} | {100 * equal:.3f} % |", flush=True)
    print(f"worst: mean {worst_mean:.1e} (limit 1e-3), arg-max equal {100 * worst_equal:.3f} % (limit 99.9 %)")
    return 0 if worst_mean < 1e-3 and worst_equal >= 0.999 else 1


def peak_of(command):
    """Peak resident memory of a child process in MB."""
    script = "import resource,subprocess,sys;subprocess.run(sys.argv[1:],check=True,stdout=subprocess.DEVNULL);print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss//1024)"
    return int(subprocess.run([sys.executable, "-c", script, *map(str, command)], check=True, capture_output=True, text=True).stdout)


def memory_theirs(folder, height, width, num_classes):
    """Peak memory of pydensecrf in a process of its own, less that of one that only loads the same modules and arrays."""
    load = f"import sys;sys.path.insert(0,{str(Path(__file__).parent)!r});import numpy as np,compare,pydensecrf.densecrf;" \
        f"i=np.fromfile({str(folder / 'image.u8')!r},np.uint8).reshape({height},{width},3);" \
        f"u=np.fromfile({str(folder / 'unary.f32')!r},np.float32).reshape({num_classes},-1);"
    base, full = (peak_of([sys.executable, "-c", load + tail]) for tail in ("", "compare.theirs(i,u)"))
    return full - base


def speed(args):
    print("| classes | image | pydensecrf | ours, 1 thread | ours, 2 threads | factors |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for num_classes in (3, 21):
            for name, image in images(args.voc, 4, size=(500, 375)):
                height, width = image.shape[:2]
                unary = energies(smooth_scores(num_classes, height, width, seed=num_classes))
                seconds = {"theirs": [], 1: [], 2: []}
                for _ in range(args.rounds):
                    start = time.perf_counter()
                    theirs(image, unary)
                    seconds["theirs"].append(time.perf_counter() - start)
                    for threads in (1, 2):
                        # The second of two runs: pydensecrf's process is warm, too.
                        lines = run_ours(folder, image, unary, f"threads={threads}", "repeat=2").splitlines()
                        seconds[threads].append(float(lines[1].split()[0]))
                t, one, two = (np.median(seconds[key]) for key in ("theirs", 1, 2))
                print(f"| {num_classes} | {name} | {t * 1e3:.0f} ms | {one * 1e3:.0f} ms | {two * 1e3:.0f} ms | {t / one:.1f}, {t / two:.1f} |", flush=True)
            call = [OURS, width, height, num_classes, folder / "image.u8", folder / "unary.f32", "-", "threads=2"]
            base = (image.nbytes + 2 * unary.nbytes) >> 20
            print(f"memory with {num_classes} classes beyond program and input: pydensecrf {memory_theirs(folder, height, width, num_classes)} MB, "
                  f"ours {peak_of(call) - base - 2} MB (whole process {peak_of(call)} MB)", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["parity", "speed"])
    parser.add_argument("--voc", type=Path, default=ROOT.parent / "shared/data/voc-mini")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for needed, hint in ((args.voc / "JPEGImages", "no VOC images there"), (OURS, "build the example first")):
        if not needed.exists():
            print(f"skipped: {needed} does not exist ({hint})")
            return 0
    return {"parity": parity, "speed": speed}[args.what](args)


if __name__ == "__main__":
    sys.exit(main())
