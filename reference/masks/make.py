#!/usr/bin/env python3
"""Reference data for vitpcm-masks, from scikit-learn, NumPy and PyTorch.

usage: make.py            (writes beside itself: evaluation.json and resampling.json)
needs: numpy, scikit-learn, torch

evaluation.json: random sets of 21-class label maps, given by the seed of a congruential generator that the Rust test
repeats (see `labels`), and every score as scikit-learn computes it from the flattened pixels.
resampling.json: small score planes and what torch.nn.functional.interpolate makes of them.
"""
import json
import pathlib

import numpy as np
import torch
from sklearn.metrics import accuracy_score, jaccard_score, recall_score

HERE = pathlib.Path(__file__).parent
NUM_CLASSES = 21


def stream(seed):
    """The generator of the Rust test: a 32-bit linear congruential one, of which the upper 16 bits are used."""
    state = seed
    while True:
        state = (state * 1664525 + 1013904223) % 2**32
        yield state >> 16


def label_maps(seed, num_images):
    """Pairs (prediction, truth): blocks of one label, 1 in 16 pixels ignored, 1 in 4 predictions wrong."""
    random = stream(seed)
    for _ in range(num_images):
        width, height = 20 + next(random) % 40, 20 + next(random) % 40
        # Not every class occurs in every set: a set draws from `present` classes only.
        present = 5 + seed % 16
        truth, prediction = [], []
        for _ in range(width * height):
            label = next(random) % present
            truth.append(255 if next(random) % 16 == 0 else label)
            wrong = next(random) % 4 == 0
            prediction.append(next(random) % NUM_CLASSES if wrong else label)
        yield np.array(prediction), np.array(truth)


def evaluate(seed, num_images):
    pairs = list(label_maps(seed, num_images))
    prediction, truth = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    prediction, truth = prediction[truth != 255], truth[truth != 255]
    in_truth = sorted(set(truth))
    in_either = sorted(set(truth) | set(prediction))
    per_class = jaccard_score(truth, prediction, labels=in_truth, average=None)
    frequency = np.array([np.mean(truth == label) for label in in_truth])
    foreground = jaccard_score(truth > 0, prediction > 0)
    background = jaccard_score(truth == 0, prediction == 0)
    return {
        "seed": seed,
        "num_images": num_images,
        "miou": 100 * np.mean(per_class),
        "miou_with_union": 100 * np.mean(jaccard_score(truth, prediction, labels=in_either, average=None)),
        "pixel_accuracy": 100 * accuracy_score(truth, prediction),
        "mean_accuracy": 100 * np.mean(recall_score(truth, prediction, labels=in_truth, average=None)),
        "frequency_weighted_iou": 100 * np.sum(frequency * per_class),
        "foreground_iou": 100 * foreground,
        "background_iou": 100 * background,
        "per_class_iou": {str(label): 100 * iou for label, iou in zip(in_truth, per_class)},
    }


def resample(seed, classes, height, width, to_height, to_width):
    random = stream(seed)
    planes = np.array([next(random) / 65536 for _ in range(classes * height * width)], dtype=np.float32)
    planes = torch.from_numpy(planes.reshape(1, classes, height, width))
    size = (to_height, to_width)
    interpolate = torch.nn.functional.interpolate
    half_pixel = interpolate(planes, size, mode="bilinear", align_corners=False, antialias=True)
    corners = interpolate(planes, size, mode="bilinear", align_corners=True)
    nearest = interpolate(planes, size, mode="nearest-exact")
    return {
        "seed": seed, "classes": classes, "height": height, "width": width, "to_height": to_height, "to_width": to_width,
        "half_pixel": half_pixel.flatten().tolist(),
        "align_corners": corners.flatten().tolist(),
        "nearest": (nearest * 65536).round().int().flatten().tolist(),
    }


evaluation = [evaluate(seed, num_images=6) for seed in (1, 7, 12, 40)]
(HERE / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
sizes = [(1, 2, 5, 4, 13, 9), (2, 3, 7, 6, 7, 6), (3, 2, 12, 9, 5, 4), (4, 1, 6, 6, 23, 3), (5, 2, 1, 4, 6, 1)]
resampling = [resample(*size) for size in sizes]
(HERE / "resampling.json").write_text(json.dumps(resampling) + "\n")
