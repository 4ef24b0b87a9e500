#!/usr/bin/env python3
"""A PASCAL VOC devkit as MS COCO 2014: to try the whole 81-class path on photographs where COCO itself is out of reach.

    python scripts/voc_as_coco.py VOCdevkit/VOC2012 OUT [NUM_TRAIN NUM_VAL]

Needs NumPy, Pillow, scikit-image and pycocotools. Writes OUT/annotations/instances_{train,val}2014.json with all 80 categories and
their real ids (VOC's 20 classes become those of the same things), OUT/train2014/COCO_train2014_000000000001.jpg, … and the same
for val. Every connected part of a class is one annotation; outlines are polygons of two decimals, as COCO's are.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask
from skimage import measure

COCO_NAMES = json.loads((Path(__file__).parent.parent / "reference/coco/instances_val2014.json").read_text())["categories"]
# VOC's classes 1 to 20, by COCO's names.
VOC = """airplane,bicycle,bird,boat,bottle,bus,car,cat,chair,cow,dining table,dog,horse,motorcycle,person,potted plant,sheep,couch,
train,tv""".replace("\n", "").split(",")
ID_OF_NAME = {category["name"]: category["id"] for category in COCO_NAMES}


def polygons(part):
    """Outlines in COCO's coordinates, where pixel (0, 0) reaches from 0 to 1; holes are filled, as COCO's are."""
    outlines = []
    for contour in measure.find_contours(np.pad(part, 1).astype(float), 0.5):
        points = measure.approximate_polygon(contour, 0.5)[:-1, ::-1] - 0.5
        if len(points) >= 3:
            outlines.append([round(float(value), 2) for value in points.clip(0).reshape(-1)])
    return outlines


def annotations_of(labels, image_id, first_id):
    height, width = labels.shape
    found = []
    for label in np.unique(labels[(labels > 0) & (labels < 255)]):
        parts = measure.label(labels == label)
        for index in range(1, parts.max() + 1):
            outlines = polygons(parts == index)
            if not outlines:
                continue
            rle = coco_mask.merge(coco_mask.frPyObjects(outlines, height, width))
            found.append(
                {
                    "segmentation": outlines,
                    "area": float(coco_mask.area(rle)),
                    "iscrowd": 0,
                    "image_id": image_id,
                    "bbox": coco_mask.toBbox(rle).tolist(),
                    "category_id": ID_OF_NAME[VOC[label - 1]],
                    "id": first_id + len(found),
                }
            )
    return found


def convert(voc, out, names, split):
    (out / split).mkdir(parents=True, exist_ok=True)
    (out / "annotations").mkdir(exist_ok=True)
    images, annotations = [], []
    for image_id, name in enumerate(names, 1):
        labels = np.array(Image.open(voc / "SegmentationClass" / f"{name}.png"))
        file_name = f"COCO_{split}_{image_id:012d}.jpg"
        shutil.copyfile(voc / "JPEGImages" / f"{name}.jpg", out / split / file_name)
        height, width = labels.shape
        images.append({"license": 1, "file_name": file_name, "height": height, "width": width, "id": image_id})
        annotations += annotations_of(labels, image_id, 1 + len(annotations))
    content = {"info": {"year": 2014}, "images": images, "licenses": [], "annotations": annotations, "categories": COCO_NAMES}
    (out / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    print(f"{split}: {len(images)} images, {len(annotations)} annotations")


def main():
    voc, out = Path(sys.argv[1]), Path(sys.argv[2])
    for split, position in [("train", 3), ("val", 4)]:
        names = (voc / "ImageSets/Segmentation" / f"{split}.txt").read_text().split()
        if len(sys.argv) > position:
            names = names[: int(sys.argv[position])]
        convert(voc, out, names, f"{split}2014")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main()
