"""Writes expected.json: how hints change scores, by scikit-learn's Gaussian process regression.

    python reference/hints/make.py

needs numpy and scikit-learn. For features of length 1, exp((cos - 1) / decay) is a radial basis function of length
sqrt(decay).
"""

import json
from pathlib import Path

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

rng = np.random.default_rng(5)
COLUMNS, ROWS, WIDTH, CLASSES = 7, 5, 6, 4
IMAGE = (70, 50)
DECAY, DISTANCE, EVERYWHERE, NOISE, LEAST = 0.3, 0.2, 0.5, 0.05, 0.01
TAGS = [1, 3]
# A class and a pixel each; the last two lie in one patch, and the class of the third is no tag yet.
HINTS = [[1, 12, 8], [0, 41, 33], [2, 65, 3], [3, 30, 41], [3, 33, 44]]

features = rng.normal(size=(ROWS * COLUMNS, WIDTH)) + 1.5
features /= np.linalg.norm(features, axis=1, keepdims=True)
scores = np.zeros((CLASSES, ROWS * COLUMNS))
raw = rng.gamma(0.5, size=(1 + len(TAGS), ROWS * COLUMNS)) + 1e-6
scores[[0] + TAGS] = raw / raw.sum(0)

cells = np.arange(ROWS * COLUMNS)
places = np.stack([cells % COLUMNS, cells // COLUMNS], 1) / max(COLUMNS, ROWS)
inputs = np.concatenate([features, places], 1)
far = 1e9
alike = RBF([DECAY**0.5] * WIDTH + [far] * 2)
near = RBF([far] * WIDTH + [DISTANCE] * 2)
kernel = alike * (ConstantKernel(EVERYWHERE) + ConstantKernel(1 - EVERYWHERE) * near)

observed = {}
for label, x, y in HINTS:
    observed[y * ROWS // IMAGE[1] * COLUMNS + x * COLUMNS // IMAGE[0]] = label
patches = list(observed)
tags = sorted(set(TAGS) | {label for label in observed.values() if label})
shown = [0] + tags
logarithms = np.log(np.maximum(scores, LEAST))
corrected = []
for label in shown:
    target = np.array([0.0 if observed[patch] == label else np.log(LEAST) for patch in patches])
    process = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None)
    process.fit(inputs[patches], target - logarithms[label, patches])
    corrected.append(logarithms[label] + process.predict(inputs))
corrected = np.exp(corrected)
corrected /= corrected.sum(0)
expected = np.zeros_like(scores)
expected[shown] = corrected

rounded = lambda values: [float(f"{value:.7g}") for value in values.ravel()]
text = {
    "grid": [COLUMNS, ROWS], "image": IMAGE, "tags": TAGS, "hints": HINTS, "tags_after": tags,
    "features": rounded(features), "scores": rounded(scores), "expected": rounded(expected),
}
Path(__file__).with_name("expected.json").write_text(json.dumps(text) + "\n")
