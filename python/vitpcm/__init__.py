"""Pixel masks from image tags: ViT-PCM's network, a dense CRF, and the commands `masks` and `train`.

>>> import numpy as np, vitpcm
>>> segmenter = vitpcm.Segmenter()                        # the model that comes with the package
>>> image = np.zeros((60, 80, 3), np.uint8)
>>> segmenter.segment(image, size=224).mask.shape
(60, 80)
"""

from ._errors import Error, MissingFileError, UsageError, WrongTypeError
from ._jobs import MasksResult, TrainResult, masks, train
from ._native import Crf, Segmentation, Segmentations, Segmenter, __version__, evaluate, refine

__all__ = [
    "Crf",
    "Error",
    "MasksResult",
    "MissingFileError",
    "Segmentation",
    "Segmentations",
    "Segmenter",
    "TrainResult",
    "UsageError",
    "WrongTypeError",
    "__version__",
    "evaluate",
    "masks",
    "refine",
    "train",
]
