"""`make bench-avif`: AVIF to RGB pixels on one core, beside Pillow.

Draws images of several sizes, chroma subsamplings and with alpha, and decodes them alternately. Writes
target/bench/avif.json and redraws its part of docs/benchmarks.md.
"""

import argparse
import io
import json
import multiprocessing
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFilter

from benches import pairs, report, runner
from benches.runner import Outcome, ours, peer

FOLDER = runner.RESULTS / "avif"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
# Images of 512x512 in a set; larger ones are fewer.
ROWS = 256
GOAL = 1.0


@dataclass(frozen=True)
class Kind:
    """A kind of image."""

    width: int
    height: int
    chroma: str
    has_alpha: bool = False

    def __str__(self) -> str:
        return f"{self.width}x{self.height}, {self.chroma}{', alpha' if self.has_alpha else ''}"


KINDS = [
    Kind(512, 512, "4:2:0"),
    Kind(512, 512, "4:4:4"),
    Kind(512, 512, "4:2:0", has_alpha=True),
    Kind(1600, 1200, "4:2:0"),
]


def draw_avif(kind: Kind, seed: int, row: int) -> bytes:
    """An AVIF like a photograph; with alpha, all but a soft ellipse is transparent."""
    image = Image.open(io.BytesIO(pairs.draw_jpeg(kind.width, kind.height, seed, row)))
    if kind.has_alpha:
        alpha = Image.new("L", image.size)
        box = (kind.width // 8, kind.height // 8, kind.width * 7 // 8, kind.height * 7 // 8)
        ImageDraw.Draw(alpha).ellipse(box, fill=255)
        image.putalpha(alpha.filter(ImageFilter.GaussianBlur(4)))
    file = io.BytesIO()
    image.save(file, "AVIF", quality=75, subsampling=kind.chroma, speed=8)
    return file.getvalue()


def draw_set(kind: Kind, rows: int, seed: int) -> tuple[Path, float]:
    """Draws a set of images on all cores; returns its file and the mean size of an image in bytes."""
    with multiprocessing.Pool() as pool:
        images = pool.map(partial(draw_avif, kind, seed), range(rows))
    path = FOLDER / f"{kind}.parquet"
    columns = {"image": pa.array(images, pa.binary()), "caption": pa.array(["an image"] * rows)}
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    return path, sum(map(len, images)) / rows


def compare(kind: Kind, args: argparse.Namespace, seed: int) -> dict:
    """Milliseconds for an image of each side: medians."""
    rows = max(1, args.rows * 512 * 512 // (kind.width * kind.height))
    path, mean_bytes = draw_set(kind, rows, seed)
    print(f"{kind}: {rows} images of {mean_bytes / 1e3:.0f} KB", flush=True)
    run_file = FOLDER / f"{kind}.toml"
    lines = [
        f"[source]\nuri = {json.dumps(str(path))}",
        "[prepare]\nresolutions = [256]",
        '[models]\npath = "assets"',
    ]
    run_file.write_text("\n".join(lines))
    command = ours("bench", "prepare", run_file, "--set", "engine.prepare.workers=1")
    others = {"loaded": peer("pillow_avif", path)}
    if kind.has_alpha:
        others["over white"] = peer("pillow_avif", path, "--over-white")
    outcomes = runner.alternate(command, others, args.rounds, check_load=not args.force)
    check(outcomes, rows)
    decode_ms = [outcome.result["parts_ms"]["decode"] for outcome in outcomes["ours"]]
    pillow_ms = {
        name: median(1000 / outcome.result["rows_per_second"] for outcome in outcomes[name])
        for name in others
    }
    return {"kind": str(kind), "kb": mean_bytes / 1e3, "ours_ms": median(decode_ms), "pillow_ms": pillow_ms}


def check(outcomes: Mapping[str, Sequence[Outcome]], rows: int) -> None:
    """Fails unless each side has decoded all images."""
    for side, runs in outcomes.items():
        for run in runs:
            found = run.result["rows"]["kept"] if side == "ours" else run.result["rows"]
            if found != rows:
                raise runner.BenchError(f"{side} decoded {found} images of {rows}")


def table_rows(found: dict) -> list[list[str]]:
    rows = []
    for name, pillow_ms in found["pillow_ms"].items():
        ratio = pillow_ms / found["ours_ms"]
        goal = f"{GOAL:.1f}x" + (", missed" if ratio < GOAL else "")
        figures = [f"{found['kb']:.0f}", f"{found['ours_ms']:.2f}", f"{pillow_ms:.2f}", f"{ratio:.2f}x", goal]
        rows.append([found["kind"], name, *figures])
    return rows


def bench(args: argparse.Namespace) -> None:
    seed = random.randrange(2**32) if args.seed is None else args.seed
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    results = [compare(kind, args, seed) for kind in KINDS]
    head = report.measured_on(runner.machine(), runner.versions("pillow"))
    heads = ["image", "in Pillow", "KB", "Tidemill, ms", "Pillow, ms", "ratio", "goal"]
    rows = [row for found in results for row in table_rows(found)]
    text = f"{head} Medians of {args.rounds} rounds, seed {seed}.\n\n{report.table(heads, rows)}"
    if not args.quick:
        report.write_json(runner.RESULTS / "avif.json", results)
    report.publish(PAGE, "bench-avif", text, args.quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS, help="images of 512x512 in a set")
    parser.add_argument("--seed", type=int)
    runner.main("bench-avif", bench, parser, quick={"rounds": 1, "rows": 6, "seed": 1})
