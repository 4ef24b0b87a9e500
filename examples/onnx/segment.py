"""A mask by onnxruntime: python segment.py MODEL.onnx IMAGE MASK.png [CLASS ...]

MODEL.onnx is what `vitpcm model export` wrote. With `--tags given` the mask may show the classes named here, as `segment --tags`;
with `--tags predicted` those that the network recognises; otherwise all. Needs numpy, pillow and onnxruntime.
"""

import json
import sys

import numpy
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
image = numpy.asarray(Image.open(sys.argv[2]).convert("RGB"), numpy.float32)
inputs = {"image": image.transpose(2, 0, 1)[None]}
if about["tags"] == "given":
    inputs["tags"] = numpy.float32([[name in sys.argv[4:] for name in json.loads(about["classes"])[1:]]])
probabilities, tag_probabilities = session.run(["probabilities", "tag_probabilities"], inputs)
mask = Image.fromarray(probabilities[0].argmax(0).astype(numpy.uint8))
mask.putpalette(sum(json.loads(about["palette"]), []))
mask.save(sys.argv[3])
