"""Random images in several formats and sizes, with the hashes that imagehash gives them."""

import io
import json
import sys
from pathlib import Path

import imagehash
import numpy as np
from PIL import Image
from pixels import draw

IMAGES = 80


def main(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    hashes = []
    for number in range(IMAGES):
        image = draw(rng).convert("RGB")
        out = io.BytesIO()
        if rng.integers(3):
            image.save(out, "JPEG", quality=int(rng.integers(20, 100)), progressive=bool(rng.integers(2)))
        else:
            image.save(out, "PNG")
        (folder / f"{number}.bin").write_bytes(out.getvalue())
        hashes.append(str(imagehash.phash(Image.open(out).convert("RGB"))))
    (folder / "hashes.json").write_text(json.dumps(hashes))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
