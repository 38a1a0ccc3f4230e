"""Random images in all formats that are decoded, with Pillow's pixels, full size and resized."""

import io
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

EACH = 4
FILTERS = {
    "area": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
Encoded = tuple[str, Image.Image, dict]


def draw(rng: np.random.Generator) -> Image.Image:
    """Smooth colours with noise and a hard edge, so that every part of a decoder has work. RGBA."""
    width, height = (int(n) for n in rng.integers(8, 600, 2))
    coarse = rng.integers(0, 256, (rng.integers(2, 12), rng.integers(2, 12), 4), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse, "RGBA").resize((width, height), Image.Resampling.BICUBIC))
    noise = rng.integers(-20, 21, smooth.shape)
    pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 4)
    return Image.fromarray(pixels, "RGBA")


def jpeg(mode: str) -> Callable[[Image.Image, np.random.Generator], Encoded]:
    def encode(image: Image.Image, rng: np.random.Generator) -> Encoded:
        options = {"quality": int(rng.integers(30, 100)), "progressive": bool(rng.integers(2))}
        if mode == "RGB":
            options["subsampling"] = int(rng.integers(3))
        return "JPEG", image.convert("RGB").convert(mode), options

    return encode


def avif(mode: str) -> Callable[[Image.Image, np.random.Generator], Encoded]:
    def encode(image: Image.Image, rng: np.random.Generator) -> Encoded:
        options = {"quality": int(rng.integers(30, 100)), "speed": 10, "max_threads": 1}
        options["subsampling"] = str(rng.choice(["4:4:4", "4:2:2", "4:2:0", "4:0:0"]))
        options["range"] = str(rng.choice(["full", "limited"]))
        return "AVIF", image.convert(mode), options

    return encode


def grey16(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def plain(name: str, mode: str, **options) -> Callable[[Image.Image, np.random.Generator], Encoded]:
    def encode(image: Image.Image, rng: np.random.Generator) -> Encoded:
        return name, image.convert("RGB").convert(mode) if "A" not in mode else image.convert(mode), options

    return encode


KINDS: dict[str, Callable[[Image.Image, np.random.Generator], Encoded]] = {
    "jpeg": jpeg("RGB"),
    "jpeg again": jpeg("RGB"),
    "jpeg grey": jpeg("L"),
    "jpeg cmyk": jpeg("CMYK"),
    "png": plain("PNG", "RGB"),
    "png black and white": plain("PNG", "1"),
    "png grey": plain("PNG", "L"),
    "png grey 16": lambda image, _: ("PNG", grey16(image), {}),
    "png grey, one transparent": lambda image, _: ("PNG", image.convert("L"), {"transparency": 100}),
    "png grey with alpha": plain("PNG", "LA"),
    "png alpha": plain("PNG", "RGBA"),
    "png, one transparent": lambda image, _: (
        "PNG",
        image.convert("RGB"),
        {"transparency": image.convert("RGB").getpixel((0, 0))},
    ),
    "png palette": lambda image, rng: ("PNG", image.convert("RGB").quantize(int(rng.integers(2, 256))), {}),
    "png palette, transparent": lambda image, _: (
        "PNG",
        image.convert("RGB").quantize(40),
        {"transparency": bytes(range(0, 240, 6))},
    ),
    "webp lossless": plain("WEBP", "RGB", lossless=True),
    "webp lossless alpha": plain("WEBP", "RGBA", lossless=True, exact=True),
    "webp lossy": lambda image, rng: ("WEBP", image.convert("RGB"), {"quality": int(rng.integers(30, 100))}),
    "webp lossy alpha": lambda image, rng: ("WEBP", image, {"quality": int(rng.integers(30, 100))}),
    "webp animation": lambda image, _: (
        "WEBP",
        image.convert("RGB"),
        {"save_all": True, "append_images": [ImageOps.invert(image.convert("RGB"))], "lossless": True},
    ),
    "gif": plain("GIF", "RGB"),
    "gif alpha": plain("GIF", "RGBA"),
    "gif animation": lambda image, _: (
        "GIF",
        image.convert("RGB"),
        {"save_all": True, "append_images": [ImageOps.invert(image.convert("RGB"))]},
    ),
    "bmp": plain("BMP", "RGB"),
    "bmp grey": plain("BMP", "L"),
    "bmp black and white": plain("BMP", "1"),
    "bmp palette": lambda image, _: ("BMP", image.convert("RGB").quantize(40), {}),
    "bmp alpha": plain("BMP", "RGBA"),
    "tiff": lambda image, rng: (
        "TIFF",
        image.convert("RGB"),
        {"compression": [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"][rng.integers(4)]},
    ),
    "tiff grey": plain("TIFF", "L"),
    "tiff grey 16": lambda image, _: ("TIFF", grey16(image), {}),
    "tiff black and white": plain("TIFF", "1"),
    "tiff alpha": plain("TIFF", "RGBA"),
    "tiff cmyk": plain("TIFF", "CMYK"),
    "avif": avif("RGB"),
    "avif again": avif("RGB"),
    "avif grey": avif("L"),
    "avif alpha": avif("RGBA"),
}
CORPUS = Path(__file__).resolve().parents[4] / "fuzz" / "corpus" / "decode"


def metadata(name: str, rng: np.random.Generator) -> dict:
    """An orientation for the formats that have one, and sometimes a colour profile."""
    options = {}
    if name in {"JPEG", "PNG", "WEBP", "TIFF", "AVIF"}:
        if (orientation := int(rng.integers(0, 9))) > 0:
            options["exif"] = Image.Exif()
            options["exif"][0x0112] = orientation
        if rng.integers(2):
            options["icc_profile"] = rng.bytes(200)
    return options


def decode(data: bytes) -> Image.Image:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "I;16":
        # Pillow clips to 255 where it converts; we keep the upper byte.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def crop(rng: np.random.Generator, width: int, height: int) -> list[int]:
    """x, y, width, height: the middle square or any rectangle."""
    if rng.integers(2):
        side = min(width, height)
        return [(width - side) // 2, (height - side) // 2, side, side]
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return [int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h]


def encode(kind: str, rng: np.random.Generator) -> tuple[str, str, bytes, bool]:
    """A new image: kind, format, bytes, and whether it has a colour profile."""
    name, image, options = KINDS[kind](draw(rng), rng)
    options |= metadata(name, rng)
    out = io.BytesIO()
    image.save(out, name, **options)
    return kind, name, out.getvalue(), "icc_profile" in options


def read(path: Path) -> tuple[str, str, bytes, bool]:
    """A stored image: name, format, bytes, and whether it has a colour profile."""
    data = path.read_bytes()
    image = Image.open(io.BytesIO(data))
    return path.name, image.format, data, "icc_profile" in image.info


def main(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    index = []
    drawn = (encode(kind, rng) for kind in list(KINDS) * EACH)
    # Of AVIF also what Pillow does not write: more bits, other matrices.
    stored = (read(path) for path in sorted(CORPUS.glob("*.avif")))
    for number, (kind, name, data, icc) in enumerate(itertools.chain(drawn, stored)):
        image = decode(data)
        width, height = image.size
        x, y, w, h = crop(rng, width, height)
        size = [int(n) for n in rng.integers(8, 320, 2)]
        resample = str(rng.choice(list(FILTERS)))
        resized = image.resize(size, FILTERS[resample], box=(x, y, x + w, y + h))
        (folder / f"{number}.bin").write_bytes(data)
        (folder / f"{number}.rgb").write_bytes(image.tobytes())
        (folder / f"{number}.resized").write_bytes(resized.tobytes())
        case = {"kind": kind, "format": name.lower(), "icc": icc}
        case |= {"width": width, "height": height, "crop": [x, y, w, h], "size": size, "resample": resample}
        index.append(case)
    (folder / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
