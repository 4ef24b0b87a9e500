"""The package as a user calls it. The command's own masks are compared where VITPCM names the built program."""

import base64
import doctest
import io
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import vitpcm

SIZE = 224  # 16 patches of 14 pixels a side: quick, and enough to see something


def picture(height=90, width=120):
    """A gradient with a bright disc, so that there are edges to refine along."""
    y, x = np.mgrid[:height, :width]
    image = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1)
    image[(x - width // 2) ** 2 + (y - height // 2) ** 2 < (height // 3) ** 2] = (230, 200, 60)
    return image.astype(np.uint8)


@pytest.fixture(scope="session")
def segmenter():
    return vitpcm.Segmenter(device="cpu")


@pytest.mark.parametrize("name", ["vitpcm", "Crf", "Segmenter", "refine", "evaluate"])
def test_examples_in_the_documentation_run(name):
    documented = vitpcm if name == "vitpcm" else getattr(vitpcm, name)
    test = doctest.DocTestParser().get_doctest(documented.__doc__, {}, name, None, None)
    assert test.examples, f"{name} has no example"
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.summarize().failed == 0


def test_a_mask_has_the_size_of_its_image_and_only_the_tags_given(segmenter):
    image = picture()
    result = segmenter.segment(image, tags=["dog", 15], size=SIZE)
    assert result.mask.shape == image.shape[:2] and result.mask.dtype == np.uint8
    assert set(np.unique(result.mask)) <= {0, 12, 15}
    assert result.tags == ["dog", "person"] == [result.classes[12], result.classes[15]]
    assert result.scores.shape == (21, 16, 16) and result.scores.dtype == np.float32
    np.testing.assert_allclose(result.scores.sum(0), 1, atol=1e-5)
    assert result.tag_probabilities.shape == (21,) and 0 <= result.confidence <= 1


def test_other_tags_come_from_the_same_run(segmenter):
    image = picture()
    everything = segmenter.segment(image, tags=None, size=SIZE)
    assert len(everything.tags) == 20
    again = everything.with_tags(["dog"], crf=True)
    np.testing.assert_array_equal(again.mask, segmenter.segment(image, ["dog"], size=SIZE, crf=True).mask)
    likely = everything.with_tags("predict", threshold=0.0)
    assert likely.tags == everything.tags
    assert everything.with_tags("predict", threshold=1.1).tags == []


def test_scales_and_the_mirror_image_change_the_scores(segmenter):
    image = picture()
    plain = segmenter.segment(image, None, size=SIZE).scores
    assert np.abs(plain - segmenter.segment(image, None, size=SIZE, scales=[1, 0.75]).scores).max() > 1e-3
    assert np.abs(plain - segmenter.segment(image, None, size=SIZE, flip=True).scores).max() > 1e-3
    np.testing.assert_array_equal(plain, segmenter.segment(image, None, size=SIZE).scores)


def test_arrays_may_lie_in_any_order(segmenter):
    image = picture()
    turned = np.asfortranarray(image)
    backwards = image[:, ::-1][:, ::-1]
    expected = segmenter.segment(image, ["dog"], size=SIZE).mask
    for other in (turned, backwards):
        np.testing.assert_array_equal(segmenter.segment(other, ["dog"], size=SIZE).mask, expected)


def test_images_come_as_files_and_as_pil_images_too(segmenter, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    image = pil.fromarray(picture())
    expected = segmenter.segment(picture(), ["dog"], size=SIZE).mask
    image.save(tmp_path / "a.png")
    see_through = image.convert("RGBA")
    for other in (tmp_path / "a.png", str(tmp_path / "a.png"), image, see_through):
        np.testing.assert_array_equal(segmenter.segment(other, ["dog"], size=SIZE).mask, expected)
    (tmp_path / "b.png").write_text("no image")
    with pytest.raises(vitpcm.Error, match="b.png"):
        segmenter.segment(tmp_path / "b.png")
    with pytest.raises(FileNotFoundError, match="c.png"):
        segmenter.segment(tmp_path / "c.png")


def test_a_result_is_drawn_saved_and_shown_in_a_notebook(segmenter, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    large = picture(700, 900)
    result = segmenter.segment(large, ["dog"], size=SIZE)
    result.mask[:50, :50] = 12  # so that there is something to see
    drawn = result.overlay()
    assert drawn.shape == large.shape and (drawn[:50, :50] != large[:50, :50]).any()
    background = result.mask == 0
    np.testing.assert_array_equal(drawn[background], large[background])
    np.testing.assert_array_equal(result.overlay(0.0)[10, 10], large[10, 10])

    result.save(tmp_path / "mask.png")
    saved = pil.open(tmp_path / "mask.png")
    assert saved.mode == "P" and saved.getpalette()[36:39] == [64, 0, 128]
    np.testing.assert_array_equal(np.asarray(saved), result.mask)
    with pytest.raises(vitpcm.Error, match="nowhere"):
        result.save(tmp_path / "nowhere" / "mask.png")

    shown = result._repr_html_()
    assert " dog " in shown and "cat" not in shown
    png = base64.b64decode(re.search("base64,([^\"]+)", shown)[1])
    assert pil.open(io.BytesIO(png)).size == (640, 497)


def test_refine_is_what_segment_does(segmenter):
    image = picture()
    plain = segmenter.segment(image, ["dog", "person"], size=SIZE)
    refined = vitpcm.refine(plain.scores, image, alignment=plain.alignment)
    np.testing.assert_array_equal(refined, plain.with_tags(["dog", "person"], crf=True).mask)
    marginals = vitpcm.refine(plain.scores, image, alignment=plain.alignment, marginals=True)
    assert marginals.shape == (21, *image.shape[:2]) and marginals.dtype == np.float32
    np.testing.assert_allclose(marginals.sum(0), 1, atol=1e-4)
    np.testing.assert_array_equal(marginals.argmax(0), refined)
    stronger = vitpcm.refine(plain.scores, image, vitpcm.Crf("irn", iterations=1), alignment=plain.alignment)
    assert stronger.shape == refined.shape


def test_scores_by_hand():
    truth = np.array([[0, 0, 0], [1, 1, 2], [2, 255, 0]])
    pred = np.array([[0, 0, 1], [1, 2, 2], [2, 1, 3]], np.int64)
    scores = vitpcm.evaluate(pred, truth)
    # (1/2 + 1/3 + 2/3) / 3: worked by hand in vitpcm-masks' evaluation tests.
    assert scores["miou"] == pytest.approx(50.0)
    assert scores["confusion"][0] == [2, 1, 0, 1, 0]
    both = vitpcm.evaluate([pred, truth], [truth, truth], classes=["a", "b", "c"])
    assert both["num_images"] == 2 and both["classes"] == ["background", "a", "b", "c"]


def test_folders_are_scored_like_arrays(tmp_path):
    image = pytest.importorskip("PIL.Image")
    masks = {"a": np.array([[0, 1], [1, 2]], np.uint8), "b": np.array([[2, 2], [0, 0]], np.uint8)}
    truths = {"a": np.array([[0, 1], [2, 2]], np.uint8), "b": np.array([[2, 0], [0, 255]], np.uint8)}
    for folder, maps in (("pred", masks), ("truth", truths)):
        (tmp_path / folder).mkdir()
        for name, mask in maps.items():
            image.fromarray(mask).save(tmp_path / folder / f"{name}.png")
    (tmp_path / "pred/alone.png").write_bytes((tmp_path / "pred/a.png").read_bytes())
    folders = vitpcm.evaluate(tmp_path / "pred", str(tmp_path / "truth"))
    arrays = vitpcm.evaluate(list(masks.values()), list(truths.values()))
    assert folders["miou"] == arrays["miou"] and folders["confusion"] == arrays["confusion"]
    assert folders["failures"] == [f"alone: no true mask in {tmp_path / 'truth'}"]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda s: vitpcm.Segmenter("nowhere.safetensors"), FileNotFoundError, "nowhere.safetensors: there is no"),
        (lambda s: vitpcm.Segmenter(__file__), vitpcm.Error, "test_vitpcm.py"),
        (lambda s: vitpcm.Segmenter(device="tpu"), ValueError, "expected cpu, cuda, cuda:N or metal"),
        (lambda s: s.segment(np.zeros((4, 4), np.uint8)), ValueError, "found uint8 of shape (4, 4)"),
        (lambda s: s.segment(np.zeros((4, 4, 3))), TypeError, "found float64 of shape (4, 4, 3)"),
        (lambda s: s.segment(np.zeros((0, 4, 3), np.uint8)), ValueError, "(0, 4, 3)"),
        (lambda s: s.segment(picture(), ["unicorn"]), ValueError, "does not know `unicorn`; it knows aeroplane"),
        (lambda s: s.segment(picture(), [21]), ValueError, "does not know `21`"),
        (lambda s: s.segment(picture(), "dog"), ValueError, "expected a list of classes"),
        (lambda s: s.segment(picture(), size=100_000), ValueError, "expected 1 to 256"),
        (lambda s: vitpcm.Crf("mine"), ValueError, "expected one of vit-pcm, deeplab, irn"),
        (lambda s: vitpcm.refine(np.full((2, 3, 3), 7.0), picture()), ValueError, "scores: "),
        (lambda s: vitpcm.refine(np.zeros((2, 3, 3), int), picture()), TypeError, "expected floats"),
        (lambda s: vitpcm.evaluate(np.array([[300]]), np.array([[0]])), ValueError, "pred: expected integers from 0 to 255"),
        (lambda s: vitpcm.evaluate(np.zeros((2, 2), int), np.zeros((2, 3), int)), ValueError, "mask 0: "),
        (lambda s: vitpcm.evaluate("/nowhere", "/nowhere"), vitpcm.Error, "/nowhere"),
        (lambda s: vitpcm.evaluate("/nowhere", np.zeros((2, 2), int)), ValueError, "both to be folders"),
    ],
)
def test_errors_say_what_was_expected(segmenter, call, kind, words):
    with pytest.raises(kind) as raised:
        call(segmenter)
    assert words in str(raised.value)


def test_other_threads_go_on_meanwhile(segmenter):
    """The longest pause of a thread that only counts is far shorter than the network's run."""
    pauses, stop = [], threading.Event()

    def count():
        last = time.perf_counter()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    counter = threading.Thread(target=count)
    counter.start()
    began = time.perf_counter()
    segmenter.segment(picture(), None, size=448, flip=True)
    took = time.perf_counter() - began
    stop.set()
    counter.join()
    assert max(pauses) < took / 2, (max(pauses), took)


def test_masks_are_those_of_the_command(segmenter, tmp_path):
    program = os.environ.get("VITPCM")
    if not program:
        pytest.skip("VITPCM does not name the built program")
    image = pytest.importorskip("PIL.Image")
    photo = Path(__file__).parents[2] / "docs/photographs.jpg"
    pixels = np.asarray(image.open(photo).convert("RGB").resize((300, 140)))
    image.fromarray(pixels).save(tmp_path / "photo.png")
    for name, options, arguments in [
        ("predicted", {}, []),
        ("given", {"tags": ["cat", "person"], "crf": True}, ["--tags=cat,person", "--crf"]),
        ("filled", {"tags": ["person"], "fill_unsure": True}, ["--tags=person", "--fill-unsure"]),
        ("scales", {"tags": None, "scales": [0.75, 1.0]}, ["--no-tags", "--scales=0.75,1"]),
    ]:
        out = tmp_path / name
        command = [program, "segment", tmp_path / "photo.png", f"--size={SIZE}", "--device=cpu", "--out", out]
        subprocess.run([*command, *arguments, "--format=png,npz", "--no-report", "--quiet"], check=True)
        result = segmenter.segment(pixels, size=SIZE, **options)
        np.testing.assert_array_equal(result.mask, np.asarray(image.open(out / "photo.png")))
        stored = np.load(out / "npz/photo.npz")
        np.testing.assert_array_equal(result.scores.astype(np.float16), stored["scores"])
        # At this size the tag head is sure of nothing; given tags must find something, so that the comparison means something.
        assert name == "predicted" or result.mask.any(), name
