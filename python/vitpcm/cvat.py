"""A function for CVAT's automatic annotation: masks or polygons from a vitpcm model, without PyTorch.

Needs `pip install 'vitpcm[cvat]'`. With CVAT's command line:

    cvat-cli --server-host https://app.cvat.ai task auto-annotate 137 --function-module vitpcm.cvat \\
        -p model=str:masks --allow-unmatched-labels

or in Python: `cvat_sdk.auto_annotation.annotate_task(client, 137, vitpcm.cvat.create("masks"))`.

The labels of the task are matched with the model's classes by name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional, Union

import cvat_sdk.auto_annotation as cvataa
import numpy as np
from cvat_sdk.masks import encode_mask
from numpy.typing import NDArray

from ._native import Segmenter

if TYPE_CHECKING:
    import PIL.Image
    from cvat_sdk import models

__all__ = ["VitpcmFunction", "create"]

_THRESHOLD = 0.5
"""The probability from which a class is looked for in an image, unless CVAT says another."""


class VitpcmFunction:
    """What CVAT calls: `spec`, the model's classes as labels; `detect`, the objects in an image.

    Made by create().
    """

    def __init__(self, segmenter: Segmenter, objects: str, crf: bool, min_area: int, size: Optional[int]) -> None:
        self._segmenter = segmenter
        self._objects = objects
        self._crf = crf
        self._min_area = min_area
        self._size = size
        self._spec = cvataa.DetectionFunctionSpec(
            labels=[cvataa.label_spec(name, i) for i, name in enumerate(segmenter.classes) if i > 0]
        )

    @property
    def spec(self) -> cvataa.DetectionFunctionSpec:
        """The model's classes, without the background; ids are their numbers in masks."""
        return self._spec

    def detect(
        self, context: cvataa.DetectionFunctionContext, image: PIL.Image.Image
    ) -> list[models.LabeledShapeRequest]:
        """The objects in an image: masks, or polygons where the context asks for them.

        Classes whose probability is below the context's confidence threshold, or 0.5 without one, are left out.
        """
        threshold = _THRESHOLD if context.conf_threshold is None else context.conf_threshold
        result = self._segmenter.segment(image, threshold=threshold, crf=self._crf, size=self._size)
        options: dict[str, Any] = {"objects": self._objects, "min_area": self._min_area}
        if context.conv_mask_to_poly:
            return [
                cvataa.polygon(each["category_id"], [float(value) for value in ring])
                for each in result.annotations("polygons", **options)
                for ring in each["segmentation"]
            ]
        return [_mask(each) for each in result.annotations("rle", **options)]


def create(
    model: Union[str, "os.PathLike[str]", None] = None,
    *,
    device: Optional[str] = None,
    objects: str = "parts",
    crf: bool = False,
    min_area: int = 0,
    size: Optional[int] = None,
) -> VitpcmFunction:
    """The function that CVAT calls, with a model: a file or the folder of `masks` or `train` [default: the embedded one].

    objects: "parts": each connected component of a class is a shape; "classes": all of a class in an image is one mask. crf: masks
    are refined. min_area: components of fewer pixels are left to their neighbours. device and size are those of Segmenter and
    segment().

    >>> import vitpcm.cvat                                                  # doctest: +SKIP
    >>> annotate_task(client, 137, vitpcm.cvat.create("masks", crf=True))
    """
    return VitpcmFunction(Segmenter(model, device=device), objects, crf, min_area, size)


def _mask(annotation: dict[str, Any]) -> models.LabeledShapeRequest:
    left, top, width, height = annotation["bbox"]
    box = [left, top, left + width, top + height]
    return cvataa.mask(annotation["category_id"], encode_mask(_bitmap(annotation["segmentation"]), box))


def _bitmap(segmentation: dict[str, Any]) -> NDArray[np.bool_]:
    """The pixels of COCO's run lengths: column by column, background first."""
    height, width = segmentation["size"]
    runs = _run_lengths(segmentation["counts"])
    is_object = np.arange(len(runs)) % 2 == 1
    return np.repeat(is_object, runs).reshape(width, height).T


def _run_lengths(text: str) -> list[int]:
    """COCO's text of run lengths: five bits a letter, signed, from the third on as differences to the last but one."""
    runs: list[int] = []
    value = shift = 0
    for letter in text.encode():
        bits = letter - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return runs
