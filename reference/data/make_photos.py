"""Makes the small HEIC, AVIF and GIF files that the tests of vitpcm-data read.

Run with Pillow 12 or later, pillow-heif and NumPy, and `avifenc` of libavif on the path: python make_photos.py
Expected pixels are what Pillow (GIF, AVIF by libavif) and pillow-heif (HEIC by libheif) read; tests need no Python.
`grid.heic` has the tiles of a phone's photograph. libheif's tools write none, so it was made by `cargo run` of heifer's example
`to_heic` from a PNG of `picture(600, 520)` and is kept; only its expected pixels are made here.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pillow_heif
from PIL import Image, ImageOps

pillow_heif.register_heif_opener()
HERE = Path(__file__).parent
PHOTOS = HERE / "photos"
PHOTOS.mkdir(exist_ok=True)
expected = {}


def picture(width=24, height=16):
    """A smooth picture whose four corners differ, so that no turned or mirrored copy equals it."""
    y, x = np.mgrid[0:height, 0:width] / np.array([height - 1, width - 1]).reshape(2, 1, 1)
    return np.stack([40 + 200 * x, 30 + 180 * y, 220 - 100 * x - 100 * y], axis=-1).round().astype(np.uint8)


def keep(name, rgb, step=1):
    """Stores the pixels that reading the file must give: all, or every `step`-th of every `step`-th row."""
    rgb = np.asarray(rgb)
    assert rgb.dtype == np.uint8 and rgb.ndim == 3 and rgb.shape[2] == 3
    some = np.ascontiguousarray(rgb[::step, ::step])
    expected[name] = {"width": rgb.shape[1], "height": rgb.shape[0], "step": step, "rgb": some.tobytes().hex()}


def over_white(rgba):
    rgba = np.asarray(rgba).astype(np.float64)
    alpha = rgba[..., 3:] / 255
    return (rgba[..., :3] * alpha + 255 * (1 - alpha) + 0.5).astype(np.uint8)


def save(name, image, **options):
    image.save(PHOTOS / name, **options)
    return Image.open(PHOTOS / name)


image = Image.fromarray(picture())
ramp = np.linspace(0, 255, 24).round().astype(np.uint8)[None, :].repeat(16, 0)
rgba = Image.fromarray(np.dstack([picture(), ramp]))

# GIF: plain, transparent, of several pictures, with a first picture that leaves part of the canvas free.
palette = image.quantize(16)
keep("plain.gif", save("plain.gif", palette).convert("RGB"))
keep("transparent.gif", over_white(save("transparent.gif", palette, transparency=3).convert("RGBA")))
others = [ImageOps.mirror(image).quantize(16), ImageOps.flip(image).quantize(16)]
keep("animated.gif", save("animated.gif", palette, save_all=True, append_images=others).convert("RGB"))

# HEIC: full and halved colour, odd sides, ten bits, transparency, turned by each EXIF orientation (as `irot` and `imir`).
keep("plain.heic", save("plain.heic", image, quality=90, chroma=444).convert("RGB"))
even, odd = Image.fromarray(picture(96, 64)), Image.fromarray(picture(95, 63))
keep("halved.heic", save("halved.heic", even, quality=90, chroma=420).convert("RGB"), step=8)
keep("odd.heic", save("odd.heic", odd, quality=90, chroma=420).convert("RGB"), step=8)
keep("alpha.heic", over_white(save("alpha.heic", rgba, quality=90, chroma=444).convert("RGBA")))
deep = pillow_heif.from_bytes("RGB;16", (24, 16), (picture().astype(np.uint16) * 257).tobytes())
deep.save(PHOTOS / "ten-bits.heic", quality=90, chroma=444)
keep("ten-bits.heic", Image.open(PHOTOS / "ten-bits.heic").convert("RGB"))
for orientation in range(2, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for extension in ["heic", "avif"]:
        name = f"orientation-{orientation}.{extension}"
        options = {"chroma": 444} if extension == "heic" else {"subsampling": "4:4:4"}
        stored = save(name, image, quality=90, exif=exif.tobytes(), **options)
        keep(name, ImageOps.exif_transpose(stored).convert("RGB"))
keep("grid.heic", Image.open(PHOTOS / "grid.heic").convert("RGB"), step=40)

# AVIF: full and halved colour, odd sides, grey, transparency; by avifenc, ten bits and tiles.
keep("plain.avif", save("plain.avif", image, quality=90, subsampling="4:4:4").convert("RGB"))
keep("halved.avif", save("halved.avif", even, quality=90, subsampling="4:2:0").convert("RGB"), step=8)
keep("odd.avif", save("odd.avif", odd, quality=90, subsampling="4:2:0").convert("RGB"), step=8)
keep("grey.avif", save("grey.avif", image.convert("L"), quality=90, subsampling="4:0:0").convert("RGB"))
keep("alpha.avif", over_white(save("alpha.avif", rgba, quality=90, subsampling="4:4:4").convert("RGBA")))
with tempfile.TemporaryDirectory() as folder:
    for name, size, options in [
        ("ten-bits.avif", (24, 16), ["--depth", "10", "--yuv", "444"]),
        ("identity.avif", (24, 16), ["--cicp", "1/13/0", "--yuv", "444"]),
        ("grid.avif", (128, 128), ["--grid", "2x2", "--yuv", "420"]),
    ]:
        png = Path(folder) / "picture.png"
        Image.fromarray(picture(*size)).save(png)
        quality = ["--min", "5", "--max", "10", "--jobs", "1"]
        subprocess.run(["avifenc", *options, *quality, png, PHOTOS / name], check=True, stdout=subprocess.DEVNULL)
        keep(name, Image.open(PHOTOS / name).convert("RGB"), step=8 if name == "grid.avif" else 1)

(HERE / "photos.json").write_text(json.dumps(expected, separators=(",", ":")))
total = sum(path.stat().st_size for path in PHOTOS.iterdir())
print(f"{len(expected)} photographs, {total / 1000:.0f} kB in all")
