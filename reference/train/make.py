"""The PyTorch twin of one training step, written from the paper and docs/reference/method.md, and what vitpcm-train's tests compare with.

Network, weights and pixels are those of ../nets/make.py (values by a formula of their names), so that only results are
stored. Geometry is done here with PyTorch's own flips and interpolation, the tests use the matrices of vitpcm-data. Run in a
Python with torch and numpy:

    python reference/train/make.py

writes expected.npz: for every kind of equivariance loss the losses and the gradient of every parameter, and the losses of ten
steps of Adam.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "nets"))
from make import Pcm, filled, formula  # noqa: E402

VIT = dict(patch=4, width=24, depth=2, heads=2, registers=0, layer_scale=False, position_grid=6)
GRID, HALF, CLASSES, IMAGES = 6, 3, 5, 6

# (symmetry of the first view, (column, row, side) of the part, symmetry of the second view); a symmetry is a sum of
# 1 (flip left-right), 2 (flip up-down) and 4 (transpose), done in this order.
GEOMETRY = [
    (0, (0, 0, 6), 0),
    (1, (2, 3, 2), 4),
    (6, (0, 0, 6), 3),
    (5, (4, 0, 2), 7),
    (7, (0, 0, 6), 2),
    (2, (1, 4, 2), 5),
]
TAGS = [[1], [2, 3], [], [4], [1, 2, 3], [3]]


def turned(maps, symmetry):
    """maps [C, rows, columns]"""
    if symmetry & 1:
        maps = maps.flip(2)
    if symmetry & 2:
        maps = maps.flip(1)
    return maps.transpose(1, 2) if symmetry & 4 else maps


def unturned(maps, symmetry):
    if symmetry & 4:
        maps = maps.transpose(1, 2)
    if symmetry & 2:
        maps = maps.flip(1)
    return maps.flip(2) if symmetry & 1 else maps


def on_second_grid(first_map, geometry):
    """A first view's map [rows, columns, C] as its second view would show it."""
    first, (column, row, side), second = geometry
    upright = unturned(first_map.permute(2, 0, 1), first)
    part = upright[:, row : row + side, column : column + side]
    scaled = F.interpolate(part[None], size=(HALF, HALF), mode="bilinear", align_corners=False, antialias=side > HALF)
    return turned(scaled[0], second).permute(1, 2, 0)


def conditioned(maps, tags, peaks):
    """maps [rows, columns, C]"""
    scaled = maps * tags / peaks
    return scaled / scaled.sum(-1, keepdim=True)


def cross_entropy(target, prediction):
    return -(target * prediction.clamp(1e-7, 1).log()).sum(-1).mean()


def losses(network, first_views, merged_views, tags, et_target, et_peak, l2):
    scores, y = network(first_views)
    merged, _ = network(merged_views)
    y = y.clamp(1e-7, 1 - 1e-7)
    mce = -(tags * y.log() + (1 - tags) * (1 - y).log()).mean()
    main_terms, merged_terms = [], []
    for i, geometry in enumerate(GEOMETRY):
        row, column = (i % 4) // 2 * HALF, (i % 4) % 2 * HALF
        second = merged[i // 4, row : row + HALF, column : column + HALF]
        moved = on_second_grid(scores[i], geometry)
        whole = moved if et_peak == "crop" else scores[i]
        target = conditioned(moved.detach(), tags[i], whole.detach().flatten(0, 1).amax(0))
        main_terms.append(cross_entropy(target, second))
        target = conditioned(second.detach(), tags[i], second.detach().flatten(0, 1).amax(0))
        merged_terms.append(cross_entropy(target, moved))
    main_loss, merged_loss = torch.stack(main_terms).mean(), torch.stack(merged_terms).mean()
    et = {"main": main_loss, "merged": merged_loss, "symmetric": (main_loss + merged_loss) / 2}[et_target]
    penalty = l2 * network.patch_classifier.weight.square().sum()
    return mce, et, penalty, mce + et + penalty


def main():
    torch.manual_seed(0)
    first_views = formula("input first views", (IMAGES, 3, 24, 24))
    merged_views = formula("input merged views", (2, 3, 24, 24))
    tags = torch.zeros(IMAGES, CLASSES)
    tags[:, 0] = 1
    for row, classes in zip(tags, TAGS):
        row[classes] = 1
    out = {}
    for et_target, et_peak in [("main", "crop"), ("main", "whole-grid"), ("merged", "crop"), ("symmetric", "whole-grid")]:
        network = filled(Pcm(classes=CLASSES, units=6, **VIT))
        values = losses(network, first_views, merged_views, tags, et_target, et_peak, 0.01)
        values[-1].backward()
        name = f"{et_target} {et_peak}"
        print(name, [round(float(value), 4) for value in values])
        out[f"{name}: losses"] = torch.stack(values)
        for parameter, value in network.named_parameters():
            out[f"{name}: {parameter}"] = value.grad
    network = filled(Pcm(classes=CLASSES, units=6, **VIT))
    adam = torch.optim.Adam(network.parameters(), lr=1e-3, eps=1e-7)
    steps = []
    for _ in range(10):
        adam.zero_grad()
        values = losses(network, first_views, merged_views, tags, "main", "whole-grid", 0.01)
        values[-1].backward()
        adam.step()
        steps.append(torch.stack(values).detach())
    out["ten steps"] = torch.stack(steps)
    print(out["ten steps"])
    np.savez_compressed(HERE / "expected.npz", **{key: value.detach().numpy() for key, value in out.items()})


if __name__ == "__main__":
    main()
