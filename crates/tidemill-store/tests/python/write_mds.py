"""Writes MDS folders with MosaicML's own writer, as scripts/precompute_latents.py of MosaicML diffusion does.

Usage: write_mds.py <seed> <folder>. Writes the same samples as plain/ (several shards, hashes), zstd/
(compressed) and parts/ (a folder for each of two writers, no hashes), and what becomes of them as
expected.json and *.f16.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from streaming import MDSWriter

rng, folder = np.random.default_rng(int(sys.argv[1])), Path(sys.argv[2])
FACTOR = 0.18215
SHAPES = {256: (4, 4, 4), 512: (4, 8, 8)}
TEXT = (7, 16)
COLUMNS = {
    "punsafe": "float64",
    # Only the name begins like that of a tensor.
    "text_similarity": "float64",
    "caption": "str",
    "url": "str",
    "key": "str",
    "status": "str",
    "width": "int32",
    "height": "int32",
    "jpg": "bytes",
    "hash": "int64",
    "caption_latents": "bytes",
    "latents_256": "bytes",
    "latents_512": "bytes",
}


def half(shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float16)


empty = half(TEXT)
samples, expected, stored = [], [], {"text": [empty], 256: [], 512: []}
for i in range(150):
    width, height = (int(side) for side in rng.integers(200, 900, 2))
    dropped = bool(rng.random() < 0.1)
    text = half(TEXT) if not dropped else (empty * (1 + half(TEXT, 1e-3))).astype(np.float16)
    latents = {r: (torch.from_numpy(half(shape, 5)) * FACTOR).numpy() for r, shape in SHAPES.items()}
    if i in (20, 90):
        latents[256][0, 0, 0] = [np.nan, np.inf][i == 90]
    if i == 33:
        text = None
    usable = [r for r in SHAPES if min(width, height) >= r]
    kept = bool(usable) and i not in (20, 90, 33)
    sample = {
        "punsafe": float(rng.random()),
        "text_similarity": float(rng.random()),
        "caption": "" if i % 11 == 0 else f"ein Bild „{i}“ 絵",
        "url": f"https://example.org/{i}.jpg",
        "key": f"{i:09}",
        "status": "success",
        "width": width,
        "height": height,
        "jpg": rng.bytes(int(rng.integers(0, 300))),
        "hash": int(rng.integers(-(2**63), 2**63)),
        "caption_latents": b"" if text is None else text.tobytes(),
        **{f"latents_{r}": latents[r].tobytes() if r in usable else b"" for r in SHAPES},
    }
    samples.append(sample)
    plain = {name: value for name, value in sample.items() if not isinstance(value, bytes)}
    status = "kept" if kept else "quarantined" if usable else "rejected"
    expected.append({**plain, "fate": status, "dropped": dropped, "usable": usable})
    if kept:
        stored["text"].append(text)
        for r in usable:
            stored[r].append((latents[r].astype(np.float32) / np.float32(FACTOR)).astype(np.float16))


def write(name, part, **options):
    with MDSWriter(out=str(folder / name), columns=COLUMNS, **options) as writer:
        for sample in part:
            writer.write(sample)


hashes = ["md5", "sha1", "sha256", "sha512", "xxh128", "xxh32", "xxh3_64", "xxh64"]
write("plain", samples, hashes=hashes, size_limit=40_000)
write("zstd", samples, compression="zstd:7", hashes=["sha1", "sha3_256"], size_limit=30_000)
for i in range(2):
    write(f"parts/{i}", samples[75 * i : 75 * (i + 1)], size_limit=2**20)
(folder / "expected.json").write_text(json.dumps(expected))
for name, values in stored.items():
    (folder / f"{name}.f16").write_bytes(b"".join(value.tobytes() for value in values))
