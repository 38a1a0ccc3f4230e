"""Unusual images with the pixels that Pillow returns. Where Tidemill differs (docs/decoding.md), Pillow's
pixels are checked here, and the documented pixels are written instead."""

import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops
from pixels import decode, draw

XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description {}</rdf:Description></x:xmpmeta>'
Case = tuple[str, bytes, Image.Image | str, bool]


def encode(image: Image.Image, name: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def exif(orientation: int, kind: str = "H", tag: int = 0x0112) -> bytes:
    """EXIF in big-endian order whose only entry is an orientation: SHORT, or LONG if `kind` is "I"."""
    value = struct.pack(f">{kind}", orientation).ljust(4, b"\0")
    entry = struct.pack(">HHI", tag, {"H": 3, "I": 4}[kind], 1) + value
    return b"MM\0\x2a" + struct.pack(">IH", 8, 1) + entry + bytes(4)


def xmp(orientation: int, element: bool = False) -> bytes:
    text = "><tiff:Orientation>{}</tiff:Orientation>" if element else ' tiff:Orientation="{}">'
    return XMP.format(text.format(orientation)).encode()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(image: Image.Image, first: bytes = b"", last: bytes = b"") -> bytes:
    """With further chunks before and after the pixels."""
    data = encode(image, "PNG")
    pixels = data.index(b"IDAT") - 4
    return data[:pixels] + first + data[pixels:-12] + last + data[-12:]


def itxt(text: bytes, packed: bool = False) -> bytes:
    data = zlib.compress(text) if packed else text
    return chunk(b"iTXt", b"XML:com.adobe.xmp\0" + bytes([packed, 0, 0, 0]) + data)


def on_canvas(gif: bytes, canvas: tuple[int, int], place: tuple[int, int]) -> bytes:
    """Another canvas, and another place on it, for the only frame."""
    at = 13 + (3 << (gif[10] & 7) + 1)
    while gif[at] == 0x21:  # extensions
        at += 2
        while gif[at]:
            at += gif[at] + 1
        at += 1
    assert gif[at] == 0x2C
    return (
        gif[:6] + struct.pack("<HH", *canvas) + gif[10 : at + 1] + struct.pack("<HH", *place) + gif[at + 5 :]
    )


def refused(data: bytes) -> bool:
    """Whether Pillow does not decode it."""
    try:
        decode(data)
    except (OSError, ValueError):
        return True
    return False


def gifs(image: Image.Image) -> list[Case]:
    rgb = image.convert("RGB").quantize(16)
    (width, height), place = rgb.size, (5, 3)
    canvas = (width + 9, height + 7)
    cases: list[Case] = []
    for interlace in [0, 1]:
        data = encode(rgb, "GIF", interlace=interlace)
        cases.append((f"gif, interlace={interlace}", data, decode(data), False))

    transparent = on_canvas(encode(rgb, "GIF", transparency=3), canvas, place)
    cases.append(("gif, transparent, on a larger canvas", transparent, decode(transparent), False))

    opaque = on_canvas(encode(rgb, "GIF"), canvas, place)
    theirs, ours = decode(opaque), Image.new("RGB", canvas, "white")
    first = Image.open(io.BytesIO(opaque)).getpalette()[:3]
    assert theirs.getpixel((0, 0)) == tuple(first)
    ours.paste(theirs.crop((*place, place[0] + width, place[1] + height)), place)
    cases.append(("gif, opaque, on a larger canvas", opaque, ours, False))

    beyond = on_canvas(encode(rgb, "GIF"), rgb.size, place)
    theirs, ours = decode(beyond), Image.new("RGB", rgb.size, "white")
    assert theirs.size == (width + place[0], height + place[1])
    ours.paste(theirs.crop((*place, width, height)), place)
    cases.append(("gif, beyond its canvas", beyond, ours, False))
    return cases


def orientations(image: Image.Image, rng: np.random.Generator) -> list[Case]:
    """EXIF and XMP, alone and together. EXIF decides if it has the entry, whatever it says."""
    image = image.convert("RGB")
    cases: list[Case] = []
    for name in ["JPEG", "PNG", "WEBP", "TIFF"]:
        a, b = (int(n) for n in rng.choice(np.arange(2, 9), 2, replace=False))
        both = {
            "xmp attribute": (None, xmp(a)),
            "xmp element": (None, xmp(a, element=True)),
            "xmp out of range": (None, xmp(9)),
            "exif": (exif(a), None),
            "exif and xmp": (exif(a), xmp(b)),
            "exif 1 and xmp": (exif(1), xmp(b)),
            "exif 0 and xmp": (exif(0), xmp(b)),
            "exif out of range and xmp": (exif(9), xmp(b)),
            "exif of something else and xmp": (exif(7, tag=0x0100), xmp(b)),
            "exif as a long number": (exif(a, "I"), None),
        }
        for what, (in_exif, in_xmp) in both.items():
            data = with_metadata(image, name, in_exif, in_xmp)
            if data is not None:
                cases.append((f"{name.lower()}, {what}", data, decode(data), False))
    return cases


def with_metadata(image: Image.Image, name: str, in_exif: bytes | None, in_xmp: bytes | None) -> bytes | None:
    if name == "PNG":
        first = chunk(b"eXIf", in_exif) if in_exif else b""
        return png(image, first + (itxt(in_xmp) if in_xmp else b""))
    if name == "TIFF":
        # The file's own directory is its EXIF.
        if in_exif and in_exif[10:12] == b"\1\0":
            return None
        number = int.from_bytes(in_exif[18 : 22 if in_exif[13] == 4 else 20], "big") if in_exif else None
        tags = {274: number} if in_exif else {}
        return encode(image, name, tiffinfo=tags | ({700: in_xmp} if in_xmp else {}))
    options = {"exif": b"Exif\0\0" + in_exif} if in_exif else {}
    return encode(image, name, **options | ({"xmp": in_xmp} if in_xmp else {}))


def pngs(image: Image.Image, orientation: int) -> list[Case]:
    image = image.convert("RGB")
    turned = chunk(b"eXIf", exif(orientation))
    profile = b"p\0\0" + zlib.compress(bytes(2000))
    same = {
        "exif after the pixels": (png(image, last=turned), False),
        "packed xmp": (png(image, itxt(xmp(orientation), packed=True)), False),
        "profile": (png(image, chunk(b"iCCP", profile)), True),
        "damaged profile": (png(image, chunk(b"iCCP", b"p\0\0" + b"nonsense")), False),
    }
    cases = [(f"png, {what}", data, decode(data), icc) for what, (data, icc) in same.items()]
    text = f"\nexif\n{len(exif(orientation)):8}\n{exif(orientation).hex()}\n".encode()
    different = {
        "exif as text": png(image, chunk(b"tEXt", b"Raw profile type exif\0" + text)),
        "xmp after the pixels": png(image, last=itxt(xmp(orientation))),
    }
    for what, data in different.items():
        assert ImageChops.difference(decode(data).resize(image.size), image).getbbox()
        cases.append((f"png, {what}", data, image, False))
    large = png(image, chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(2 << 20))))
    assert refused(large)
    return [*cases, ("png, large profile", large, image, True)]


def tiffs(image: Image.Image) -> list[Case]:
    rgb = image.convert("RGB")
    cases: list[Case] = []
    for size, big in [(rgb.size, False), ((8, 8), False), ((8, 8), True)]:
        data = encode(rgb.resize(size), "TIFF", icc_profile=bytes(3000), big_tiff=big, tiffinfo={274: 6})
        cases.append((f"tiff of {size}, big={big}, profile", data, decode(data), True))
    modes = {"palette": rgb.quantize(9), "float": rgb.convert("F"), "32 bits": rgb.convert("I")}
    modes |= {mode: rgb.convert(mode) for mode in ["YCbCr", "LAB", "LA"]}
    unread = {mode: encode(pixels, "TIFF") for mode, pixels in modes.items()}
    unread["group 3"] = encode(rgb.convert("1"), "TIFF", compression="group3")
    return cases + [(f"tiff, {what}", data, "format: ", False) for what, data in unread.items()]


def damaged_jpegs(image: Image.Image) -> list[Case]:
    """Pillow passes over damage, but not over missing data, of which we let the end marker pass.

    So does Pillow, with 1 or 2 of 100 images: if all rows happen to be out before it asks for more.
    """
    data = encode(image.convert("RGB"), "JPEG", quality=90)
    hole = len(data) * 2 // 3
    damaged, cut, unended = data[:hole] + b"\xff\xd0" + data[hole + 2 :], data[:hole], data[:-2]
    assert not refused(damaged)
    assert refused(cut)
    return [
        ("jpeg, damaged", damaged, "damaged: ", False),
        ("jpeg, cut off", cut, "damaged: ", False),
        ("jpeg, without its end marker", unended, decode(data), False),
    ]


def main(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    image = draw(rng).resize((int(rng.integers(40, 90)), int(rng.integers(40, 90))))
    cases = gifs(image) + orientations(image, rng) + pngs(image, int(rng.integers(2, 9)))
    cases += tiffs(image) + damaged_jpegs(image)
    index = []
    for number, (name, data, outcome, icc) in enumerate(cases):
        (folder / f"{number}.bin").write_bytes(data)
        case = {"name": name, "icc": icc}
        if isinstance(outcome, str):
            case |= {"error": outcome}
        else:
            (folder / f"{number}.rgb").write_bytes(outcome.tobytes())
            case |= {"width": outcome.width, "height": outcome.height}
        index.append(case)
    (folder / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
