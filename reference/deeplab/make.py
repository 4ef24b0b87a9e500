"""The PyTorch twin of the verification network, written from DeepLabV2's paper and released prototxt, and what its
tests compare with: logits of a small network in both forms, the losses of a training step, and all gradients.

    python reference/deeplab/make.py

writes expected.safetensors. Parameters, pixels and labels come from a formula of their names, which the tests compute
as well. Parameters are drawn in our layout (channels last) and turned.
"""

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "nets"))
from make import unit_noise  # noqa: E402

BLOCKS, WIDTH, CLASSES, SIDE, EPS = [2, 1, 1, 1], 4, 3, 65, 1e-3
STAGES = [(1, 1), (2, 1), (1, 2), (1, 4)]
RATES = [6, 12, 18, 24]


def is_norm(name):
    return "bn" in name or "downsample.1" in name


def formula(name, shape):
    if name == "pixels":
        centre, scale = 0.0, 1.0
    elif name.endswith("running_var"):
        centre, scale = 1.0, 0.5
    elif is_norm(name) and name.endswith("weight"):
        centre, scale = 1.0, 0.2
    elif len(shape) == 1:
        centre, scale = 0.0, 0.1
    else:
        centre, scale = 0.0, math.sqrt((3.0 if name.startswith("aspp") else 6.0) / math.prod(shape[1:]))
    values = torch.from_numpy(unit_noise(name, math.prod(shape))) * torch.tensor(scale, dtype=torch.float32)
    return (values + centre).reshape(shape)


parameters = {}


def parameter(name, shape):
    """In our layout; a variable unless it belongs to a norm."""
    if name not in parameters:
        parameters[name] = formula(name, shape).requires_grad_(not is_norm(name))
    return parameters[name]


def norm(x, name):
    size = (x.shape[1],)
    parts = [parameter(f"{name}.{part}", size) for part in ("running_mean", "running_var", "weight", "bias")]
    return F.batch_norm(x, *parts, training=False, eps=EPS)


def convolution(x, name, out, kernel, **window):
    weight = parameter(f"{name}.weight", (out, kernel, kernel, x.shape[1]))
    return F.conv2d(x, weight.permute(0, 3, 1, 2), **window)


def forward(pixels, stride_on):
    """[B, H, W, 3] to logits [B, h, w, classes]."""
    x = convolution(pixels.permute(0, 3, 1, 2), "conv1", WIDTH, 7, stride=2, padding=3)
    x = F.max_pool2d(norm(x, "bn1").relu(), 3, 2, 1)
    for stage, (stride, dilation) in enumerate(STAGES):
        width = WIDTH << stage
        for index in range(BLOCKS[stage]):
            name, step = f"layer{stage + 1}.{index}", stride if index == 0 else 1
            first, second = (step, 1) if stride_on == "first" else (1, step)
            y = norm(convolution(x, f"{name}.conv1", width, 1, stride=first), f"{name}.bn1").relu()
            y = convolution(y, f"{name}.conv2", width, 3, stride=second, padding=dilation, dilation=dilation)
            y = norm(y, f"{name}.bn2").relu()
            y = norm(convolution(y, f"{name}.conv3", 4 * width, 1), f"{name}.bn3")
            if index == 0:
                x = norm(convolution(x, f"{name}.downsample.0", 4 * width, 1, stride=step), f"{name}.downsample.1")
            x = (x + y).relu()
    logits = 0
    for index, rate in enumerate(RATES):
        bias = parameter(f"aspp.c{index}.bias", (CLASSES,))
        logits = logits + convolution(x, f"aspp.c{index}", CLASSES, 3, padding=rate, dilation=rate)
        logits = logits + bias[:, None, None]
    return logits.permute(0, 2, 3, 1)


def resize(x, side):
    return F.interpolate(x.permute(0, 3, 1, 2), (side, side), mode="bilinear", align_corners=True).permute(0, 2, 3, 1)


torch.set_num_threads(1)
expected = {}
pixels = formula("pixels", (2, SIDE, SIDE, 3))
with torch.no_grad():
    for stride_on in ("first", "second"):
        expected[f"logits_{stride_on}"] = forward(pixels, stride_on)
    expected["logits_other_size"] = forward(formula("pixels", (1, 42, 56, 3)), "second")

# 0, 1, 2 or ignore, by bands of the noise.
noise = torch.from_numpy(unit_noise("labels", 2 * SIDE * SIDE)).reshape(2, SIDE, SIDE)
labels = torch.bucketize(noise, torch.tensor([-0.5, 0.0, 0.5]))
labels[labels == 3] = 255

losses, pyramid = [], []
for cells in (9, 7, 5):
    side = 8 * (cells - 1) + 1
    logits = forward(pixels if side == SIDE else resize(pixels, side), "second")
    pyramid.append(logits if cells == 9 else resize(logits, 9))
    # The nearest pixels to the grid's points, halves up.
    points = torch.tensor([(2 * i * (SIDE - 1) + (cells - 1)) // (2 * (cells - 1)) for i in range(cells)])
    target = labels[:, points][:, :, points]
    losses.append(F.cross_entropy(logits.permute(0, 3, 1, 2), target, ignore_index=255))
target = labels[:, ::8, ::8]
largest = torch.stack(pyramid).amax(dim=0)
losses.append(F.cross_entropy(largest.permute(0, 3, 1, 2), target, ignore_index=255))
expected["losses"] = torch.stack(losses).detach()
sum(losses).backward()
for name, value in parameters.items():
    if value.requires_grad:
        expected[f"grad.{name}"] = value.grad
save_file({name: value.contiguous() for name, value in expected.items()}, HERE / "expected.safetensors")
