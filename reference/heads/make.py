"""Writes expected.safetensors: what PyTorch makes of small random features by the rules of vitpcm-heads.

    python reference/heads/make.py

needs torch and safetensors. Losses are differentiated by autograd, regressions and discriminants are solved directly and
AUCs counted pair by pair, all in f64.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(11)
torch.set_num_threads(1)
IMAGES, SIDE, WIDTH, CLASSES, FOLDS = 15, 6, 7, 3, 5
PATCHES = SIDE * SIDE
out = {}

# Every class adds its own direction to some patches of the images tagged with it.
tags = torch.rand(IMAGES, CLASSES) < 0.5
tags[0], tags[1] = True, False
folds = torch.randperm(IMAGES) % FOLDS
features = torch.randn(IMAGES, PATCHES, WIDTH)
directions = 1.5 * torch.randn(CLASSES, WIDTH)
for image in range(IMAGES):
    for k in range(CLASSES):
        if tags[image, k]:
            features[image, torch.randperm(PATCHES)[:7]] += directions[k]
features = features.half()
out.update(features=features.clone(), tags=tags.to(torch.uint8), folds=folds.to(torch.uint8))
Z, Y = features.double(), tags.double()

share = Y.mean(0).clamp(min=1e-3)
weights_of_tags = (Y * (0.5 / share) + (1 - Y) * (0.5 / (1 - share).clamp(min=0.02))).clamp(max=8)


def top_mean(x, count):
    return x.topk(count, 1).values.mean(1)


def softmax_loss(w, b, count, negatives):
    p = torch.softmax(Z @ w.T + b, -1)
    top = top_mean(p, count).clamp(1e-5, 1 - 1e-5)
    loss = (-(Y * top[:, 1:].log() + (1 - Y) * (1 - top[:, 1:]).log()) * weights_of_tags).mean()
    loss = loss - top[:, 0].log().mean() / (CLASSES + 1)
    if negatives:
        absent = (p[:, :, 1:] * (1 - Y)[:, None]).sum(-1).clamp(max=0.999)
        loss = loss - torch.log1p(-absent).mean()
    return loss + 1e-4 * (w**2).sum()


def sigmoid_loss(w, b, count):
    s = Z @ w.T + b
    pooled = F.binary_cross_entropy_with_logits(top_mean(s, count), Y, reduction="none")
    every = F.softplus(s).mean(1) * (1 - Y)
    return ((pooled + every) * weights_of_tags).mean() + 2e-4 * (w**2).sum()


def gradient(name, rows, loss):
    w = (0.5 * torch.randn(rows, WIDTH)).double().requires_grad_()
    b = (0.5 * torch.randn(rows)).double().requires_grad_()
    value = loss(w, b)
    by_w, by_b = torch.autograd.grad(value, [w, b])
    out[f"{name}.weights"] = torch.cat([w, b[:, None]], 1).detach().float()
    out[f"{name}.gradient"] = torch.cat([by_w, by_b[:, None]], 1).float()
    out[f"{name}.loss"] = value.detach().float().reshape(1)


gradient("softmax", CLASSES + 1, lambda w, b: softmax_loss(w, b, 1, False))
gradient("softmax_negatives", CLASSES + 1, lambda w, b: softmax_loss(w, b, 7, True))
gradient("sigmoid", CLASSES, lambda w, b: sigmoid_loss(w, b, 7))


def ridge(labels, weights):
    """Scores [images, patches, classes] by weighted regressions on ±1 that have not seen the image."""
    ones = torch.cat([Z, torch.ones(IMAGES, PATCHES, 1).double()], 2)
    scores = torch.empty(IMAGES, PATCHES, CLASSES).double()
    for fold in range(FOLDS):
        seen = folds != fold
        x = ones[seen].reshape(-1, WIDTH + 1)
        for k in range(CLASSES):
            w, t = weights[seen][:, :, k].reshape(-1, 1), labels[seen][:, :, k].reshape(-1) * 2 - 1
            a = x.T @ (w * x)
            a = a + 1e-3 * a.diagonal().mean() * torch.eye(WIDTH + 1)
            scores[~seen, :, k] = ones[~seen] @ torch.linalg.solve(a, (w * x).T @ t)
    return scores


def share_rule(count):
    y = Y[:, None].expand(IMAGES, PATCHES, CLASSES)
    scores = ridge(y, y * 0.5 / share + (1 - y) * 0.5 / (1 - share).clamp(min=1e-3))
    for _ in range(3):
        last = scores.topk(count, 1).values[:, -1:]
        chosen = ((scores >= last) & (y > 0.5)).double()
        scores = ridge(chosen, balanced(chosen, y))
    return scores * 2


def balanced(chosen, y):
    """Weights of a regression in which chosen patches count as much as all others."""
    normed = lambda x: x / x.sum((0, 1)).clamp(min=1)
    return (normed(chosen) + 0.5 * normed(1 - y) + 0.5 * normed(y - chosen)) * IMAGES * PATCHES


scores = share_rule(7)
out["share.scores"] = scores.transpose(1, 2).float().contiguous()  # [images, classes, patches]

# The masks of the share rule.
best, label = scores.masked_fill(Y[:, None] < 0.5, -1e4).max(2)
masks = torch.where(best > 0.3, label + 1, 0)
out["judge.masks"] = masks.to(torch.uint8)

# A regression on these masks.
of_masks = F.one_hot(masks, CLASSES + 1)[:, :, 1:].double()
scores = 2 * ridge(of_masks, balanced(of_masks, Y[:, None].expand(IMAGES, PATCHES, CLASSES)))
out["masks.scores"] = scores.transpose(1, 2).float().contiguous()

# The judge, on them.
flat = Z.reshape(-1, WIDTH)
precision = torch.linalg.inv((flat - flat.mean(0)).T @ (flat - flat.mean(0)) / len(flat) + 0.05 * torch.eye(WIDTH))
judged = torch.zeros(CLASSES, 4)
for k in range(CLASSES):
    tagged = tags[:, k]
    inside = (masks == k + 1) & tagged[:, None]
    rest = ~inside & tagged[:, None]
    without = (~tagged)[:, None].expand_as(inside)
    score = torch.empty(IMAGES, PATCHES).double()
    for fold in range(FOLDS):
        seen = folds != fold
        mean = lambda which: Z[seen][which[seen]].mean(0)
        direction = precision @ (mean(inside) - 0.5 * mean(rest) - 0.5 * mean(without))
        score[~seen] = Z[~seen] @ direction
    auc = lambda other: (score[inside][:, None] > score[other][None]).double().mean()
    area = inside[tagged].double().mean(1)
    judged[k] = torch.tensor([auc(without), auc(rest), area.mean(), (area == 0).double().mean()])
out["judge.classes"] = judged

# The projection, of features with variances of different sizes.
raw = (torch.randn(400, 9) @ torch.randn(9, 9) + torch.randn(9)).half()
x = raw.double() - raw.double().mean(0)
values, vectors = torch.linalg.eigh(x.T @ x / len(x))
values, vectors = values.flip(0)[:5], vectors.flip(1)[:, :5]
out["projection.features"] = raw
out["projection.projected"] = (x @ (vectors / (values + 0.01 * values[0]).sqrt())).float()

target = Path(__file__).parent / "expected.safetensors"
save_file({name: tensor.contiguous() for name, tensor in out.items()}, target)
