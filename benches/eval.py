"""`make bench-eval`: features and FID beside torch-fidelity and torchmetrics, and sampling beside diffusers.

Draws images and random weights, runs Tidemill and the peers alternately, each in a fresh process, writes
target/bench/eval.json and redraws its part of docs/benchmarks.md, which explains the figures.
"""

import argparse
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benches import report, runner
from benches.peers import inception_weights
from benches.runner import Command, Outcome, ours, peer

FOLDER = runner.RESULTS / "eval"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
CONVERT = runner.ROOT / "scripts" / "convert_inception.py"
PACKAGES = ("torch", "torch-fidelity", "torchmetrics", "diffusers", "pillow")
FIDELITY, METRICS, DIFFUSERS = "torch-fidelity", "torchmetrics", "diffusers"
SIDE = 256
# Two FIDs of the same images by the same network. With fewer images than features the peers' covariances
# have no full rank, and the roots of rounding errors add up.
FID_TOLERANCE, DEFICIENT_TOLERANCE, FEATURES = 1e-3, 3e-2, 2048
# One run of 5,000 images by a peer on two cores.
LIMIT_S = 1800


def draw_images(folder: Path, count: int, seed: int) -> None:
    """JPEG files with waves and a little noise, as many bytes as photographs have."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    for index in range(count):
        waves = [
            np.sin(rng.uniform(3, 40) * x + rng.uniform(3, 40) * y + rng.uniform(0, 6)) for _ in range(3)
        ]
        pixels = np.stack(waves, -1) * 90 + rng.normal(0, 12, (SIDE, SIDE, 3)) + 128
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index:05}.jpg", quality=90)


def fid_sides() -> tuple[Command, dict[str, Command]]:
    generated, reference = FOLDER / "generated", FOLDER / "reference"
    model = f"inception={FOLDER / 'inception'}"
    command = ours(
        "eval", generated, "--reference", reference, "--model", model, "--metric", "fid", figure="wall_s"
    )
    arguments = (generated, reference, FOLDER / "inception.pth")
    peers = {
        FIDELITY: peer("fid_torch_fidelity", *arguments, figure="wall_s"),
        METRICS: peer("fid_torchmetrics", *arguments, figure="wall_s"),
    }
    return command, peers


def measure_fid(count: int, rounds: int, check_load: bool) -> tuple[report.Case, dict[str, float]]:
    command, peers = fid_sides()
    outcomes = runner.alternate(command, peers, rounds, check_load, LIMIT_S)
    check_values(outcomes, FID_TOLERANCE if count > FEATURES else DEFICIENT_TOLERANCE)
    # Both sides' images.
    rates = {side: [2 * count / run.result["wall_s"] for run in runs] for side, runs in outcomes.items()}
    goals = {FIDELITY: 1.5, METRICS: 1.5}
    peaks = {side: max(run.peak_mib for run in runs) for side, runs in outcomes.items()}
    mine = rates.pop("ours")
    return report.Case(f"FID of {count:,} images, decoding included", "img/s", mine, rates, goals), peaks


def check_values(outcomes: Mapping[str, Sequence[Outcome]], tolerance: float) -> None:
    """All sides have found the same FID."""
    found = {
        side: run.result["metrics"]["fid"] if side == "ours" else run.result["fid"]
        for side, runs in outcomes.items()
        for run in runs
    }
    reference = found[FIDELITY]
    for side, value in found.items():
        if abs(value - reference) > tolerance * reference:
            raise runner.BenchError(f"{side} found {value}, and {FIDELITY} {reference}")


def measure_memory() -> list[dict]:
    """Peak memory of ours over a tenth of the images and over all."""
    rows = []
    for share in (10, 1):
        folders = []
        for name in ("generated", "reference"):
            files = sorted((FOLDER / name).iterdir())
            part = FOLDER / f"{name}-{share}"
            part.mkdir()
            for file in files[: max(4, len(files) // share)]:
                (part / file.name).hardlink_to(file)
            folders.append(part)
        command = ours(
            "eval",
            folders[0],
            "--reference",
            folders[1],
            "--model",
            f"inception={FOLDER / 'inception'}",
            "--metric",
            "fid",
            figure="wall_s",
        )
        outcome = runner.run(command, LIMIT_S)
        rows.append({"images": outcome.result["images"], "peak_mib": outcome.peak_mib})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=5000, help="images of each side")
    parser.add_argument("--rounds", type=int, default=3, help="times that all sides run; medians count")
    parser.add_argument("--seed", type=int, help="seed of images and weights; drawn and printed if not given")
    runner.main("bench-eval", bench, parser, quick={"images": 24, "rounds": 1})


def bench(args: argparse.Namespace) -> None:
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for offset, name in enumerate(("generated", "reference")):
        draw_images(FOLDER / name, args.images, seed + offset)
    torch.manual_seed(seed)
    inception_weights.draw(FOLDER / "inception.pth")
    subprocess.run([sys.executable, CONVERT, FOLDER / "inception.pth", FOLDER / "inception"], check=True)
    case, peaks = measure_fid(args.images, args.rounds, not args.force)
    memory = measure_memory()
    body = page([case], peaks, memory, args.rounds, seed)
    if not args.quick:
        entry = case.to_json() | {"peak_mib": peaks, "memory": memory, "seed": seed}
        about = {"versions": runner.versions(*PACKAGES), "machine": runner.machine()}
        report.write_json(runner.RESULTS / "eval.json", [entry | about])
    report.publish(PAGE, "bench-eval", body, args.quick)


def page(
    cases: Sequence[report.Case],
    peaks: Mapping[str, float],
    memory: Sequence[Mapping],
    rounds: int,
    seed: int,
) -> str:
    head = report.measured_on(runner.machine(), runner.versions(*PACKAGES))
    peak_rows = [[report.OURS if side == "ours" else side, f"{mib:,.0f}"] for side, mib in peaks.items()]
    rows = [[f"{row['images']:,}", f"{row['peak_mib']:,.0f}"] for row in memory]
    return "\n\n".join(
        [
            f"{head} Medians of {rounds} rounds, seed {seed}.",
            f"JPEG files of {SIDE}x{SIDE} pixels; InceptionV3 with random weights.",
            report.comparison(cases),
            "Peak resident memory, MiB:",
            report.table(["", "peak"], peak_rows),
            "Ours by the number of images of each side, MiB:",
            report.table(["images", "peak"], rows, numbers_from=0),
        ]
    )


if __name__ == "__main__":
    main()
