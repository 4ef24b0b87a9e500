"""Compares onnxruntime on exported models with `vitpcm segment`, on a folder in the layout of PASCAL VOC.

    python check.py VOC --vitpcm target/release/vitpcm [--model MODEL] [--images 100] [--tags none|given|predicted]

Exports the model (by default the embedded one) as f32, f16 and i8, runs each by onnxruntime on the first images of
`ImageSets/Segmentation/val.txt`, and prints for each: the share of pixels whose class is that of `segment --precision f32`,
mIoU against the true masks beside ours, megabytes, and seconds an image.
`--tags given` takes the classes of each true mask. Needs numpy, pillow and onnxruntime; read with 2.4.6, 12.3.0 and 1.31.1.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy
import onnxruntime
from PIL import Image

IGNORE = 255


def read_png(path):
    return numpy.asarray(Image.open(path))


def miou(masks, truths, num_classes):
    """Mean IoU over the classes in the truth, in percent; 255 in the truth does not count."""
    confusion = numpy.zeros((num_classes, num_classes), numpy.int64)
    for mask, truth in zip(masks, truths):
        counts = truth != IGNORE
        pairs = truth[counts].astype(numpy.int64) * num_classes + mask[counts]
        confusion += numpy.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
    intersection, union = numpy.diag(confusion), confusion.sum(0) + confusion.sum(1) - numpy.diag(confusion)
    in_truth = confusion.sum(1) > 0
    return 100 * (intersection[in_truth] / union[in_truth]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("voc", type=Path)
    parser.add_argument("--vitpcm", default="target/release/vitpcm")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--tags", choices=["none", "given", "predicted"], default="none")
    parser.add_argument("--store", nargs="+", default=["f32", "f16", "i8"])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    names = (arguments.voc / "ImageSets/Segmentation/val.txt").read_text().split()[: arguments.images]
    paths = [arguments.voc / "JPEGImages" / f"{name}.jpg" for name in names]
    truths = [read_png(arguments.voc / "SegmentationClass" / f"{name}.png") for name in names]
    with tempfile.TemporaryDirectory() as folder:
        compare(arguments, names, paths, truths, Path(folder))


def ours(arguments, names, paths, truths, folder, classes, precision):
    """Masks and tag probabilities of `vitpcm segment`, and the seconds that an image took."""
    out = folder / f"masks-{precision}"
    tags = {"none": ["--no-tags"], "predicted": ["--predict-tags"], "given": ["--tags-file", str(folder / "tags.csv")]}
    rows = [
        f"{path.stem}.png,{';'.join(classes[label] for label in numpy.unique(truth) if label not in (0, IGNORE))}"
        for path, truth in zip(paths, truths)
    ]
    (folder / "tags.csv").write_text("image,tags\n" + "\n".join(rows) + "\n")
    images = folder / "images"
    images.mkdir(exist_ok=True)
    # Both get the same pixels: decoders of JPEG differ in rounding.
    for path in paths:
        Image.open(path).convert("RGB").save(images / f"{path.stem}.png", compress_level=1)
    model = [] if arguments.model == "embedded" else ["--model", arguments.model]
    command = [arguments.vitpcm, "segment", images, "--out", out, *model, *tags[arguments.tags], "--precision", precision]
    command += ["--device", "cpu", "--threads", str(arguments.threads), "--json", out / "tags.json", "--quiet"]
    begin = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True)
    seconds = (time.perf_counter() - begin) / len(paths)
    return [read_png(out / f"{name}.png") for name in names], seconds


def compare(arguments, names, paths, truths, folder):
    first = export(arguments, folder, arguments.store[0])
    classes = json.loads(metadata(first)["classes"])
    masks, seconds = ours(arguments, names, paths, truths, folder, classes, "f32")
    _, fast_seconds = ours(arguments, names, paths, truths, folder, classes, "int8")
    score = miou(masks, truths, len(classes))
    print(f"{len(names)} images, tags {arguments.tags}, {arguments.threads} threads")
    print(f"vitpcm f32: mIoU {score:.2f}, {seconds:.3f} s an image with reading and writing; int8: {fast_seconds:.3f} s")
    for store in arguments.store:
        file = export(arguments, folder, store)
        found, network_seconds = by_onnxruntime(arguments, file, paths, truths, classes)
        same = sum(int((a == b).sum()) for a, b in zip(found, masks)) / sum(mask.size for mask in masks)
        other_score = miou(found, truths, len(classes))
        megabytes = file.stat().st_size / 1e6
        print(
            f"onnxruntime {store}: {100 * same:.3f} % of pixels the same, mIoU {other_score:.2f} ({other_score - score:+.2f}), "
            f"{megabytes:.1f} MB, {network_seconds:.3f} s an image"
        )


def export(arguments, folder, store):
    file = folder / f"{store}.onnx"
    if not file.exists():
        command = [arguments.vitpcm, "model", "export", arguments.model, "--format", "onnx", "--tags", arguments.tags]
        subprocess.run([*command, "--store", store, "--out", str(file), "--quiet"], check=True)
    return file


def session_of(file, threads=2):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def metadata(file):
    return session_of(file).get_modelmeta().custom_metadata_map


def by_onnxruntime(arguments, file, paths, truths, classes):
    """Masks of an exported model, and the seconds that the network took for an image."""
    session = session_of(file, arguments.threads)
    masks, seconds = [], 0.0
    for path, truth in zip(paths, truths):
        image = numpy.asarray(Image.open(path).convert("RGB"), numpy.float32).transpose(2, 0, 1)[None]
        inputs = {"image": image}
        if arguments.tags == "given":
            present = [label in truth for label in range(1, len(classes))]
            inputs["tags"] = numpy.asarray([present], numpy.float32)
        begin = time.perf_counter()
        (probabilities,) = session.run(["probabilities"], inputs)
        seconds += time.perf_counter() - begin
        masks.append(probabilities[0].argmax(0).astype(numpy.uint8))
    return masks, seconds / len(paths)


if __name__ == "__main__":
    main()
