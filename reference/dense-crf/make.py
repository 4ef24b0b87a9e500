"""Stores pydensecrf's marginals on small images, for the Rust tests of dense-crf.

    python reference/dense-crf/make.py

Needs pydensecrf (built from its public source), numpy, pillow, and scikit-image's data folder (--data DIR where it is not
installed in this Python). Writes beside itself: two photographs that scikit-image ships under CC0, reduced (`chelsea.png`
by Stefan van der Walt, `coffee.png` by Rachel Michetti), and for each case below `NAME.npy`, f32, (classes, pixels): the
marginals at every STEP-th pixel in row-major order. The Rust tests repeat the cases; both make the unary by `scene.py`.
"""

import argparse
from pathlib import Path

import numpy as np
import pydensecrf.densecrf as dcrf
from PIL import Image

from scene import energies, smooth_scores

HERE = Path(__file__).resolve().parent
STEP = 7


def photographs(data):
    small = (120, 80)
    chelsea = Image.open(data / "chelsea.png").convert("RGB").resize(small, Image.LANCZOS)
    coffee = Image.open(data / "coffee.png").convert("RGB").resize((300, 200), Image.LANCZOS)
    chelsea.save(HERE / "chelsea.png", optimize=True)
    coffee.save(HERE / "coffee.png", optimize=True)
    return np.array(chelsea), np.array(coffee)


def crf(image, num_classes, seed):
    height, width = image.shape[:2]
    out = dcrf.DenseCRF2D(width, height, num_classes)
    out.setUnaryEnergy(energies(smooth_scores(num_classes, height, width, seed, cell=16)))
    return out


def usual(image, num_classes, seed, compat=lambda weight: weight, normalization=dcrf.NORMALIZE_SYMMETRIC):
    out = crf(image, num_classes, seed)
    out.addPairwiseGaussian(1, compat(3), normalization=normalization)
    out.addPairwiseBilateral(67, 3, image, compat(4), normalization=normalization)
    return out


def features(image):
    """x, y and grey level, feature-major; then mixed by a matrix."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    return np.stack([x, y, image[:, :, 1].astype(np.float32)]).reshape(3, -1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    data = parser.parse_args().data
    if data is None:
        import skimage

        data = Path(skimage.__file__).parent / "data"
    chelsea, coffee = photographs(data)

    def store(name, model, iterations=10):
        marginals = np.array(model.inference(iterations))[:, ::STEP]
        np.save(HERE / f"{name}.npy", np.ascontiguousarray(marginals, np.float32))

    store("potts-2", usual(coffee, 2, seed=1))
    store("potts-3", usual(chelsea, 3, seed=2))
    store("potts-21", usual(chelsea, 21, seed=3))
    store("one-iteration", usual(chelsea, 5, seed=4), iterations=1)
    store("normalize-none", usual(chelsea, 3, seed=5, compat=lambda w: 0.01 * w, normalization=dcrf.NO_NORMALIZATION))
    store("normalize-before", usual(chelsea, 3, seed=6, normalization=dcrf.NORMALIZE_BEFORE))
    store("normalize-after", usual(chelsea, 3, seed=7, normalization=dcrf.NORMALIZE_AFTER))
    diagonal = -np.array([1.0, 0.5, 2.0, 0.25], np.float32)
    store("diagonal", usual(chelsea, 4, seed=8, compat=lambda w: w * diagonal))
    matrix = np.array([[-1, 0.5, 0], [0.25, -2, 1], [0, 0.75, -0.5]], np.float32)
    store("matrix", usual(chelsea, 3, seed=9, compat=lambda w: w * matrix))
    mix = np.array([[0.05, 0, 0], [0.01, 0.04, 0], [0.002, -0.003, 0.1]], np.float32)
    model = crf(chelsea, 3, seed=10)
    model.addPairwiseEnergy(np.ascontiguousarray(mix @ features(chelsea)), 5)
    store("features", model)
    wide = crf(chelsea, 3, seed=11)
    wide.addPairwiseGaussian((3, 9), 2)
    wide.addPairwiseBilateral((40, 20), (13, 20, 30), chelsea, 10)
    store("other-sigmas", wide)


if __name__ == "__main__":
    main()
