"""`make bench-launches`: what a training step asks of a GPU, counted on one that computes nothing.

Stable Diffusion 2's U-Net in its real size, bf16, in Tidemill and in diffusers: kernels per step,
how long the host takes to start them, and the GPU's memory. A GPU that is done sooner than the host
waits for it.
"""

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from statistics import median

from benches import gpu, report, runner
from benches.alternate import Side, line_counter, measure_alternately
from benches.null_gpu import NullGpu, Report
from benches.train import make_models

FOLDER = runner.RESULTS / "launches"
PAGE = runner.ROOT / "docs" / "performance.md"
SIDES = ["Tidemill", "Tidemill, recorded", "diffusers, eager", "diffusers, eager, channels-last"]
# Before these a step is not what it will be.
WARM = 6


@dataclass(frozen=True)
class Step:
    """Medians over steps."""

    kernels: float
    replayed: float
    host_ms: float
    # Of the process.
    peak_gib: float


def step_of(reports: Sequence[Report], steps: int) -> Step:
    """Of the last ones. A step copies its numbers to the host once."""
    last = list(pairwise(reports[-(steps - WARM) :]))
    return Step(
        median(after.launches - before.launches for before, after in last),
        median(after.replayed - before.replayed for before, after in last),
        1000 * median(after.seconds - before.seconds for before, after in last),
        reports[-1].peak_bytes / 2**30,
    )


def measure(setting: gpu.Setting, name: str, null: NullGpu) -> Step:
    arguments, log = gpu.SIDES[name](setting)
    found = FOLDER / f"{name}.jsonl"
    os.environ["NULL_GPU_REPORT"] = str(found)
    measure_alternately(
        [Side(name, arguments, line_counter(log))], setting.steps, runner.LIMIT_S, runner.LIMIT_S
    )
    return step_of(Report.read(found), setting.steps)


def bench(args: argparse.Namespace) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    null = NullGpu(FOLDER / "library")
    model = FOLDER / "model"
    millions = make_models(model, args.channels, args.text, args.pixels // 8)
    os.environ.update(null.environment(FOLDER / "preparing.jsonl"))
    setting = gpu.Setting(FOLDER, model, args.pixels, args.batch, args.steps, "cuda:0")
    gpu.prepare(setting, args.pixels)
    steps = {name: measure(setting, name, null) for name in SIDES}
    rows = [
        [
            name,
            f"{step.kernels:,.0f}",
            f"{step.replayed:,.0f}" if step.replayed else "",
            f"{step.host_ms:.1f}",
            f"{step.peak_gib:.1f}",
        ]
        for name, step in steps.items()
    ]
    heads = ["", "launches", "recorded", "host, ms", "memory, GiB"]
    versions, machine = runner.versions("torch", "diffusers"), runner.machine()
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    size = f"{millions:.0f} million parameters, bf16, batches of {args.batch} at {args.pixels} pixels"
    head = (
        f"Counted on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {named}: {size}; "
        f"medians of {args.steps - WARM} steps after {WARM}."
    )
    table = report.table(heads, rows)
    written = {name: vars(step) for name, step in steps.items()}
    report.write_json(
        runner.RESULTS / "launches.json", [{"sides": written, "machine": machine, "versions": versions}]
    )
    if args.record:
        report.redraw(PAGE, "bench-launches", "\n\n".join([head, table]))
    else:
        print(f"{head}\n\n{table}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pixels", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--channels", type=int, default=320, help="of the first block; SD2 has 320")
    parser.add_argument("--text", type=int, default=1024, help="width of the text embeddings; SD2 has 1024")
    parser.add_argument("--record", action=argparse.BooleanOptionalAction, default=True)
    runner.main("bench-launches", bench, parser)


if __name__ == "__main__":
    main()
