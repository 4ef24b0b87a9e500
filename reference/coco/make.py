"""A small MS COCO 2014 in its exact format, and the masks that pycocotools paints of it.

Run with NumPy and pycocotools: python make.py

Writes instances_train2014.json and instances_val2014.json (all 80 categories with their real ids, file names, polygons of two
decimals, crowds as run lengths) and masks.json: one run-length list [label, count, …] an image, row by row. There are no
photographs: tests draw them from the masks.
"""

import json
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

HERE = Path(__file__).parent
# Ids 1 to 90 with COCO's ten gaps, in the order of the names.
MISSING = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
IDS = [i for i in range(1, 91) if i not in MISSING]
NAMES = """person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,bench,bird,
cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,
baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,banana,apple,sandwich,
orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,
cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"""
NAMES = NAMES.replace("\n", "").split(",")
assert len(NAMES) == len(IDS) == 80 and IDS[-1] == 90

random = np.random.default_rng(2014)


def polygon(width, height, centre, radius, corners):
    """A star-shaped outline; some reach beyond the image, as COCO's do."""
    angles = np.sort(random.uniform(0, 2 * np.pi, corners))
    radii = radius * random.uniform(0.6, 1.1, corners)
    points = np.stack([centre[0] + radii * np.cos(angles), centre[1] + radii * np.sin(angles)], axis=1)
    return [round(float(value), 2) for value in points.clip(0, [width, height]).reshape(-1)]


def crowd(width, height):
    """Uncompressed run lengths, column by column, as COCO stores crowds."""
    bitmap = np.zeros((height, width), bool)
    for x, y in random.integers(0, [width - 6, height - 6], (3, 2)):
        bitmap[y : y + 6, x : x + 6] = True
    flat = bitmap.flatten(order="F")
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flat])))
    return {"counts": np.diff(np.concatenate([[0], changes, [flat.size]])).tolist(), "size": [height, width]}


def instances(split, num_images, objects_an_image, first_id):
    order = random.permutation(80)
    images, annotations = [], []
    for index in range(num_images):
        width, height = (int(side) for side in random.integers(56, 81, 2))
        image_id = first_id + 7 * index
        images.append({"license": 1, "file_name": f"COCO_{split}_{image_id:012d}.jpg", "height": height, "width": width, "id": image_id})
        if index == num_images - 1:
            continue  # one image shows nothing, as 367 of val2014 do
        for k in range(objects_an_image):
            category = IDS[order[(index * objects_an_image + k) % 80]]
            centre = random.uniform(0.2, 0.8, 2) * [width, height]
            parts = [polygon(width, height, centre, 22, int(random.integers(5, 12)))]
            if random.random() < 0.3:
                parts.append(polygon(width, height, random.uniform(0, 1, 2) * [width, height], 8, 5))
            annotation = {"segmentation": parts, "iscrowd": 0}
            if random.random() < 0.1:
                annotation = {"segmentation": crowd(width, height), "iscrowd": 1}
            rle = run_lengths(annotation["segmentation"], height, width)
            annotation |= {"area": float(coco_mask.area(rle)), "image_id": image_id, "bbox": coco_mask.toBbox(rle).tolist()}
            annotations.append(annotation | {"category_id": category, "id": 1000 + len(annotations)})
    # COCO's annotations are in no order of images.
    shuffled = [annotations[i] for i in random.permutation(len(annotations))]
    categories = [{"supercategory": "thing", "id": i, "name": name} for i, name in zip(IDS, NAMES)]
    info = {"description": "drawn, in the format of COCO 2014", "year": 2014}
    licenses = [{"url": "", "id": 1, "name": ""}]
    return {"info": info, "images": images, "licenses": licenses, "annotations": shuffled, "categories": categories}


def run_lengths(segmentation, height, width):
    if isinstance(segmentation, dict):
        return coco_mask.frPyObjects(segmentation, height, width)
    return coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))


def painted(path):
    """Label maps by pycocotools: classes 1 to 80 in the order of the ids, the first annotation wins, crowds count."""
    data = COCO(path)
    label_of = {category: 1 + index for index, category in enumerate(sorted(data.getCatIds()))}
    maps = {}
    for image in data.loadImgs(data.getImgIds()):
        labels = np.zeros((image["height"], image["width"]), np.uint8)
        for annotation in data.loadAnns(data.getAnnIds(imgIds=image["id"])):
            labels[(data.annToMask(annotation) > 0) & (labels == 0)] = label_of[annotation["category_id"]]
        maps[image["file_name"]] = labels
    return maps


def runs(labels):
    flat = labels.flatten()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(flat.astype(int))) + 1, [flat.size]])
    return [int(value) for start, end in zip(starts, starts[1:]) for value in (flat[start], end - start)]


masks = {}
for split, num_images, objects_an_image, first_id in [("train2014", 41, 2, 9), ("val2014", 31, 3, 42)]:
    path = HERE / f"instances_{split}.json"
    path.write_text(json.dumps(instances(split, num_images, objects_an_image, first_id), separators=(",", ":")))
    maps = painted(path)
    print(split, len(maps), "images", len(set(np.concatenate([np.unique(m) for m in maps.values()]))), "labels")
    masks |= {name: {"width": m.shape[1], "height": m.shape[0], "runs": runs(m)} for name, m in maps.items()}
(HERE / "masks.json").write_text(json.dumps(masks, separators=(",", ":")))
