"""Unary energies that both sides of a comparison can make without a network.

`smooth_scores` draws a coarse grid of random scores, resizes it bilinearly and normalises: blobs like those of a weakly
supervised network at stride 16. Deterministic: the generator is written out, and the Rust tests repeat it.
"""

import numpy as np


def random_grid(count, seed):
    """A 64-bit linear congruential generator (Knuth's MMIX constants); 24 bits of each state, in [0, 1)."""
    out = np.empty(count, np.float64)
    state = seed
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = (state >> 40) / 2**24
    return out


def smooth_scores(num_classes, height, width, seed, cell=32):
    """Probabilities, (num_classes, height, width), f64: bilinear in a grid with one node every `cell` pixels."""
    rows, columns = height // cell + 2, width // cell + 2
    grid = random_grid(num_classes * rows * columns, seed).reshape(num_classes, rows, columns) ** 4
    y, x = np.arange(height) / cell, np.arange(width) / cell
    y0, x0 = y.astype(int), x.astype(int)
    fy, fx = (y - y0)[None, :, None], (x - x0)[None, None, :]
    at = lambda dy, dx: grid[:, y0 + dy][:, :, x0 + dx]
    scores = (at(0, 0) * (1 - fx) + at(0, 1) * fx) * (1 - fy) + (at(1, 0) * (1 - fx) + at(1, 1) * fx) * fy
    scores += 1e-4
    return scores / scores.sum(0)


def energies(probabilities, floor=1e-5):
    """Unary energies, (num_classes, pixels), f32: -ln(max(p, floor))."""
    return np.ascontiguousarray(-np.log(np.maximum(probabilities, floor)).astype(np.float32).reshape(len(probabilities), -1))
