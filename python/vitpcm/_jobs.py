"""`masks` and `train`: the commands of the same names, in this process.

Arguments become the words that a person would type, so that both do the same and check the same.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

from ._errors import MissingFileError
from ._native import run_command

_Path = Union[str, "os.PathLike[str]"]
_Progress = Callable[[str, int, int], object]

_logger = logging.getLogger("vitpcm")
# Without it, Python prints warnings of loggers that nobody set up.
_logger.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class MasksResult:
    """What masks() made."""

    folder: Path
    """The folder of the masks: one PNG for each image, and the files of other formats."""
    report: Path
    """The report, a page for your browser: the least certain images first."""
    model: Path
    """The trained model, for Segmenter()."""
    classes: list[str]
    """The classes, without the background: class 1 first."""
    agreement: Optional[dict[str, Optional[float]]]
    """For each class, how far the masks agree with those of the round before, as IoU in percent: what tells which masks to trust. None
    for a class that is found nowhere; None altogether where there was no other round."""
    failures: list[str] = field(repr=False)
    """What could not be read or made, in words. Everything else was done."""
    summary: dict[str, Any] = field(repr=False)
    """What `vitpcm masks --json` writes."""


@dataclass(frozen=True)
class TrainResult:
    """What train() made."""

    folder: Path
    """The run folder."""
    report: Path
    """The report, a page for your browser."""
    model: Path
    """The trained model, for Segmenter()."""
    classes: list[str]
    """The classes, without the background: class 1 first."""
    verdict: str
    """Which classes the model recognises in images that it was not trained on, in words."""
    failures: list[str] = field(repr=False)
    """What could not be read, in words. Everything else was done."""
    summary: dict[str, Any] = field(repr=False)
    """What `vitpcm train --json` writes."""


def masks(
    folder: _Path,
    out: _Path,
    *,
    minutes: Optional[float] = None,
    formats: Sequence[str] = ("png",),
    resume: bool = False,
    device: Optional[str] = None,
    precision: Optional[str] = None,
    threads: Optional[int] = None,
    seed: int = 0,
    max_megapixels: Optional[int] = None,
    progress: Optional[_Progress] = None,
) -> MasksResult:
    """Make a mask for every image of a folder of tagged images: plan, train on the tags, refine; as `vitpcm masks`.

    folder: tagged images in any layout that `vitpcm data inspect` knows. out: a new folder for the masks, the report and the model.
    minutes: time that the whole job may take [default: 4 on a GPU, 60 on a CPU]. formats: "png", "overlay", "coco", "yolo", …
    resume: go on with the job in out, with its own plan. device: "cpu", "cuda", "cuda:N". threads: for the process, so only the
    first call may set it.

    progress: called as progress(stage, done, total) in your thread, at most ten times a second. If it raises, the work stops at its
    next safe point and the exception comes out of this call; so does KeyboardInterrupt on Ctrl-C. In both cases resume=True goes on
    where it stopped. A second Ctrl-C returns at once, while the work ends in the background.

    Messages go to the logger "vitpcm"; nothing is printed.

    >>> import vitpcm                                                       # doctest: +SKIP
    >>> made = vitpcm.masks("my-images", "masks", minutes=10, progress=print)
    >>> made.agreement, made.report
    >>> vitpcm.Segmenter(made.model).segment("new.jpg")
    """
    words = ["masks", *_option("--out", out), "--json=-"]
    words += _option("--format", formats if isinstance(formats, str) else ",".join(formats))
    words += _option("--minutes", minutes) + _flag("--resume", resume)
    words += _common(device, precision, threads, seed, max_megapixels)
    words += ["--", _existing(folder)]
    summary, failures = _run(words, progress)
    place = Path(out)
    agreement = summary.get("agreement")
    by_class = agreement and {each["class"]: each["agreement"] for each in agreement["classes"]}
    return MasksResult(
        folder=place,
        report=place / "report.html",
        model=place / "model.safetensors",
        classes=summary["classes"],
        agreement=by_class,
        failures=failures,
        summary=summary,
    )


def train(
    data: _Path,
    out: _Path,
    *,
    epochs: Optional[int] = None,
    batch: Optional[int] = None,
    preset: Optional[str] = None,
    weights: Optional[_Path] = None,
    backbone: Optional[str] = None,
    pseudo_masks: Optional[_Path] = None,
    features: Optional[_Path] = None,
    val_share: Optional[float] = None,
    settings: Optional[Mapping[str, object]] = None,
    resume: bool = False,
    accept_changed_images: bool = False,
    device: Optional[str] = None,
    precision: Optional[str] = None,
    threads: Optional[int] = None,
    seed: int = 0,
    max_megapixels: Optional[int] = None,
    progress: Optional[_Progress] = None,
) -> TrainResult:
    """Train a model on tagged images, as `vitpcm train`.

    data: tagged images in any layout that `vitpcm data inspect` knows. out: the run folder. epochs, batch: number of epochs, images
    per batch. preset: "default", "official", "paper", "demo". weights: a file, a run folder, "embedded" (the default) or "none".
    pseudo_masks: masks of an earlier model to learn from too. val_share: fraction of the images to hold out. settings: any other
    settings by their dotted keys, as `--set`: {"schedule.rate": 3e-4}. resume: go on with the run in out, with its own settings.

    progress, Ctrl-C, messages and threads are as in masks().

    >>> import vitpcm                                                       # doctest: +SKIP
    >>> run = vitpcm.train("my-images", "run", epochs=20, settings={"schedule.rate": 3e-4})
    >>> print(run.verdict)
    >>> vitpcm.Segmenter(run.model).segment("new.jpg")
    """
    words = ["train", *_option("--data", _existing(data)), *_option("--out", out), "--json=-"]
    words += _option("--epochs", epochs) + _option("--batch", batch) + _option("--preset", preset)
    words += _option("--weights", weights) + _option("--backbone", backbone)
    words += _option("--pseudo-masks", pseudo_masks) + _option("--features", features)
    words += _option("--val-share", val_share)
    for key, value in (settings or {}).items():
        words += [f"--set={key}={_setting(value)}"]
    words += _flag("--resume", resume) + _flag("--accept-changed-images", accept_changed_images)
    words += _common(device, precision, threads, seed, max_megapixels)
    summary, failures = _run(words, progress)
    place = Path(out)
    return TrainResult(
        folder=place,
        report=place / "report.html",
        model=place / "model.safetensors",
        classes=summary["classes"],
        verdict=summary["verdict"]["sentence"],
        failures=failures,
        summary=summary,
    )


def _run(words: list[str], progress: Optional[_Progress]) -> tuple[dict[str, Any], list[str]]:
    """The JSON that a command with `--json -` gives, and what failed."""
    results: list[str] = []
    failures: list[str] = []

    def say(kind: str, text: str) -> None:
        if kind == "result":
            results.append(text)
        elif kind == "failure":
            failures.append(text)
            _logger.warning("%s", text)
        else:
            _logger.info("%s", text)

    run_command(words, say, progress)
    return json.loads("".join(results)), failures


def _common(
    device: Optional[str],
    precision: Optional[str],
    threads: Optional[int],
    seed: int,
    max_megapixels: Optional[int],
) -> list[str]:
    words = _option("--device", device) + _option("--precision", precision)
    words += _option("--threads", threads) + _option("--seed", seed)
    return words + _option("--max-megapixels", max_megapixels)


def _option(name: str, value: Union[_Path, float, None]) -> list[str]:
    # In one word, so that a value may begin with a dash.
    return [] if value is None else [f"{name}={os.fspath(value) if isinstance(value, (str, os.PathLike)) else value}"]


def _flag(name: str, is_set: bool) -> list[str]:
    return [name] if is_set else []


def _setting(value: object) -> str:
    """A value as TOML has it, except that a string needs no quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike)):
        return json.dumps(list(value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _existing(path: _Path) -> str:
    if not os.path.exists(path):
        raise MissingFileError(f"{os.fspath(path)}: there is no such file or folder")
    return os.fspath(path)
