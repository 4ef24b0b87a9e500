from os import PathLike
from typing import Any, Literal, Optional, Protocol, Sequence, Union, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Crf", "Error", "Segmentation", "Segmenter", "__version__", "evaluate", "refine"]

__version__: str

_Tags = Union[Literal["predict"], Sequence[Union[str, int]], None]
_Path = Union[str, "PathLike[str]"]

class _PilImage(Protocol):
    @property
    def mode(self) -> str: ...
    def convert(self, mode: str) -> Any: ...

class Error(RuntimeError):
    """A file or computation that failed; the message names it."""

@final
class Crf:
    """Settings of the dense CRF: a preset, and every parameter on top of it."""

    def __new__(
        cls,
        preset: Literal["vit-pcm", "deeplab", "irn"] = ...,
        *,
        iterations: Optional[int] = None,
        gaussian_weight: Optional[float] = None,
        gaussian_sigma: Optional[float] = None,
        bilateral_weight: Optional[float] = None,
        bilateral_sigma_xy: Optional[float] = None,
        bilateral_sigma_rgb: Optional[float] = None,
        floor: Optional[float] = None,
    ) -> Crf: ...

@final
class Segmentation:
    """The segmentation of one image."""

    @property
    def mask(self) -> NDArray[np.uint8]:
        """(height, width); 0 is the background, others as in classes."""
    @property
    def scores(self) -> NDArray[np.float32]:
        """(classes, rows, columns) on the grid of patches, the tags taken into account."""
    @property
    def tag_probabilities(self) -> NDArray[np.float32]:
        """Probability that each class is in the image, the background first."""
    @property
    def tags(self) -> list[str]:
        """The classes that the mask may show."""
    @property
    def confidence(self) -> float:
        """0 undecided, 1 certain."""
    @property
    def classes(self) -> list[str]: ...
    @property
    def alignment(self) -> Literal["half-pixel", "align-corners"]: ...
    def with_tags(
        self,
        tags: _Tags = "predict",
        *,
        threshold: float = 0.5,
        crf: Union[bool, Crf] = False,
        fill_unsure: bool = False,
    ) -> Segmentation:
        """The same image with other tags or another CRF, from the same run of the network."""
    def overlay(self, opacity: float = 0.5) -> NDArray[np.uint8]:
        """The mask over its image: (height, width, 3)."""
    def save(self, path: _Path) -> None:
        """Write the mask as an 8-bit PNG of class numbers with VOC's colours."""
    def _repr_html_(self) -> str: ...

@final
class Segmenter:
    """A model, ready to segment images."""

    def __new__(cls, model: Optional[_Path] = None, *, device: Optional[str] = None) -> Segmenter: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def size(self) -> int: ...
    def segment(
        self,
        image: Union[_Path, _PilImage, ArrayLike],
        tags: _Tags = "predict",
        *,
        threshold: float = 0.5,
        size: Optional[int] = None,
        scales: Optional[Sequence[float]] = None,
        flip: bool = False,
        crf: Union[bool, Crf] = False,
        fill_unsure: bool = False,
    ) -> Segmentation:
        """Segment an image: a file's path, a PIL image, or uint8 of shape (height, width, 3)."""

@overload
def refine(
    scores: ArrayLike,
    image: ArrayLike,
    crf: Optional[Crf] = None,
    *,
    alignment: Literal["half-pixel", "align-corners"] = "half-pixel",
    marginals: Literal[False] = False,
) -> NDArray[np.uint8]: ...
@overload
def refine(
    scores: ArrayLike,
    image: ArrayLike,
    crf: Optional[Crf] = None,
    *,
    alignment: Literal["half-pixel", "align-corners"] = "half-pixel",
    marginals: Literal[True],
) -> NDArray[np.float32]: ...
def evaluate(
    pred: Union[_Path, ArrayLike, Sequence[ArrayLike]],
    truth: Union[_Path, ArrayLike, Sequence[ArrayLike]],
    classes: Union[Literal["voc", "coco"], _Path, Sequence[str], None] = None,
) -> dict[str, Any]: ...
