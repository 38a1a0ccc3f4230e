"""`make bench-eval-curve`: distances between two sets of scenes of the same kind, by the number of images.

Whatever the distance is with few images, is bias: with very many it is zero. Features are those of the
quickstart's judge, and of a CLIP model with random weights. Redraws its part of docs/evaluation.md.
"""

import argparse
import io
import json
import random
import shutil
from pathlib import Path
from statistics import median

import pyarrow.dataset as ds
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from benches import plots, report, runner
from benches.runner import ours

FOLDER = runner.RESULTS / "eval-curve"
PAGE = runner.ROOT / "docs" / "evaluation.md"
CHART = runner.ROOT / "docs" / "evaluation-curve"
ASSETS = runner.ROOT / "assets"
SIDE = 64
LAYERS = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}


def draw_scenes(folder: Path, count: int, seed: int) -> list[Path]:
    """Scenes as PNG files, cut and resized as for training."""
    data = FOLDER / f"pairs-{seed}"
    runner.run(ours("synth", data, "--rows", count + count // 8, "--seed", seed, figure="wall_s"))
    folder.mkdir(parents=True)
    files = []
    for row in (
        ds.dataset([str(file) for file in sorted(data.glob("*.parquet"))])
        .to_table(columns=["jpg"])
        .to_pylist()
    ):
        try:
            image = Image.open(io.BytesIO(row["jpg"] or b"")).convert("RGB")
        except OSError:
            # A row that is broken on purpose.
            continue
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        files.append(folder / f"{len(files):05}.png")
        image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box).save(files[-1])
        if len(files) == count:
            return files
    raise runner.BenchError(f"{data} has only {len(files)} readable scenes of {count}")


def write_clip(folder: Path, seed: int) -> None:
    """A CLIP model with random weights."""
    torch.manual_seed(seed)
    vision = dict(image_size=SIDE, patch_size=8, **LAYERS)
    config = CLIPConfig(text_config=dict(vocab_size=49408, **LAYERS), vision_config=vision, projection_dim=64)
    CLIPModel(config).save_pretrained(folder)
    crop = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop).save_pretrained(folder)


def measure(count: int, generated: list[Path], reference: Path, start: int) -> dict[str, float]:
    """Distances of `count` of the generated images to all of the reference."""
    part = FOLDER / f"part-{count}-{start}"
    part.mkdir()
    for file in generated[start : start + count]:
        (part / file.name).hardlink_to(file)
    models = ("--model", f"dinov2={ASSETS / 'judge'}", "--model", f"clip={FOLDER / 'clip'}")
    metrics = ("--metric", "fd_dinov2", "--metric", "cmmd")
    command = ours("eval", part, "--reference", reference, *models, *metrics, figure="wall_s")
    return runner.run(command).result["metrics"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[48, 96, 192, 384, 768, 1536, 3072])
    parser.add_argument("--repeats", type=int, default=3, help="disjoint sets of each number; medians count")
    parser.add_argument("--seed", type=int, help="seed of the scenes; drawn and printed if not given")
    quick = {"counts": [48, 96], "repeats": 1}
    runner.main("bench-eval-curve", bench, parser, quick=quick)


def bench(args: argparse.Namespace) -> None:
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    most = max(args.counts)
    reference = FOLDER / "reference"
    draw_scenes(reference, most, seed)
    generated = draw_scenes(FOLDER / "generated", args.repeats * most, seed + 1)
    write_clip(FOLDER / "clip", seed)
    curve = {}
    for count in args.counts:
        runs = [measure(count, generated, reference, repeat * count) for repeat in range(args.repeats)]
        curve[count] = {name: median(run[name] for run in runs) for name in ("fd_dinov2", "cmmd")}
        print(f"  {count} images: {curve[count]}", flush=True)
    rows = [
        [f"{n:,}", report.number(one["fd_dinov2"]), report.number(one["cmmd"])] for n, one in curve.items()
    ]
    about = f"{most:,} reference images, medians of {args.repeats} sets, seed {seed}."
    table = report.table(["images", "`fd_dinov2`", "`cmmd`"], rows, numbers_from=0)
    body = "\n\n".join([about, table, f"![Distances by the number of images]({CHART.name}.svg)"])
    if not args.quick:
        plots.draw_bias(CHART, curve)
        report.write_json(runner.RESULTS / "eval-curve.json", [{"curve": curve, "seed": seed}])
    report.publish(PAGE, "eval-curve", body, args.quick)
    print(json.dumps(curve))


if __name__ == "__main__":
    main()
