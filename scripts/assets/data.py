"""Reads the pixels, captions and attributes of scenes that `tidemill synth` wrote."""

import io
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import torch
from PIL import Image

RESOLUTION = 64

# The scenes' canonical words, in the order of their class numbers.
ATTRIBUTES = {
    "size": ["small", "large"],
    "colour": ["red", "orange", "yellow", "green", "cyan", "blue", "purple", "black"],
    "shape": ["circle", "square", "triangle", "star", "cross"],
    "place": ["upper left", "upper right", "lower left", "lower right", "center"],
}


def rows(folder: Path, columns: list[str]) -> list[dict]:
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    if not files:
        raise SystemExit(f"{folder}: no Parquet files; draw scenes into it first (see --help)")
    return ds.dataset(files).to_table(columns=columns).to_pylist()


def images(folder: Path) -> torch.Tensor:
    """Every readable image, center-cropped and resized: u8 [N, 3, 64, 64]."""
    found = (decode(row["jpg"]) for row in rows(folder, ["jpg"]))
    return torch.from_numpy(np.stack([image for image in found if image is not None]))


def images_and_classes(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Every readable image, as `images` has it, and class numbers as i64 [N, 4], as `captions` has them."""
    found = [(decode(row["jpg"]), row) for row in rows(folder, ["jpg", *ATTRIBUTES])]
    kept = [(image, row) for image, row in found if image is not None]
    classes = [[words.index(row[name]) for name, words in ATTRIBUTES.items()] for _, row in kept]
    return torch.from_numpy(np.stack([image for image, _ in kept])), torch.tensor(classes)


def decode(jpg: bytes | None) -> np.ndarray | None:
    """One image as u8 [3, 64, 64]; None for a row that was broken on purpose."""
    try:
        image = Image.open(io.BytesIO(jpg or b"")).convert("RGB")
    except OSError:
        return None
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    image = image.resize((RESOLUTION, RESOLUTION), Image.Resampling.BICUBIC, box=box)
    return np.asarray(image).transpose(2, 0, 1).copy()


def captions(folder: Path) -> tuple[list[str], torch.Tensor]:
    """Captions, and their class numbers as i64 [N, 4] in the order of ATTRIBUTES."""
    kept = [row for row in rows(folder, ["caption", *ATTRIBUTES]) if row["caption"]]
    classes = [[words.index(row[name]) for name, words in ATTRIBUTES.items()] for row in kept]
    return [row["caption"] for row in kept], torch.tensor(classes)
