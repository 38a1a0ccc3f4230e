"""Random images, some rotated or transparent, with their hashes by imagehash."""

import io
import json
import sys
from pathlib import Path

import imagehash
import numpy as np
from PIL import Image, ImageOps
from pixels import draw

IMAGES = 80


def upright(data: io.BytesIO) -> Image.Image:
    """As docs/filters.md says that lists are made."""
    image = ImageOps.exif_transpose(Image.open(data)).convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def main(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    hashes = []
    for number in range(IMAGES):
        image = draw(rng)
        out = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = int(rng.integers(1, 9))
        if rng.integers(3):
            options = {"quality": int(rng.integers(20, 100)), "progressive": bool(rng.integers(2))}
            image.convert("RGB").save(out, "JPEG", exif=exif, **options)
        else:
            image.save(out, "PNG", exif=exif)
        (folder / f"{number}.bin").write_bytes(out.getvalue())
        hashes.append(str(imagehash.phash(upright(out))))
    (folder / "hashes.json").write_text(json.dumps(hashes))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
