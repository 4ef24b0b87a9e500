"""Pixel masks from image tags: ViT-PCM's network and a dense CRF over NumPy arrays.

>>> import numpy as np, vitpcm
>>> segmenter = vitpcm.Segmenter()                        # the model that comes with the package
>>> image = np.zeros((60, 80, 3), np.uint8)
>>> segmenter.segment(image, size=224).mask.shape
(60, 80)
"""

from ._native import Crf, Error, Segmentation, Segmenter, __version__, evaluate, refine

__all__ = ["Crf", "Error", "Segmentation", "Segmenter", "__version__", "evaluate", "refine"]
