"""Small pairs drawn from a seed, of which one in a hundred has a fault. What becomes of each row is known.

A few thousand different images are drawn. A comment in the JPEG and a number in the caption make each row
different from all others.
"""

import functools
import io
import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

from benches.pairs import draw_captions, draw_noise_field, draw_shape

SIDE = 64
FAULTY = 0.01
UNITS_PER_FILE = 16
KEPT = "kept"
# What the faults below break, as sections of the run file.
FILTERS = {
    "filter.max_aspect": "3.0",
    "filter.caption_length": "{ max = 500 }",
    "filter.score.quality": "{ min = 0.5 }",
    "filter.where": '"not nsfw"',
}
COLUMNS = (
    '{ image = "image", caption = "caption", key = "key", width = "width", height = "height", url = "url" }'
)
OPTED_OUT = "opted-out.example"
SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "image": pa.binary(),
        # Bytes, because a string column cannot hold what is not UTF-8.
        "caption": pa.binary(),
        "width": pa.float64(),
        "height": pa.float64(),
        "quality": pa.float64(),
        "nsfw": pa.bool_(),
        "url": pa.string(),
    }
)

Row = dict[str, object]


@dataclass(frozen=True)
class Fault:
    """What can be wrong with a row, and what becomes of the row."""

    name: str
    outcome: str
    change: Callable[[Row], Row]


def quarantined(kind: str, name: str, change: Callable[[Row], Row]) -> Fault:
    return Fault(name, f"quarantined {kind}", change)


def rejected(by: str, name: str, change: Callable[[Row], Row]) -> Fault:
    return Fault(name, f"rejected {by}", change)


def encode_plain(width: int, height: int) -> bytes:
    """A grey JPEG of some size."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "grey").save(file, "JPEG")
    return file.getvalue()


PAGE = b"<!DOCTYPE html><html><head><title>404 Not Found</title></head><body>gone</body></html>"
SMALL, WIDE = encode_plain(24, 40), encode_plain(160, 40)
FAULTS = (
    quarantined("missing", "no image", lambda row: {"image": None}),
    quarantined("missing", "no caption", lambda row: {"caption": None}),
    quarantined("format", "no bytes", lambda row: {"image": b""}),
    quarantined("format", "HTML page", lambda row: {"image": PAGE}),
    quarantined("format", "noise", lambda row: {"image": row["image"][::-1]}),
    quarantined("damaged", "header cut", lambda row: {"image": row["image"][:100]}),
    quarantined("damaged", "pixels cut", lambda row: {"image": row["image"][:-200]}),
    quarantined("encoding", "not UTF-8", lambda row: {"caption": b"caf\xe9 " + row["caption"]}),
    quarantined("number", "NaN score", lambda row: {"quality": float("nan")}),
    quarantined("number", "infinite width", lambda row: {"width": float("inf")}),
    rejected("max_aspect", "wide", lambda row: {"image": WIDE}),
    rejected("caption_length", "long caption", lambda row: {"caption": 100 * b"words " + row["caption"]}),
    rejected("score.quality", "low score", lambda row: {"quality": 0.25}),
    rejected("score.quality", "no score", lambda row: {"quality": None}),
    rejected("where", "flagged", lambda row: {"nsfw": True}),
    rejected("resolution", "small", lambda row: {"image": SMALL}),
    rejected("opt_out.domains", "opted out", lambda row: {"url": f"https://www.{OPTED_OUT}/a.jpg"}),
)


@dataclass(frozen=True)
class Pairs:
    """Pairs as Parquet files in a folder."""

    folder: Path
    rows: int
    rows_per_unit: int
    seed: int
    # For each row its fault's index in `FAULTS`, or -1.
    faults: np.ndarray

    @property
    def units(self) -> int:
        per_file = UNITS_PER_FILE * self.rows_per_unit
        whole, rest = divmod(self.rows, per_file)
        return whole * UNITS_PER_FILE + -(-rest // self.rows_per_unit)

    @property
    def outcomes(self) -> np.ndarray:
        """What becomes of each row: kept, or rejected or quarantined with the reason."""
        return np.array([fault.outcome for fault in FAULTS] + [KEPT])[self.faults]

    def count_outcomes(self) -> Counter[str]:
        counts = Counter({KEPT: int(np.sum(self.faults < 0))})
        for fault, rows in zip(FAULTS, self.count_faults().values(), strict=True):
            counts[fault.outcome] += rows
        return counts

    def count_faults(self) -> dict[str, int]:
        return {fault.name: int(np.sum(self.faults == index)) for index, fault in enumerate(FAULTS)}


def draw_pairs(
    folder: Path, rows: int, rows_per_unit: int, seed: int, distinct: int, vocabulary: Path
) -> Pairs:
    """Draws pairs on all cores; equal arguments give equal pairs."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, rows])
    kinds = rng.integers(len(FAULTS), size=rows)
    faults = np.where(rng.random(rows) < FAULTY, kinds, -1)
    captions = [caption[:400].encode() for caption in draw_captions(distinct, seed, vocabulary)]
    starts = range(0, rows, UNITS_PER_FILE * rows_per_unit)
    with multiprocessing.Pool() as pool:
        images = pool.map(functools.partial(draw_jpeg, seed), range(distinct), chunksize=64)
    write = functools.partial(write_file, folder, rows_per_unit, seed, images, captions)
    with multiprocessing.Pool() as pool:
        pool.starmap(
            write, [(start, faults[start : start + UNITS_PER_FILE * rows_per_unit]) for start in starts], 1
        )
    return Pairs(folder, rows, rows_per_unit, seed, faults)


def draw_jpeg(seed: int, number: int) -> bytes:
    """A small JPEG of shapes on a gradient with some noise."""
    rng = np.random.default_rng([seed, number])
    gradient = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8))
    image = gradient.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    canvas = ImageDraw.Draw(image)
    for _ in range(rng.integers(2, 6)):
        draw_shape(canvas, rng, SIDE, SIDE)
    texture = 8 * draw_noise_field(rng, SIDE, SIDE, 16)
    pixels = np.asarray(image, np.float32) + texture[..., None]
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=75)
    return file.getvalue()


def write_file(
    folder: Path,
    rows_per_unit: int,
    seed: int,
    images: Sequence[bytes],
    captions: Sequence[bytes],
    start: int,
    faults: np.ndarray,
) -> None:
    """Writes the pairs of a file, a row group for each unit."""
    rng = np.random.default_rng([seed, 1, start])
    drawn = rng.integers(len(images), size=len(faults)).tolist()
    scores = rng.uniform(0.5, 1.0, len(faults)).tolist()
    rows = [
        make_row(start + i, images[image], captions[image], score)
        for i, (image, score) in enumerate(zip(drawn, scores, strict=True))
    ]
    for i in np.flatnonzero(faults >= 0).tolist():
        rows[i] |= FAULTS[faults[i]].change(rows[i])
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA),
        folder / f"{start:09}.parquet",
        row_group_size=rows_per_unit,
        compression={name: "none" if name == "image" else "snappy" for name in SCHEMA.names},
        use_dictionary=["url"],
    )


def make_row(number: int, image: bytes, caption: bytes, score: float) -> Row:
    """A row that is kept."""
    comment = b"%09d" % number
    return {
        "key": str(number),
        # Behind the start of the image: the comment's marker and length.
        "image": image[:2] + b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment + image[2:],
        "caption": caption + b" %d" % number,
        "width": float(SIDE),
        "height": float(SIDE),
        "quality": score,
        "nsfw": False,
        "url": f"https://images.example/{number % 1000}.jpg",
    }


def write_run_file(path: Path, pairs: Pairs, output: Path, settings: Mapping[str, str]) -> None:
    """Writes a run file that keeps the rows without a fault."""
    domains = path.with_name("opted-out.txt")
    domains.write_text(f"{OPTED_OUT}\n")
    values = {
        "name": '"soak"',
        "output": f'"{output}"',
        "source.uri": f'"{pairs.folder}/*.parquet"',
        "source.columns": COLUMNS,
        "source.rows_per_unit": str(pairs.rows_per_unit),
        "filter.opt_out.domains": f'"{domains}"',
        **FILTERS,
        **settings,
    }
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
