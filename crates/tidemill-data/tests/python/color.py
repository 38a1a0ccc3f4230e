"""Images with colour profiles and transparency, with the pixels of Pillow's ImageCms and `paste`."""

import io
import json
import random
import struct
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms

seed, root = int(sys.argv[1]), Path(sys.argv[2])
random = random.Random(seed)
noise = np.random.default_rng(seed)
BACKGROUND = (10, 200, 90)
SRGB = ImageCms.createProfile("sRGB")


def fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def xyz(*values: float) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(map(fixed, values))


def gamma(value: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(value * 256)) + bytes(2)


def lut(inks: int) -> bytes:
    """Lab of two levels of each ink, between which the engine interpolates."""
    ramp = bytes(range(256))
    grid = b"".join(
        bytes(
            [255 - 60 * bin(n).count("1"), 128 + random.randrange(-40, 40), 128 + random.randrange(-40, 40)]
        )
        for n in range(2**inks)
    )
    matrix = b"".join(fixed(value) for value in (1, 0, 0, 0, 1, 0, 0, 0, 1))
    return b"mft1\0\0\0\0" + bytes([inks, 3, 2, 0]) + matrix + ramp * inks + grid + ramp * 3


def profile(space: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    """An ICC profile of version 2."""
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", 2) + b"p\0" + bytes(78),
        b"wtpt": xyz(0.9642, 1, 0.8249),
        **tags,
    }
    at, table, data = 128 + 4 + 12 * len(tags), b"", b""
    for name, tag in tags.items():
        table += name + struct.pack(">II", at + len(data), len(tag))
        data += tag + bytes(-len(tag) % 4)
    kind = b"prtr" if space == b"CMYK" else b"mntr"
    head = struct.pack(
        ">I4sI4s4s4s12s4s", at + len(data), b"test", 0x02400000, kind, space, connection, bytes(12), b"acsp"
    )
    return (
        head.ljust(68, b"\0")
        + fixed(0.9642)
        + fixed(1)
        + fixed(0.8249)
        + bytes(48)
        + struct.pack(">I", len(tags))
        + table
        + data
    )


# Adobe RGB's primaries, as seen under D50.
RGB = profile(
    b"RGB ",
    b"XYZ ",
    {
        b"rXYZ": xyz(0.60974, 0.31111, 0.01947),
        b"gXYZ": xyz(0.20528, 0.62567, 0.06087),
        b"bXYZ": xyz(0.14919, 0.06322, 0.74457),
        **{name: gamma(2.2) for name in (b"rTRC", b"gTRC", b"bTRC")},
    },
)
GREY = profile(b"GRAY", b"XYZ ", {b"kTRC": gamma(1.4)})
CMYK = profile(b"CMYK", b"Lab ", {b"A2B0": lut(4)})


def picture(mode: str) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    small = noise.integers(0, 256, (5, 7, channels), dtype=np.uint8)
    image = (
        Image.fromarray(small.squeeze(), mode)
        if mode != "LA"
        else Image.merge("LA", [Image.fromarray(small[..., n]) for n in (0, 1)])
    )
    return image.resize((56, 40), Image.BICUBIC)


cases = []


def add(name: str, image: Image.Image, kind: str, icc: bytes, **options) -> None:
    out = io.BytesIO()
    image.save(out, kind, icc_profile=icc, **options)
    stored = Image.open(io.BytesIO(out.getvalue()))
    stored.load()
    alpha = stored.getchannel("A") if "A" in stored.getbands() else None
    color = stored.convert({"LA": "L", "RGBA": "RGB"}.get(stored.mode, stored.mode))
    try:
        color = ImageCms.profileToProfile(
            color, ImageCms.ImageCmsProfile(io.BytesIO(icc)), SRGB, outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError):
        color = color.convert("RGB")
    if alpha is not None:
        canvas = Image.new("RGB", color.size, BACKGROUND)
        canvas.paste(color, mask=alpha)
        color = canvas
    number = len(cases)
    (root / f"{number}.bin").write_bytes(out.getvalue())
    (root / f"{number}.rgb").write_bytes(color.tobytes())
    cases.append(name)


lossless = [("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})]
avif = ("AVIF", {"quality": 90, "speed": 10})
for kind, options in [("JPEG", {"quality": 90}), avif, *lossless]:
    add(f"{kind}, RGB", picture("RGB"), kind, RGB, **options)
    add(f"{kind}, another kind of profile", picture("RGB"), kind, CMYK, **options)
    add(f"{kind}, damaged profile", picture("RGB"), kind, RGB[:200], **options)
    add(f"{kind}, sRGB", picture("RGB"), kind, ImageCms.ImageCmsProfile(SRGB).tobytes(), **options)
for kind in ["JPEG", "PNG", "TIFF"]:
    add(f"{kind}, grey", picture("L"), kind, GREY)
for kind, options in [avif, *lossless]:
    add(f"{kind}, RGBA", picture("RGBA"), kind, RGB, **options)
add("PNG, grey with alpha", picture("LA"), "PNG", GREY)
add("JPEG, CMYK", picture("CMYK"), "JPEG", CMYK, quality=90)
add("JPEG, profile in many segments", picture("CMYK"), "JPEG", CMYK + bytes(70_000), quality=90)
(root / "cases.json").write_text(json.dumps(cases))
