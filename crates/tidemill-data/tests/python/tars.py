"""Tars written by Python's tarfile in all of its formats, and their samples by webdataset."""

import gzip
import io
import json
import random
import re
import sys
import tarfile
from pathlib import Path

seed, folder = int(sys.argv[1]), Path(sys.argv[2])
random = random.Random(seed)


def split(path):
    """webdataset's base_plus_ext."""
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", path)
    return (match[1], match[2].lower()) if match else (None, None)


def group(members):
    """webdataset's group_by_keys: neighbours of the same key; names without an extension are skipped."""
    samples = []
    for path, data in members:
        key, extension = split(path)
        if key is None:
            continue
        if not samples or samples[-1]["key"] != key:
            samples.append({"key": key})
        samples[-1][extension] = data
    return samples


def text(length):
    return "".join(random.choice('abc äöü日本 😀"\\') for _ in range(length))


def members(count, long_names):
    for i in range(count):
        folders = "/".join(
            "d" * random.randint(1, 60) for _ in range(random.randint(0, 6 if long_names else 2))
        )
        name = f"{folders}/{i:05}" if folders else f"{i:05}"
        if long_names and random.random() < 0.3:
            name += "é" * random.randint(1, 150)
        jpg = random.choice(["jpg", "JPG", "png", "webp"])
        parts = [
            (f"{name}.{jpg}", random.randbytes(random.choice([1, 511, 512, 513, random.randint(1, 5000)])))
        ]
        if random.random() < 0.9:
            parts.append((f"{name}.txt", text(random.randint(0, 300)).encode()))
        if random.random() < 0.9:
            fields = {
                "key": f"{i:05}",
                "width": random.randint(1, 999),
                "note": text(9),
                "tags": [1, {"a": None}],
            }
            parts.append((f"{name}.json", json.dumps(fields, ensure_ascii=random.random() < 0.5).encode()))
        if random.random() < 0.2:
            parts.append((f"{name}.npy", random.randbytes(700)))
        if random.random() < 0.1:
            parts.append(("README", b"belongs to no sample"))
        random.shuffle(parts)
        yield from parts


expected = {}
for name, format in [
    ("ustar", tarfile.USTAR_FORMAT),
    ("gnu", tarfile.GNU_FORMAT),
    ("pax", tarfile.PAX_FORMAT),
]:
    plain = list(members(40, format != tarfile.USTAR_FORMAT))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for path, data in plain:
            if random.random() < 0.1:
                directory = tarfile.TarInfo("some/folder")
                directory.type = tarfile.DIRTYPE
                tar.addfile(directory)
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (folder / f"{name}.tar").write_bytes(buffer.getvalue())
    (folder / f"{name}.tar.gz").write_bytes(gzip.compress(buffer.getvalue()))
    expected[name] = []
    for sample in group(plain):
        image = next(
            (data for extension, data in sample.items() if extension in ("jpg", "png", "webp")), None
        )
        expected[name].append(
            {
                "key": sample["key"],
                "image": image and list(image),
                "txt": sample["txt"].decode() if "txt" in sample else None,
                "fields": json.loads(sample["json"]) if "json" in sample else {},
            }
        )
(folder / "expected.json").write_text(json.dumps(expected))
