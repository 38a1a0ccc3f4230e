"""Planes that Pillow makes of images with the given crop, size and flip.

Usage: crops.py <seed> <folder with index.json and *.png>
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

folder = Path(sys.argv[2])
for case in json.loads((folder / "index.json").read_text()):
    x, y, width, height = case["crop"]
    image = Image.open(folder / case["file"]).resize(
        case["size"], Image.Resampling.BICUBIC, box=(x, y, x + width, y + height)
    )
    if case["flipped"]:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    (folder / case["pixels"]).write_bytes(np.asarray(image).transpose(2, 0, 1).tobytes())
