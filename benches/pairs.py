"""Image-caption pairs drawn from a seed.

JPEGs are as large as photographs, and words as frequent as in text.
"""

import functools
import io
import json
import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

# Small row groups, so that every core has work until the end.
ROWS_PER_GROUP = 32
FILES = 8


@dataclass(frozen=True)
class PairSet:
    """Pairs as Parquet files in a folder, columns `image` (JPEG) and `caption`."""

    name: str
    folder: Path
    width: int
    height: int
    rows: int
    mean_bytes: float

    @property
    def uri(self) -> str:
        return str(self.folder / "*.parquet")

    def __str__(self) -> str:
        return f"{self.rows} JPEGs of {self.width}x{self.height}, {self.mean_bytes / 1e3:.0f} KB on average"


def draw_set(
    name: str, folder: Path, width: int, height: int, rows: int, seed: int, vocabulary: Path
) -> PairSet:
    """Draws the pairs on all cores; equal arguments give equal pairs."""
    folder.mkdir(parents=True)
    draw = functools.partial(draw_jpeg, width, height, seed)
    with multiprocessing.Pool() as pool:
        images = pool.map(draw, range(rows), chunksize=16)
    captions = draw_captions(rows, seed, vocabulary)
    for n, part in enumerate(np.array_split(np.arange(rows), FILES)):
        columns = {
            "image": pa.array([images[i] for i in part], pa.binary()),
            "caption": pa.array([captions[i] for i in part]),
        }
        # JPEGs do not compress.
        pq.write_table(
            pa.table(columns),
            folder / f"part-{n:03}.parquet",
            row_group_size=ROWS_PER_GROUP,
            compression={"image": "none", "caption": "snappy"},
            use_dictionary=False,
        )
    return PairSet(name, folder, width, height, rows, float(np.mean([len(image) for image in images])))


def draw_jpeg(width: int, height: int, seed: int, row: int) -> bytes:
    """A JPEG of shapes on a gradient, with texture of every scale and sensor noise."""
    rng = np.random.default_rng([seed, width, row])
    gradient = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    image = gradient.resize((width, height), Image.Resampling.BICUBIC)
    canvas = ImageDraw.Draw(image)
    for _ in range(rng.integers(8, 25)):
        draw_shape(canvas, rng, width, height)
    # Photographs have about as much energy in every octave; some regions have more of the fine
    # ones.
    busy = draw_noise_field(rng, width, height, 4) > 0
    texture = np.zeros((height, width), np.float32)
    for cells in (6, 12, 24, 48, 96):
        texture += 9 * draw_noise_field(rng, width, height, cells)
    texture += np.where(busy, 7, 2) * draw_noise_field(rng, width, height, 192)
    noise = rng.standard_normal((height, width), dtype=np.float32) * np.where(busy, 3.5, 1)
    pixels = np.asarray(image, np.float32) + (texture + noise)[..., None]
    file = io.BytesIO()
    noisy = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    noisy.save(file, "JPEG", quality=int(rng.integers(90, 96)))
    return file.getvalue()


def draw_shape(canvas: ImageDraw.ImageDraw, rng: np.random.Generator, width: int, height: int) -> None:
    colour = tuple(int(c) for c in rng.integers(0, 256, 3))
    x, y = rng.uniform(0, width), rng.uniform(0, height)
    w, h = rng.uniform(0.05, 0.4, 2) * width
    if rng.random() < 0.5:
        canvas.ellipse((x - w / 2, y - h / 2, x + w / 2, y + h / 2), fill=colour)
    else:
        corners = rng.uniform(-0.5, 0.5, (rng.integers(3, 6), 2)) * (w, h) + (x, y)
        canvas.polygon([tuple(corner) for corner in corners], fill=colour)


def draw_noise_field(rng: np.random.Generator, width: int, height: int, cells: int) -> np.ndarray:
    """Smooth noise with a grid of `cells` across the width, and unit variance at its points."""
    grid = rng.standard_normal((max(2, cells * height // width), cells), dtype=np.float32)
    return np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC))


def draw_captions(count: int, seed: int, vocabulary: Path) -> list[str]:
    """Captions of about a dozen words, with some unknown words and punctuation.

    Word frequencies follow Zipf's law. CLIP's vocabulary is in the order in which its pieces were
    merged, which is about that of their frequency.
    """
    pieces = json.loads(vocabulary.read_text(encoding="utf-8"))
    words = [piece.removesuffix("</w>") for piece in sorted(pieces, key=pieces.get) if piece.endswith("</w>")]
    words = [word for word in words if word.isascii() and word.isalpha() and len(word) > 1]
    rng = np.random.default_rng([seed, 1])

    def word() -> str:
        # Ranks with a uniform logarithm follow Zipf's law.
        drawn = words[int(len(words) ** rng.random()) - 1]
        kind = rng.random()
        if kind < 0.04:
            return drawn + words[rng.integers(len(words))]
        if kind < 0.07:
            return str(rng.integers(2030))
        return drawn.title() if kind < 0.15 else drawn + ("," if kind < 0.22 else "")

    lengths = rng.lognormal(2.4, 0.6, count).astype(int).clip(1, 60)
    return [" ".join(word() for _ in range(length)) + rng.choice(["", ".", "!"]) for length in lengths]
