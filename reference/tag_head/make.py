"""The tag head, fitted by SciPy and applied by NumPy: writes `expected.safetensors` beside itself.

Needs numpy, scipy and safetensors. The images are random numbers; every fourth shows none of the classes. What is fitted, and on
which classes of which images, is described in crates/vitpcm-heads/src/tag_head_fit.rs.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from scipy.optimize import minimize

NUM_IMAGES, NUM_FEATURES, NUM_TAGS = 80, 6, 3
CANDIDATES_FROM, CENTRES_FROM, PENALTY = 0.3, 0.5, 0.03


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_odds(p):
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(p / (1 - p))


def main():
    random = np.random.default_rng(7)
    is_known = np.arange(NUM_IMAGES) % 4 != 0
    present = (random.random((NUM_IMAGES, NUM_TAGS)) < 0.5) & is_known[:, None]
    pooled = sigmoid(random.normal(np.where(present, 2.0, -0.3), 1.2)).astype(np.float32)
    mean_features = (random.normal(size=(NUM_IMAGES, NUM_FEATURES)) + 0.7 * is_known[:, None]).astype(np.float32)
    prototypes = random.normal(size=(NUM_TAGS, NUM_FEATURES))
    noise = random.normal(size=(NUM_IMAGES, NUM_TAGS, NUM_FEATURES))
    best_features = (prototypes + noise * np.where(present, 0.8, 1.3)[..., None]).astype(np.float32)

    images, tags = np.nonzero(pooled >= CANDIDATES_FROM)
    targets = present[images, tags].astype(np.float64)
    patches = best_features[images, tags].astype(np.float64)
    deviation = patches.std(0) + 1e-6
    is_centre = present & (pooled >= CENTRES_FROM)
    centres = np.stack([best_features[is_centre[:, tag], tag].mean(0, dtype=np.float64) for tag in range(NUM_TAGS)])
    precision = 1 / (NUM_FEATURES * deviation**2)
    distances = ((patches - centres[tags]) ** 2 * precision).sum(1)
    mean = mean_features.mean(0, dtype=np.float64)
    spread = mean_features.astype(np.float64).std(0) + 1e-6
    standardised = (mean_features[images] - mean) / spread
    of_patches = (patches - patches.mean(0)) / deviation
    odds = log_odds(pooled[images, tags].astype(np.float64))
    rows = np.column_stack([standardised, of_patches, distances, odds, np.ones(len(images))])
    num_penalised = 2 * NUM_FEATURES

    def loss(weights):
        logits = rows @ weights
        penalised = weights[:num_penalised]
        value = np.mean(np.logaddexp(0, logits) - targets * logits) + PENALTY * (penalised**2).sum()
        gradient = rows.T @ (sigmoid(logits) - targets) / len(targets)
        gradient[:num_penalised] += 2 * PENALTY * penalised
        return value, gradient

    start = np.zeros(rows.shape[1])
    weights = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-10}).x
    mean_weight = weights[:NUM_FEATURES] / spread
    patch_weight = weights[NUM_FEATURES:num_penalised] / deviation
    distance, scale, bias = weights[num_penalised:]
    bias -= mean_weight @ mean + patch_weight @ patches.mean(0)

    logits = scale * log_odds(pooled.astype(np.float64)) + bias + (mean_features @ mean_weight)[:, None]
    logits += best_features @ patch_weight
    logits += ((best_features - centres) ** 2 * (distance * precision)).sum(2)
    probabilities = np.minimum(pooled, sigmoid(logits))
    arrays = {
        "pooled": pooled,
        "mean_features": mean_features,
        "best_features": best_features,
        "present": present.astype(np.uint8),
        "tag_head.mean_weight": mean_weight,
        "tag_head.patch_weight": patch_weight,
        "tag_head.centres": centres,
        "tag_head.distance_weight": distance * precision,
        "tag_head.scale_and_bias": np.array([scale, bias]),
        "probabilities": probabilities,
    }
    arrays = {name: values if values.dtype == np.uint8 else values.astype(np.float32) for name, values in arrays.items()}
    save_file(arrays, Path(__file__).with_name("expected.safetensors"))


if __name__ == "__main__":
    main()
