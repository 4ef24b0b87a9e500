from os import PathLike
from typing import Any, Callable, Iterable, Iterator, Literal, Optional, Protocol, Sequence, TypeVar, Union, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import Error

__all__ = [
    "Crf",
    "Segmentation",
    "Segmentations",
    "Segmenter",
    "__version__",
    "evaluate",
    "refine",
    "run_command",
    "run_program",
]

__version__: str

_Point = tuple[float, float]
_Tags = Union[Literal["predict"], Sequence[Union[str, int]], None]
_Path = Union[str, "PathLike[str]"]

class _PilImage(Protocol):
    @property
    def mode(self) -> str: ...
    def convert(self, mode: str) -> Any: ...

_Image = Union[_Path, _PilImage, ArrayLike]

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
    def classes(self) -> list[str]:
        """The classes that masks show, by their numbers; the first is the background."""
    @property
    def alignment(self) -> Literal["half-pixel", "align-corners"]:
        """How scores lie on the image, as refine() takes it."""
    def with_tags(
        self,
        tags: _Tags = "predict",
        *,
        threshold: float = 0.5,
        crf: Union[bool, Crf] = False,
        fill_unsure: bool = False,
    ) -> Segmentation:
        """The same image with other tags or another CRF, from the same run of the network."""
    def with_hints(
        self,
        hints: Sequence[tuple[Union[str, int], Union[_Point, Sequence[_Point]]]],
        *,
        crf: Union[bool, Crf] = False,
        fill_unsure: bool = False,
    ) -> Segmentation:
        """The same image and tags, corrected: hints are pairs of a class and a point (x, y) in pixels, or a line of points."""
    def overlay(self, opacity: float = 0.5) -> NDArray[np.uint8]:
        """The mask over its image: (height, width, 3)."""
    def annotations(
        self,
        shape: Literal["polygons", "rle"] = "polygons",
        *,
        objects: str = "parts",
        polygon_error: float = 1.0,
        min_area: int = 0,
    ) -> list[dict[str, Any]]:
        """The mask's objects as COCO annotations: category_id, bbox, area, segmentation."""
    def save(self, path: _Path) -> None:
        """Write the mask as an 8-bit PNG of class numbers with VOC's colours."""
    def _repr_html_(self) -> str: ...

_Result = TypeVar("_Result", covariant=True)

@final
class Segmentations(Iterator[_Result]):
    """The segmentations of many images, one a step."""

    def __iter__(self) -> Segmentations[_Result]: ...
    def __next__(self) -> _Result: ...

@final
class Segmenter:
    """A model, ready to segment images."""

    def __new__(cls, model: Optional[_Path] = None, *, device: Optional[str] = None) -> Segmenter: ...
    @property
    def classes(self) -> list[str]:
        """The classes that masks show, by their numbers; the first is the background."""
    @property
    def size(self) -> int:
        """Side in pixels to which images are resized for the network where no size is given."""
    def segment(
        self,
        image: _Image,
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
    def segment_many(
        self,
        images: Iterable[_Image],
        tags: Union[_Tags, Sequence[_Tags]] = "predict",
        *,
        threshold: float = 0.5,
        size: Optional[int] = None,
        scales: Optional[Sequence[float]] = None,
        flip: bool = False,
        crf: Union[bool, Crf] = False,
        fill_unsure: bool = False,
        errors: Literal["raise"] = "raise",
        progress: Optional[Callable[[str, int, int], object]] = None,
    ) -> Segmentations[Segmentation]:
        """Segment many images, one after the other: an iterator over their segmentations, in order."""
    @overload
    def segment_many(
        self,
        images: Iterable[_Image],
        tags: Union[_Tags, Sequence[_Tags]] = "predict",
        *,
        threshold: float = 0.5,
        size: Optional[int] = None,
        scales: Optional[Sequence[float]] = None,
        flip: bool = False,
        crf: Union[bool, Crf] = False,
        fill_unsure: bool = False,
        errors: Literal["yield"],
        progress: Optional[Callable[[str, int, int], object]] = None,
    ) -> Segmentations[Union[Segmentation, Error]]: ...

@overload
def refine(
    scores: ArrayLike,
    image: _Image,
    crf: Optional[Crf] = None,
    *,
    alignment: Literal["half-pixel", "align-corners"] = "half-pixel",
    marginals: Literal[False] = False,
) -> NDArray[np.uint8]:
    """Refine class scores along the edges of an image by a dense CRF: the mask, or with marginals=True the probabilities."""
@overload
def refine(
    scores: ArrayLike,
    image: _Image,
    crf: Optional[Crf] = None,
    *,
    alignment: Literal["half-pixel", "align-corners"] = "half-pixel",
    marginals: Literal[True],
) -> NDArray[np.float32]: ...
def evaluate(
    pred: Union[_Path, ArrayLike, Sequence[ArrayLike]],
    truth: Union[_Path, ArrayLike, Sequence[ArrayLike]],
    classes: Union[Literal["voc", "coco"], _Path, Sequence[str], None] = None,
) -> dict[str, Any]:
    """Score masks against true ones: two masks, two sequences of masks, or two folders."""
def run_command(
    words: Sequence[str],
    say: Callable[[str, str], object],
    progress: Optional[Callable[[str, int, int], object]],
) -> None:
    """Run a command line without its first word; say(kind, text) hears "note", "failure" and "result"."""

def run_program(words: Sequence[str]) -> int:
    """The program with this command line; returns the exit code. It takes over Ctrl-C."""
