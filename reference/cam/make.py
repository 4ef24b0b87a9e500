"""The PyTorch twin of training class activation maps, written from the papers of CAM and Xception, and what the tests
compare with: a small ViT, ResNet and Xception at output stride 16, each with its features, maps, tags, losses and a
sample of every gradient.

    python reference/cam/make.py

writes expected.safetensors. Parameters and pixels come from a formula of their names, which the tests compute as well.
Parameters are drawn in our layout (channels last) and turned.
"""

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "nets"))
from make import Vit, filled, unit_noise  # noqa: E402

CLASSES, IMAGES, SIDE, EPS, L2, THRESHOLD = 5, 3, 48, 1e-3, 0.01, 0.3
TAGS = [[1], [2, 3], [1, 4]]
SAMPLES = 150
VIT = dict(patch=16, width=24, depth=2, heads=2, registers=0, layer_scale=False, position_grid=3)


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
    elif len(shape) == 3:  # depthwise
        centre, scale = 0.0, math.sqrt(3.0 / 9.0)
    else:
        centre, scale = 0.0, math.sqrt((3.0 if len(shape) == 2 else 6.0) / math.prod(shape[1:]))
    values = torch.from_numpy(unit_noise(name, math.prod(shape))) * torch.tensor(scale, dtype=torch.float32)
    return (values + centre).reshape(shape)


class Convolutional:
    """Features [B, C, h, w] of pixels [B, 3, H, W]; parameters appear when they are first used."""

    def __init__(self):
        self.parameters = {}

    def parameter(self, name, shape):
        if name not in self.parameters:
            self.parameters[name] = formula(name, shape).requires_grad_(not is_norm(name))
        return self.parameters[name]

    def norm(self, x, name):
        parts = [self.parameter(f"{name}.{part}", (x.shape[1],)) for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *parts, training=False, eps=EPS)

    def convolution(self, x, name, norm, out, kernel, **window):
        weight = self.parameter(f"{name}.weight", (out, kernel, kernel, x.shape[1]))
        return self.norm(F.conv2d(x, weight.permute(0, 3, 1, 2), **window), norm)


class ResNet(Convolutional):
    BLOCKS, WIDTH = [1, 2, 1, 1], 4
    STAGES = [(1, 1), (2, 1), (2, 1), (1, 2)]

    def __call__(self, pixels):
        x = self.convolution(pixels, "conv1", "bn1", self.WIDTH, 7, stride=2, padding=3).relu()
        x = F.max_pool2d(x, 3, 2, 1)
        for stage, (stride, dilation) in enumerate(self.STAGES):
            width = self.WIDTH << stage
            for index in range(self.BLOCKS[stage]):
                name, step = f"layer{stage + 1}.{index}", stride if index == 0 else 1
                y = self.convolution(x, f"{name}.conv1", f"{name}.bn1", width, 1).relu()
                y = self.convolution(y, f"{name}.conv2", f"{name}.bn2", width, 3, stride=step, padding=dilation, dilation=dilation).relu()
                y = self.convolution(y, f"{name}.conv3", f"{name}.bn3", 4 * width, 1)
                if index == 0:
                    x = self.convolution(x, f"{name}.downsample.0", f"{name}.downsample.1", 4 * width, 1, stride=step)
                x = (x + y).relu()
        return x


def pool_same(x, stride):
    """TensorFlow's padding: what cannot be shared evenly goes behind."""
    def pads(size):
        total = max((math.ceil(size / stride) - 1) * stride + 3 - size, 0)
        return total // 2, total - total // 2
    return F.max_pool2d(F.pad(x, (*pads(x.shape[3]), *pads(x.shape[2])), value=-math.inf), 3, stride)


class Xception(Convolutional):
    """The published network with one middle block and an eighth of the features; the last stride is left out and the
    last block looks twice as far instead."""

    WIDTH, MIDDLE = 4, 91

    def separable(self, x, name, out, dilation=1):
        weight = self.parameter(f"{name}.depthwise.weight", (3, 3, x.shape[1]))
        x = F.conv2d(x, weight.permute(2, 0, 1)[:, None], padding=dilation, dilation=dilation, groups=x.shape[1])
        return self.convolution(x, f"{name}.pointwise", f"{name}_bn", out, 1)

    def __call__(self, pixels):
        w = self.WIDTH
        x = self.convolution(pixels, "block1_conv1", "block1_conv1_bn", w, 3, stride=2).relu()
        x = self.convolution(x, "block1_conv2", "block1_conv2_bn", 2 * w, 3).relu()
        for block, out in ((2, 4 * w), (3, 8 * w), (4, self.MIDDLE)):
            residual = self.convolution(x, f"block{block}_residual", f"block{block}_residual_bn", out, 1, stride=2)
            y = self.separable(x if block == 2 else x.relu(), f"block{block}_sepconv1", out).relu()
            x = pool_same(self.separable(y, f"block{block}_sepconv2", out), 2) + residual
        y = x
        for index in (1, 2, 3):
            y = self.separable(y.relu(), f"block5_sepconv{index}", self.MIDDLE)
        x = x + y
        residual = self.convolution(x, "block6_residual", "block6_residual_bn", 32 * w, 1)
        y = self.separable(x.relu(), "block6_sepconv1", self.MIDDLE).relu()
        x = pool_same(self.separable(y, "block6_sepconv2", 32 * w), 1) + residual
        x = self.separable(x, "block7_sepconv1", 48 * w, 2).relu()
        return self.separable(x, "block7_sepconv2", 64 * w, 2).relu()


torch.set_num_threads(1)
tags = torch.zeros(IMAGES, CLASSES - 1)
for row, classes in zip(tags, TAGS):
    row[[tag - 1 for tag in classes]] = 1
expected = {}
for name, network in (("vit", filled(Vit(**VIT))), ("resnet", ResNet()), ("xception", Xception())):
    pixels = formula("pixels", (IMAGES, 3, SIDE, SIDE))
    features = network(pixels)
    features = features[1] if name == "vit" else features.permute(0, 2, 3, 1)
    weight = formula("image_classifier.weight", (CLASSES - 1, features.shape[3])).requires_grad_()
    y = torch.sigmoid(features.mean(dim=(1, 2)) @ weight.T)
    mce = F.binary_cross_entropy(y, tags)
    penalty = L2 * weight.square().sum()
    (mce + penalty).backward()
    activation = (features @ weight.T).relu().detach()
    maps = activation / activation.amax(dim=(1, 2), keepdim=True).clamp(min=1e-30) * y.detach()[:, None, None]
    expected[f"{name}: features"] = features.detach()
    expected[f"{name}: maps"] = torch.cat([torch.full((*maps.shape[:3], 1), THRESHOLD), maps], dim=3)
    expected[f"{name}: tags"] = y.detach()
    expected[f"{name}: losses"] = torch.stack([mce, penalty, mce + penalty]).detach()
    parameters = dict(network.named_parameters()) if name == "vit" else network.parameters
    parameters = {**parameters, "image_classifier.weight": weight}
    print(name, [round(float(x), 4) for x in expected[f"{name}: losses"]], y.detach().numpy().round(2).tolist())
    for parameter, value in parameters.items():
        if value.requires_grad:
            gradient = value.grad.flatten()
            expected[f"{name}: {parameter}"] = gradient[:: math.ceil(len(gradient) / SAMPLES)]
save_file({key: value.contiguous() for key, value in expected.items()}, HERE / "expected.safetensors")
