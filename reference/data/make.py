"""Makes the small images and COCO masks that the tests of vitpcm-data and vitpcm-masks read.

Run with Pillow, NumPy and pycocotools: python make.py
Expected pixels come from Pillow and NumPy, expected run lengths from pycocotools; tests need no Python.
"""

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from pycocotools import mask as coco

HERE = Path(__file__).parent
IMAGES = HERE / "images"
IMAGES.mkdir(exist_ok=True)
expected = {}


def picture(width=24, height=16):
    """A smooth picture whose four corners differ, so that no turned or mirrored copy equals it."""
    y, x = np.mgrid[0:height, 0:width] / np.array([height - 1, width - 1]).reshape(2, 1, 1)
    return np.stack([40 + 200 * x, 30 + 180 * y, 220 - 100 * x - 100 * y], axis=-1).round().astype(np.uint8)


def keep(name, rgb):
    """Stores the pixels that reading the file must give."""
    rgb = np.asarray(rgb)
    assert rgb.dtype == np.uint8 and rgb.ndim == 3 and rgb.shape[2] == 3
    expected[name] = {"width": rgb.shape[1], "height": rgb.shape[0], "rgb": rgb.tobytes().hex()}


def over_white(rgba):
    rgba = np.asarray(rgba).astype(np.float64)
    alpha = rgba[..., 3:] / 255
    return (rgba[..., :3] * alpha + 255 * (1 - alpha) + 0.5).astype(np.uint8)


def save(name, image, **options):
    image.save(IMAGES / name, **options)
    return Image.open(IMAGES / name)


rgb = picture()
image = Image.fromarray(rgb)
grey = image.convert("L")
ramp = np.linspace(0, 255, 24).round().astype(np.uint8)[None, :].repeat(16, 0)

# JPEG: colour, grey, progressive, CMYK with and without Adobe's transform to YCCK.
keep("rgb.jpg", save("rgb.jpg", image, quality=95).convert("RGB"))
keep("grey.jpg", save("grey.jpg", grey, quality=95).convert("RGB"))
keep("progressive.jpg", save("progressive.jpg", image, quality=90, progressive=True).convert("RGB"))
cmyk = Image.fromarray(np.dstack([255 - rgb[..., 0], 255 - rgb[..., 1], 255 - rgb[..., 2], ramp // 3]), mode="CMYK")
keep("cmyk.jpg", save("cmyk.jpg", cmyk, quality=95).convert("RGB"))


def as_ycck(cmyk_image):
    """The same picture with Adobe's transform 2. libjpeg writes YCCK only through its C interface, so the three
    colour channels are turned into YCbCr here and the marker is patched."""
    inverted = 255 - np.asarray(cmyk_image)  # Adobe stores inverted inks
    # A decoder turns Y, Cb, Cr into R, G, B and takes 255 minus these as the stored inks.
    ycc = np.asarray(Image.fromarray(255 - inverted[..., :3]).convert("YCbCr"))
    raw = np.dstack([ycc, inverted[..., 3]])
    buffer = io.BytesIO()
    # Pillow inverts what it writes as CMYK, so hand it the complement to have `raw` in the file.
    Image.fromarray(255 - raw, mode="CMYK").save(buffer, "JPEG", quality=95)
    data = bytearray(buffer.getvalue())
    at = data.find(b"Adobe")
    assert at > 0, "no Adobe marker"
    data[at + 11] = 2
    return bytes(data)


(IMAGES / "ycck.jpg").write_bytes(as_ycck(cmyk))
keep("ycck.jpg", Image.open(IMAGES / "ycck.jpg").convert("RGB"))

# PNG: colour, grey, 16 bits, alpha, palette with transparency, one bit.
keep("rgb.png", save("rgb.png", image).convert("RGB"))
keep("grey.png", save("grey.png", grey).convert("RGB"))
deep = np.linspace(0, 65535, 24 * 16).round().astype(np.uint16).reshape(16, 24)
save("grey16.png", Image.fromarray(deep))
keep("grey16.png", ((deep.astype(np.uint32) + 128) // 257).astype(np.uint8)[..., None].repeat(3, 2))
rgba = np.dstack([rgb, ramp])
keep("rgba.png", over_white(save("rgba.png", Image.fromarray(rgba)).convert("RGBA")))
la = Image.merge("LA", [grey, Image.fromarray(ramp)])
keep("grey-alpha.png", over_white(save("grey-alpha.png", la).convert("RGBA")))
palette = image.quantize(16)
keep("palette.png", save("palette.png", palette).convert("RGB"))
keep("palette-transparent.png", over_white(save("palette-transparent.png", palette, transparency=3).convert("RGBA")))
keep("one-bit.png", save("one-bit.png", grey.convert("1")).convert("RGB"))

# The other formats.
keep("lossless.webp", save("lossless.webp", image, lossless=True).convert("RGB"))
keep("lossy.webp", save("lossy.webp", image, quality=90).convert("RGB"))
keep("alpha.webp", over_white(save("alpha.webp", Image.fromarray(rgba), lossless=True, exact=True).convert("RGBA")))
keep("rgb.tif", save("rgb.tif", image, compression="tiff_lzw").convert("RGB"))
keep("grey.tif", save("grey.tif", grey).convert("RGB"))
keep("rgb.bmp", save("rgb.bmp", image).convert("RGB"))
keep("palette.bmp", save("palette.bmp", palette).convert("RGB"))

# EXIF orientation 1 to 8: the stored picture differs, the upright one is what Pillow's exif_transpose gives.
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for extension, options in [("jpg", {"quality": 95}), ("png", {}), ("webp", {"lossless": True})]:
        if extension != "jpg" and orientation not in (3, 6):
            continue
        name = f"orientation-{orientation}.{extension}"
        stored = save(name, image, exif=exif.tobytes(), **options)
        keep(name, ImageOps.exif_transpose(stored).convert("RGB"))
# Orientation is a tag of its own in TIFF.
stored = save("orientation-6.tif", image, tiffinfo={274: 6})
keep("orientation-6.tif", ImageOps.exif_transpose(stored).convert("RGB"))

(HERE / "images.json").write_text(json.dumps(expected, separators=(",", ":")))


# COCO masks: polygons as in annotations, and odd ones: outside, crossing, thin, repeated corners, exact halves.
def mask_case(width, height, polygons):
    parts = coco.frPyObjects([list(map(float, polygon)) for polygon in polygons], height, width)
    merged = coco.merge(parts)
    bitmap = coco.decode(merged)
    flat = bitmap.flatten(order="F")
    changes = np.flatnonzero(np.diff(np.concatenate([[0], flat])))
    counts = np.diff(np.concatenate([[0], changes, [flat.size]])).tolist()
    return {
        "width": width,
        "height": height,
        "polygons": polygons,
        "parts": [part["counts"].decode() for part in parts],
        "compressed": merged["counts"].decode(),
        "counts": counts,
        "area": int(coco.area(merged)),
    }


random = np.random.default_rng(20260113)
cases = [
    mask_case(9, 7, [[1, 1, 6, 1, 6, 5, 1, 5]]),
    mask_case(9, 7, [[0, 0, 9, 0, 9, 7, 0, 7]]),
    mask_case(9, 7, [[-3, -2.5, 20, -4, 15.5, 30, -6, 12]]),
    mask_case(9, 7, [[20, 20, 30, 20, 30, 30]]),
    mask_case(9, 7, [[0.5, 0.5, 8.5, 6.5, 0.5, 6.5, 8.5, 0.5]]),
    mask_case(9, 7, [[2, 2, 2, 2, 2, 2]]),
    mask_case(9, 7, [[4, 0, 4.1, 7, 4.2, 0]]),
    mask_case(9, 7, [[1, 1, 4, 1, 4, 4, 1, 4], [3, 3, 8, 3, 8, 6, 3, 6], [7, 0, 9, 0, 9, 1]]),
    mask_case(1, 1, [[0, 0, 1, 0, 1, 1, 0, 1]]),
]
for _ in range(60):
    width, height = (int(side) for side in random.integers(3, 90, 2))
    polygons = []
    for _ in range(random.integers(1, 4)):
        corners = int(random.integers(3, 12))
        points = random.uniform(-0.15, 1.15, (corners, 2)) * [width, height]
        digits = int(random.integers(0, 4))
        polygons.append([round(float(value), digits) for value in points.reshape(-1)])
    cases.append(mask_case(width, height, polygons))
(HERE / "coco_masks.json").write_text(json.dumps(cases, separators=(",", ":")))

total = sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file())
print(f"{len(expected)} images, {len(cases)} masks, {total / 1000:.0f} kB in all")
