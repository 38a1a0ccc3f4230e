"""Random images in every format we decode, with the pixels that Pillow gives for them, whole and resized."""

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

IMAGES = 60
SIDES = [8, 64, 96, 128, 256, 320]


def draw(rng: np.random.Generator) -> np.ndarray:
    """Smooth colours with noise and a hard edge, so that every part of a decoder has work."""
    width, height = (int(n) for n in rng.integers(8, 700, 2))
    coarse = rng.integers(0, 256, (rng.integers(2, 12), rng.integers(2, 12), 4), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse, "RGBA").resize((width, height), Image.Resampling.BICUBIC))
    noise = rng.integers(-20, 21, smooth.shape)
    pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 4)
    return pixels


def encode(rng: np.random.Generator, pixels: np.ndarray) -> tuple[str, bytes]:
    """A kind drawn at random, and the bytes."""
    kinds = [
        "jpeg",
        "jpeg",
        "jpeg-grey",
        "jpeg-cmyk",
        "png",
        "png-grey",
        "png-palette",
        "png-alpha",
        "webp-lossless",
    ]
    kind = str(rng.choice(kinds))
    rgb = Image.fromarray(pixels[..., :3], "RGB")
    options = {}
    if kind.startswith("jpeg"):
        mode = {"jpeg": "RGB", "jpeg-grey": "L", "jpeg-cmyk": "CMYK"}[kind]
        options = {"quality": int(rng.integers(30, 100)), "progressive": bool(rng.integers(2))}
        if mode == "RGB":
            options["subsampling"] = int(rng.integers(3))
        image, name = rgb.convert(mode), "JPEG"
    elif kind == "webp-lossless":
        image, name, options = rgb, "WEBP", {"lossless": True}
    else:
        image = {
            "png": rgb,
            "png-grey": rgb.convert("L"),
            "png-palette": rgb.quantize(64),
            "png-alpha": Image.fromarray(pixels, "RGBA"),
        }[kind]
        name = "PNG"
    out = io.BytesIO()
    image.save(out, name, **options)
    return kind, out.getvalue()


def decode(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    if image.mode == "RGBA":
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def main(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    index = []
    for number in range(IMAGES):
        kind, data = encode(rng, draw(rng))
        image = decode(data)
        width, height = image.size
        # A square in the middle, or any rectangle brought to any size.
        short = min(width, height)
        x, y, w, h = (width - short) // 2, (height - short) // 2, short, short
        size = [int(rng.choice(SIDES))] * 2
        if rng.integers(2):
            w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
            x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            size = [int(side) for side in rng.choice(SIDES, 2)]
        resized = image.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
        (folder / f"{number}.bin").write_bytes(data)
        (folder / f"{number}.rgb").write_bytes(image.tobytes())
        (folder / f"{number}.resized").write_bytes(resized.tobytes())
        index.append({"kind": kind, "width": width, "height": height, "crop": [x, y, w, h], "size": size})
    (folder / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
