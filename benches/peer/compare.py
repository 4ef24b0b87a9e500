#!/usr/bin/env python3
"""vitpcm beside PyTorch and onnxruntime: one table of ratios, all sides in turns, same weights, same threads.

    cargo build --release && cargo build --release --examples
    python benches/peer/compare.py [PART ...] [--rounds 5] [--threads 2] [--venv DIR] [--images FOLDER]

PART is any of: network (forward passes, of onnxruntime as well), step (a whole training step), lstm, ops, segment (the command, end to end), scaling
(our network on 1 and 2 threads), peak (our matrix products beside the machine's best); all of them without. And gpu: step and
forward on an NVIDIA GPU, with the examples built with `--features cuda`. Where the Python that
runs this has no PyTorch or onnxruntime, a virtual environment with both from PyPI is made (--venv, by default target/peer-venv).

A ratio below 1 says that vitpcm is faster or smaller. Each is the median over rounds, with its range; a round times one side after
the other. The peer is PyTorch in f32 unless the row names another. Memory is the peak of the process that ran the rounds (ru_maxrss), with everything that a user's process would hold.
Run it on a quiet machine.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RELEASE = ROOT / "target/release"
PARTS = ["network", "step", "lstm", "ops", "segment", "scaling", "peak", "gpu"]
PACKAGES = {"torch": "torch", "numpy": "numpy", "pillow": "PIL", "onnx": "onnx", "onnxruntime": "onnxruntime"}


def with_pytorch(venv):
    """Runs this script again in a Python that has the peers, where this one has not."""
    if venv is None and all(importlib.util.find_spec(name) for name in PACKAGES.values()):
        return
    venv = pathlib.Path(venv or ROOT / "target/peer-venv").absolute()
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if pathlib.Path(sys.executable) == python:
        return
    if not python.exists():
        print(f"making {venv} with {', '.join(PACKAGES)} from PyPI", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    imports = f"import {', '.join(PACKAGES.values())}"
    if subprocess.run([python, "-c", imports], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.execv(python, [str(python), *sys.argv])


class Worker:
    """A process that prints a number to check, then does one run for every line it is given and answers its seconds."""

    def __init__(self, command, threads):
        # PyTorch is told by argument, rayon and candle by their variable.
        environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [str(word) for word in command], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.check = float(self.answer())

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"failed: {self.process.args}")
        return line

    def run(self):
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return float(self.answer())

    def round(self):
        """The median of a few runs: about a second and a half of them."""
        time.sleep(0.2)  # until the other side's threads have stopped waiting for more
        seconds = [self.run()]
        while sum(seconds) < 1.5:
            seconds.append(self.run())
        return statistics.median(seconds)

    def peak_megabytes(self):
        """Ends the process. (What it reports counts from its start as long as this process stays small: PyTorch is not imported here.)"""
        self.process.stdin.close()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = status
        return usage.ru_maxrss / 1024


def heading():
    print(f"{'':50} {'vitpcm':>11} {'peer':>11} {'ratio':>6}  range")


def row(name, ours, theirs, unit):
    """One line of the table from the rounds of both sides."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(
        f"{name:50} {statistics.median(ours):8.4g} {unit:2} {statistics.median(theirs):8.4g} {unit:2} "
        f"{statistics.median(ratios):6.2f}  {min(ratios):.2f}-{max(ratios):.2f}",
        flush=True,
    )


def compare_workers(name, ours, theirs, arguments, tolerance=1e-4):
    """Times both workers in turns and prints a line for time and one for memory (of the host)."""
    ours = Worker(ours, arguments.threads)
    theirs = Worker(theirs, arguments.threads)
    if abs(ours.check - theirs.check) > tolerance * abs(theirs.check):
        sys.exit(f"{name}: the two sides do not compute the same: {ours.check} and {theirs.check}")
    for worker in (ours, theirs):
        worker.run()
    rounds = [(ours.round(), theirs.round()) for _ in range(arguments.rounds)]
    row(name, *zip(*rounds), "s")
    row(f"peak memory, {name}", [ours.peak_megabytes()], [theirs.peak_megabytes()], "MB")


def models(folder):
    """Untrained model files that both sides read."""
    for backbone in ("vit-s16", "vit-b16"):
        command = [RELEASE / "vitpcm-lab", "random", "--backbone", backbone, "--out", f"{folder}/{backbone}.safetensors"]
        subprocess.run(command, check=True, capture_output=True)


CPU = ("cpu", "f32")


def ours(place, task, model, number):
    return [RELEASE / "examples/time_network", *place, task, model, number]


def theirs(arguments, place, task, model, backbone, number):
    return [sys.executable, HERE / "network.py", arguments.threads, *place, task, model, backbone, number]


def network(arguments, folder):
    for title, backbone, side in [("S", "vit-s16", 384), ("S", "vit-s16", 960), ("B", "vit-b16", 384)]:
        model = f"{folder}/{backbone}.safetensors"
        name = f"ViT-{title}/16 forward, {side} px"
        commands = {precision: ours(("cpu", precision), "forward", model, side) for precision in ("f32", "int8")}
        for peer in ("cpu", "onnxruntime"):
            commands[peer] = theirs(arguments, (peer, "f32"), "forward", model, backbone, side)
        workers = {side: Worker(command, arguments.threads) for side, command in commands.items()}
        found = workers["cpu"].check
        for side, worker in workers.items():
            # Rounding to 8 bits shows in the scores.
            if abs(worker.check - found) > (2e-2 if side == "int8" else 1e-4) * abs(found):
                sys.exit(f"{name}: {side} does not compute the same: {worker.check} and {found}")
            worker.run()
        rounds = [{side: worker.round() for side, worker in workers.items()} for _ in range(arguments.rounds)]
        memory = {side: [worker.peak_megabytes()] for side, worker in workers.items()}
        for mine, peer, label in [("f32", "cpu", ""), ("int8", "cpu", ", int8"), ("f32", "onnxruntime", " / onnxruntime"),
                                  ("int8", "onnxruntime", ", int8 / onnxruntime")]:
            row(name + label, [times[mine] for times in rounds], [times[peer] for times in rounds], "s")
        for mine, label in [("f32", ""), ("int8", ", int8")]:
            row(f"peak memory, {name}{label}", memory[mine], memory["cpu"], "MB")


def step(arguments, folder):
    model = f"{folder}/vit-s16.safetensors"
    name = "training step, ViT-S/16"
    compare_workers(name, ours(CPU, "step", model, 4), theirs(arguments, CPU, "step", model, "vit-s16", 4), arguments)


def gpu_megabytes():
    """What is in use on the first GPU, by all processes."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(query, check=True, capture_output=True, text=True).stdout)


def compare_on_gpu(name, ours, theirs, arguments, tolerance):
    """As `compare_workers`, with the GPU's memory: what is in use with the one process at work, and with both."""
    before = gpu_megabytes()
    workers, memory = [], []
    for command in (ours, theirs):
        workers.append(Worker(command, arguments.threads))
        for _ in range(5):
            workers[-1].run()
        memory.append(gpu_megabytes() - before - sum(memory))
    if abs(workers[0].check - workers[1].check) > tolerance * abs(workers[1].check):
        sys.exit(f"{name}: the two sides do not compute the same: {workers[0].check} and {workers[1].check}")
    rounds = [[1000 * worker.round() for worker in workers] for _ in range(arguments.rounds)]
    row(name, *zip(*rounds), "ms")
    row(f"GPU memory, {name}", memory[:1], memory[1:], "MB")
    for worker in workers:
        worker.peak_megabytes()


def gpu(arguments, folder):
    """On an NVIDIA GPU: the example is built with `--features cuda`."""
    for precision in ("bf16", "f32"):
        place = ("cuda", precision)
        for backbone in ("vit-s16", "vit-b16"):
            model = f"{folder}/{backbone}.safetensors"
            for task, number, name in [("step", 16, "step of 16 images"), ("forward", 960, "forward, 960 px")]:
                peer = theirs(arguments, place, task, model, backbone, number)
                name = f"{backbone} {precision}, {name}"
                # Both sides round to bf16, at different places.
                tolerance = 1e-3 if precision == "bf16" else 1e-4
                compare_on_gpu(name, ours(place, task, model, number), peer, arguments, tolerance)


def time_ops(side, names, threads):
    """Name -> (milliseconds, GFLOP/s) of the operations whose names begin so, on one side."""
    command = {"ours": [RELEASE / "examples/time_ops"], "theirs": [sys.executable, HERE / "ops.py"]}[side]
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    output = subprocess.run([*command, *names], env=environment, check=True, capture_output=True, text=True).stdout
    return {fields[0]: (float(fields[1]), float(fields[3])) for fields in map(str.split, output.splitlines())}


def operation_rounds(names, arguments):
    """Both sides in turns: a list of (ours, theirs)."""
    sides = ("ours", "theirs")
    return [[time_ops(side, names, arguments.threads) for side in sides] for _ in range(arguments.rounds)]


def lstm(arguments, _):
    name = "hv_bilstm_backward_24"
    rounds = operation_rounds([name], arguments)
    row("HV-BiLSTM forward and backward", *zip(*[(mine[name][0], peer[name][0]) for mine, peer in rounds]), "ms")


def operations(arguments, _):
    rounds = operation_rounds([], arguments)
    for name in rounds[0][0]:
        row(name, *zip(*[(mine[name][0], peer[name][0]) for mine, peer in rounds]), "ms")


def segment(arguments, folder):
    import segment as command

    command.compare(arguments, f"{folder}/vit-s16.safetensors", row)


def scaling(arguments, folder):
    """Our network on one thread and on two, in turns."""
    for name, words in [("forward, 384 px", (CPU, "forward", f"{folder}/vit-s16.safetensors", 384)),
                        ("forward, 960 px", (CPU, "forward", f"{folder}/vit-s16.safetensors", 960)),
                        ("training step", (CPU, "step", f"{folder}/vit-s16.safetensors", 4))]:
        one, two = Worker(ours(*words), 1), Worker(ours(*words), 2)
        one.run(), two.run()
        rounds = [(one.round(), two.round()) for _ in range(arguments.rounds)]
        speedups = [a / b for a, b in rounds]
        print(f"1 to 2 threads, ViT-S/16 {name:15} {statistics.median(speedups):.2f} times"
              f"  {min(speedups):.2f}-{max(speedups):.2f}", flush=True)
        one.peak_megabytes(), two.peak_megabytes()


def peak(arguments, _):
    """The machine's peak is the best product of two large matrices that either side shows; how near do our operations come?"""
    rounds = operation_rounds(["product", "linear", "attention", "hv_bilstm"], arguments)
    rates = {name: [[side[name][1] for side in sides] for sides in rounds] for name in rounds[0][0]}
    best_ours, best_theirs = (max(side) for side in zip(*rates["product_2048"]))
    print(f"best product of 2048 x 2048 matrices: ours {best_ours:.0f} GFLOP/s, PyTorch's {best_theirs:.0f} GFLOP/s")
    for name, found in rates.items():
        medians = [statistics.median(side) for side in zip(*found)]
        shares = [100 * rate / max(best_ours, best_theirs) for rate in medians]
        print(f"{name:32} ours {medians[0]:4.0f} GFLOP/s ({shares[0]:.0f} %)  PyTorch's {medians[1]:4.0f} ({shares[1]:.0f} %)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--venv", help="a virtual environment to use, or to make")
    parser.add_argument("--images", help="folder of JPEGs for `segment` [default: the photographs of reference/nets]")
    parser.add_argument("--count", type=int, default=6, help="images of `segment`")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}; expected any of {', '.join(PARTS)}")
    with_pytorch(arguments.venv)
    versions = "import torch, onnxruntime; print(f'PyTorch {torch.__version__}, onnxruntime {onnxruntime.__version__}')"
    versions = subprocess.run([sys.executable, "-c", versions], capture_output=True, text=True).stdout.strip()
    print(f"{versions}, {arguments.threads} threads, {arguments.rounds} rounds")
    heading()
    run = dict(zip(PARTS, [network, step, lstm, operations, segment, scaling, peak, gpu]))
    with tempfile.TemporaryDirectory() as folder:
        models(folder)
        for part in arguments.parts or [part for part in PARTS if part != "gpu"]:
            run[part](arguments, folder)


if __name__ == "__main__":
    main()
