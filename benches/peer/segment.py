"""`vitpcm segment` of a folder beside the same work in PyTorch, for compare.py.

Both sides read the same untrained model file, decode, resize (antialiased bilinear), run the network, enlarge the scores, take the
arg-max and write one indexed PNG an image. Seconds an image are those of a run over all images less one over the first, so that
neither start counts. Run with images it is PyTorch's side:

    python segment.py THREADS MODEL BACKBONE SIDE OUT IMAGE ...
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = 960


def segment(threads, model, backbone, side, out, images):
    """PyTorch's side."""
    import network
    import numpy as np
    import torch
    import torch.nn.functional as F
    from PIL import Image

    torch.set_num_threads(threads)
    palette = [channel for label in range(256) for channel in (label, label, label)]
    with torch.inference_mode():
        net = network.load(model, backbone)
        for path in images:
            pixels = torch.from_numpy(np.asarray(Image.open(path).convert("RGB"))).permute(2, 0, 1)[None].float()
            height, width = pixels.shape[2:]
            pixels = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
            scores, _ = net((pixels - 127.5) / 127.5)
            scores = F.interpolate(scores.permute(0, 3, 1, 2), (height, width), mode="bilinear")
            mask = Image.fromarray(scores[0].argmax(0).to(torch.uint8).numpy())
            mask.putpalette(palette)
            mask.save(pathlib.Path(out) / (pathlib.Path(path).stem + ".png"))


def measured(command):
    """Seconds and peak megabytes of a process."""
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {command}\n{process.stderr.read().decode()}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def compare(arguments, model, row):
    """Prints the lines of the table: time an image, memory, and our rate beside that of our network alone."""
    import compare
    import numpy as np
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        images = inputs(arguments, pathlib.Path(folder))
        mine, peer = f"{folder}/ours", f"{folder}/theirs"
        os.mkdir(peer)

        def our_command(images):
            return [ROOT / "target/release/vitpcm", "segment", *images, "--model", model, "--out", mine, "--size", SIDE,
                    "--no-tags", "--precision", "f32", "--threads", arguments.threads, "--quiet"]

        def their_command(images):
            return [sys.executable, __file__, arguments.threads, model, "vit-s16", SIDE, peer, *images]

        worker = compare.Worker(compare.ours(compare.CPU, "forward", model, SIDE), arguments.threads)
        worker.run()
        sides = {"ours": (our_command, []), "theirs": (their_command, [])}
        alone = []
        for _ in range(arguments.rounds):
            for command, rounds in sides.values():
                one, _ = measured(command(images[:1]))
                many, peak = measured(command(images))
                rounds.append(((many - one) / (len(images) - 1), one, peak))
            alone.append(worker.round())
        worker.peak_megabytes()

        def label_map(folder, image):
            return np.asarray(Image.open(f"{folder}/{image.stem}.png"))

        agreeing = statistics.mean(np.mean(label_map(mine, image) == label_map(peer, image)) for image in images)
    ours, theirs = sides["ours"][1], sides["theirs"][1]
    name = f"segment, ViT-S/16, {SIDE} px"
    for index, (title, unit) in enumerate([(f"{name}, an image", "s"), (f"{name}, one image alone", "s"), (f"peak memory, {name}", "MB")]):
        row(title, [values[index] for values in ours], [values[index] for values in theirs], unit)
    rates = [network / values[0] for network, values in zip(alone, ours)]
    starts = [values[1] - network for network, values in zip(alone, ours)]
    print(f"masks agree on {100 * agreeing:.2f} % of the pixels of {len(images)} images")
    print(f"rate of segment / rate of the network alone: {statistics.median(rates):.3f}  {min(rates):.2f}-{max(rates):.2f}")
    print(f"first mask later than the network alone: {statistics.median(starts):.2f} s  {min(starts):.2f}-{max(starts):.2f}")


def inputs(arguments, folder):
    """As many JPEGs as asked for; the repository's photographs are repeated."""
    if arguments.images:
        return sorted(pathlib.Path(arguments.images).glob("*.jpg"))[: arguments.count]
    photographs = sorted((ROOT / "reference/nets/photos").glob("*.jpg"))
    copies = [folder / f"{index}.jpg" for index in range(arguments.count)]
    for index, copy in enumerate(copies):
        shutil.copy(photographs[index % len(photographs)], copy)
    return copies


if __name__ == "__main__":
    threads, model, backbone, side, out, *images = sys.argv[1:]
    segment(int(threads), model, backbone, int(side), out, images)
