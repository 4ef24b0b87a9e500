"""Reads exported masks with the readers of the tools they are for, and compares them with the masks themselves.

    python check.py            the small files beside this script, which crates/vitpcm-exports/tests hold fixed
    python check.py FOLDER     what `vitpcm export MASKS --images DIR --out FOLDER --format png,coco,…` wrote; psa and irn are `vitpcm-lab scores`'
    python check.py FOLDER coco yolo    only these

Formats that a folder lacks, and tools that are not installed, are named and passed over. Needs numpy and pillow, and
for each format its tool; read with pycocotools 2.0.11, ultralytics 8.4.190, label-studio-converter 0.0.59,
labelme 6.3.1, datumaro 1.13.12, numpy 2.4.6 (and torch 2.15.0, for IRN).
"""

import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy
from PIL import Image

IGNORE = 255
os.environ.setdefault("LOGURU_LEVEL", "ERROR")  # Labelme names every image it reads


def read_png(path):
    return numpy.asarray(Image.open(path))


class Worst:
    """The lowest IoU of any class in any image, and that of all images together."""

    def __init__(self):
        self.in_image, self.common, self.union, self.num_different = 1.0, {}, {}, 0

    def add(self, mask, truth):
        truth = numpy.where(truth == IGNORE, 0, truth)
        assert mask.shape == truth.shape, (mask.shape, truth.shape)
        self.num_different += int((mask != truth).sum())
        for label in set(numpy.unique(truth)) - {0}:
            common = int(((mask == label) & (truth == label)).sum())
            union = int(((mask == label) | (truth == label)).sum())
            self.in_image = min(self.in_image, common / union)
            self.common[label] = self.common.get(label, 0) + common
            self.union[label] = self.union.get(label, 0) + union

    def __str__(self):
        over_all = min((self.common[c] / self.union[c] for c in self.common), default=1.0)
        kind = "identical" if self.num_different == 0 else f"{self.num_different} pixels differ"
        return f"{kind}; lowest IoU of a class: {self.in_image:.4f} in one image, {over_all:.4f} over all"


def coco(folder, truths, classes):
    from pycocotools.coco import COCO

    data = COCO(folder / "instances_default.json")
    assert [c["name"] for c in data.loadCats(data.getCatIds())] == classes
    worst = Worst()
    images = data.loadImgs(data.getImgIds())
    assert len(images) == len(truths)
    for image in images:
        truth = truths[Path(image["file_name"]).with_suffix("").as_posix()]
        mask = numpy.zeros((image["height"], image["width"]), numpy.uint8)
        for annotation in data.loadAnns(data.getAnnIds(image["id"])):
            one = data.annToMask(annotation).astype(bool)
            mask[one] = annotation["category_id"]
            if isinstance(annotation["segmentation"], dict):
                assert one.sum() == annotation["area"]
                rows, columns = numpy.nonzero(one)
                x, y, width, height = annotation["bbox"]
                assert (x, y) == (columns.min(), rows.min())
                assert (x + width - 1, y + height - 1) == (columns.max(), rows.max())
        worst.add(mask, truth)
    return worst


def yolo(folder, truths, classes):
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset, polygon2mask

    with tempfile.TemporaryDirectory() as scratch:
        # The trainer writes a cache beside the labels; the reference folder holds no images either.
        root = Path(scratch) / "yolo"
        shutil.copytree(folder, root)
        for name, truth in truths.items():
            if not any((root / "images").glob(f"{name}.*")):
                path = root / "images" / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(numpy.zeros((*truth.shape, 3), numpy.uint8)).save(path)
        data = check_det_dataset(str(root / "data.yaml"), autodownload=False)
        assert list(data["names"].values()) == classes, data["names"]
        dataset = YOLODataset(img_path=data["train"], data=data, task="segment", augment=False)
        assert len(dataset.labels) == len(truths) or min(t.shape[0] for t in truths.values()) < 10
        worst = Worst()
        for label in dataset.labels:
            name = Path(label["im_file"]).relative_to(root / "images").with_suffix("").as_posix()
            truth = truths[name]
            height, width = label["shape"]
            mask = numpy.zeros((height, width), numpy.uint8)
            objects = list(zip(label["cls"][:, 0], label["segments"]))
            for class_index, segment in sorted(objects, key=lambda o: -polygon_area(o[1])):
                corners = segment * (width, height)
                mask[polygon2mask((height, width), [corners.reshape(-1)]) > 0] = class_index + 1
            worst.add(mask, truth)
    return worst


def polygon_area(corners):
    x, y = corners[:, 0], corners[:, 1]
    return abs(numpy.dot(x, numpy.roll(y, 1)) - numpy.dot(y, numpy.roll(x, 1))) / 2


def label_studio(folder, truths, classes):
    import xml.etree.ElementTree
    from urllib.parse import unquote

    from label_studio_converter.brush import decode_rle, encode_rle

    labels = xml.etree.ElementTree.parse(folder / "labels.xml").iter("Label")
    assert [label.get("value") for label in labels] == classes
    worst = Worst()
    tasks = json.loads((folder / "tasks.json").read_text())
    assert len(tasks) == len(truths)
    for index, task in enumerate(tasks):
        name = unquote(task["data"]["image"].split("?d=")[1])
        truth = truths[Path(name).with_suffix("").as_posix()]
        mask = numpy.zeros(truth.shape, numpy.uint8)
        for region in task["predictions"][0]["result"]:
            shape = (region["original_height"], region["original_width"])
            values = decode_rle(region["value"]["rle"])
            if index < 3:  # slow
                assert encode_rle(values) == region["value"]["rle"], "not as the converter packs it"
            (label,) = region["value"]["brushlabels"]
            mask[values.reshape(*shape, 4)[:, :, 3] > 0] = classes.index(label) + 1
        worst.add(mask, truth)
    return worst


def labelme(folder, truths, classes):
    from labelme.utils.shape import shape_to_mask
    from labelme._label_file import _load_shape_json_obj

    worst = Worst()
    names = (folder / "labels.txt").read_text().split("\n")[2:-1]
    assert names == classes
    files = sorted(folder.rglob("*.json"))
    assert len(files) == len(truths)
    for path in files:
        file = json.loads(path.read_text())
        truth = truths[path.relative_to(folder).with_suffix("").as_posix()]
        assert (file["imageHeight"], file["imageWidth"]) == truth.shape and file["imageData"] is None
        if (path.parent / file["imagePath"]).is_file():
            from labelme._label_file import read_label_file

            read_label_file(str(path))
        mask = numpy.zeros(truth.shape, numpy.uint8)
        for shape in map(_load_shape_json_obj, file["shapes"]):
            label = classes.index(shape["label"]) + 1
            mask[shape_to_mask(truth.shape, shape["points"], shape["shape_type"])] = label
        worst.add(mask, truth)
    return worst


def cvat(folder, truths, classes):
    from datumaro import Dataset

    with tempfile.TemporaryDirectory() as scratch:
        packed = list(folder.glob("*.zip"))
        if packed:
            zipfile.ZipFile(packed[0]).extractall(scratch)
            folder = Path(scratch)
        dataset = Dataset.import_from(str(folder), "voc_segmentation")
        names = [label.name for label in dataset.categories()[next(iter(dataset.categories()))].items]
        assert names == ["background", *classes, "ignore"], names
        num_different, num_items = 0, 0
        for item in dataset:
            truth = truths[item.id]
            mask = numpy.zeros(truth.shape, numpy.uint8)
            for annotation in item.annotations:
                index = annotation.label
                mask[annotation.image.astype(bool)] = IGNORE if names[index] == "ignore" else index
            num_different += int((mask != truth).sum())
            num_items += 1
        assert num_items == len(truths), (num_items, len(truths))
    return f"{num_different} pixels differ, 255 included"


def voc(folder, truths, classes):
    names = (folder / "ImageSets/Segmentation/train.txt").read_text().split("\n")[:-1]
    assert sorted(names) == sorted(truths), names
    num_different = num_unsure = 0
    for name in names:
        mask, truth = read_png(folder / f"SegmentationClass/{name}.png"), truths[name]
        num_different += int(((mask != truth) & (mask != IGNORE)).sum())
        num_unsure += int(((mask == IGNORE) & (truth != IGNORE)).sum())
    return f"{num_different} pixels differ, {num_unsure} became 255"


def psa(folder, truths, classes):
    return dictionaries(folder, truths, classes, check_psa)


def irn(folder, truths, classes):
    return dictionaries(folder, truths, classes, check_irn)


def dictionaries(folder, truths, classes, check):
    for name, truth in truths.items():
        check(numpy.load(folder / f"{name}.npy", allow_pickle=True).item(), truth, len(classes))
    return f"{len(truths)} dictionaries of the right shapes, peaks at 1"


def check_reference_scores():
    """The scores of the small files are those of crates/vitpcm-lab/src/score_dictionary.rs; PyTorch resizes them."""
    import torch

    grid = torch.tensor([(7 * i + 3) % 32 / 64 if i < 48 else 0.0 for i in range(60)]).reshape(1, 5, 3, 4)
    here = Path(__file__).parent
    for name in ["scene", "nested/ring around", "empty"]:
        size = read_png(here / f"png/{name}.png").shape
        expected = torch.nn.functional.interpolate(grid, size=size, mode="bilinear", align_corners=False)[0]
        expected = (expected / expected.amax((1, 2), keepdim=True)).numpy()
        psa = numpy.load(here / f"psa/{name}.npy", allow_pickle=True).item()
        irn = numpy.load(here / f"irn/{name}.npy", allow_pickle=True).item()
        assert list(psa) == [0, 1, 2] == irn["keys"].tolist()
        for class_index in psa:
            assert abs(psa[class_index] - expected[class_index + 1]).max() < 1e-6
            assert abs(irn["high_res"][class_index] - expected[class_index + 1]).max() < 1e-6
    print("scores: as PyTorch resizes them")


def check_psa(cams, truth, num_classes):
    assert all(type(key) is int and 0 <= key < num_classes for key in cams)
    for cam in cams.values():
        assert cam.dtype == numpy.float32 and cam.shape == truth.shape
        assert cam.min() >= 0 and abs(cam.max() - 1) < 1e-6
    # As PSA's inference does with them.
    background = numpy.power(1 - numpy.max(list(cams.values()), axis=0), 32)
    assert background.shape == truth.shape


def check_irn(cams, truth, num_classes):
    height, width = truth.shape
    keys = numpy.pad(cams["keys"] + 1, (1, 0), mode="constant")  # as IRN's cam_to_ir_label does
    assert keys[0] == 0 and keys.max() <= num_classes
    assert cams["high_res"].shape == (len(keys) - 1, height, width)
    assert cams["cam"].shape == (len(keys) - 1, (height - 1) // 4 + 1, (width - 1) // 4 + 1)
    with_background = numpy.pad(cams["high_res"], ((1, 0), (0, 0), (0, 0)), mode="constant", constant_values=0.3)
    assert keys[numpy.argmax(with_background, axis=0)].shape == truth.shape
    try:
        import torch
    except ImportError:
        return
    assert torch.from_numpy(cams["cam"]).dtype == torch.float32


CHECKS = {
    "coco": coco,
    "coco-polygons": coco,
    "coco-class-polygons": coco,
    "yolo": yolo,
    "label-studio": label_studio,
    "label-studio-classes": label_studio,
    "labelme": labelme,
    "labelme-classes": labelme,
    "cvat": cvat,
    "voc": voc,
    "voc-unsure": voc,
    "psa": psa,
    "irn": irn,
}


def main():
    here = Path(__file__).parent
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    masks = root / "png" if root == here else root
    classes = (masks / "classes.txt").read_text().split("\n")[:-1]
    exports = {"overlay", "heatmap", *CHECKS}
    paths = [p for p in sorted(masks.rglob("*.png")) if p.relative_to(masks).parts[0] not in exports]
    truths = {p.relative_to(masks).with_suffix("").as_posix(): read_png(p) for p in paths}
    print(f"{len(truths)} masks, {len(classes)} classes")
    wanted = sys.argv[2:] or CHECKS
    for name, check in ((name, CHECKS[name]) for name in wanted):
        if not (root / name).is_dir():
            print(f"{name}: not there")
            continue
        try:
            print(f"{name}: {check(root / name, truths, classes)}")
        except ImportError as error:
            print(f"{name}: not checked: {error}")


if __name__ == "__main__":
    main()
    if len(sys.argv) == 1:
        check_reference_scores()
