"""`make bench-launches`: kernel launches of a step, counted on a fake GPU.

Stable Diffusion 2's U-Net in its real size, bf16, in Tidemill and in diffusers: kernels per step,
how long the host takes to start them, and the GPU's memory. A GPU that is done sooner than the host
waits for it.
"""

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benches import gpu, report, runner
from benches.alternate import Side, line_counter, measure_alternately
from benches.null_gpu import NullGpu, Report
from benches.train import make_models

FOLDER = runner.RESULTS / "launches"
PAGE = runner.ROOT / "docs" / "performance.md"
SIDES = ["Tidemill", "Tidemill, recorded", "diffusers, eager", "diffusers, eager, channels-last"]
# Steps before the measurement; the first ones do additional work.
WARM = 6


@dataclass(frozen=True)
class Step:
    """Medians of a step."""

    kernels: float
    replayed: float
    host_ms: float
    # Peak GPU memory of the process.
    peak_gib: float


def compute_step(reports: Sequence[Report], steps: int) -> Step:
    """Medians of the last steps. There is one report for each step, when it copies its metrics."""
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
    return compute_step(Report.read(found), setting.steps)


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
    size = f"{millions:.0f} million parameters, bf16, batches of {args.batch} at {args.pixels} pixels"
    head = (
        f"{report.measured_on(machine, versions, 'Counted')[:-1]}: {size}; "
        f"medians of {args.steps - WARM} steps after {WARM}."
    )
    table = report.table(heads, rows)
    written = {name: vars(step) for name, step in steps.items()}
    if not args.quick:
        entry = {"sides": written, "machine": machine, "versions": versions}
        report.write_json(runner.RESULTS / "launches.json", [entry])
    report.publish(PAGE, "bench-launches", f"{head}\n\n{table}", args.quick or not args.record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pixels", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--channels", type=int, default=320, help="of the first block; SD2 has 320")
    parser.add_argument("--text", type=int, default=1024, help="width of the text embeddings; SD2 has 1024")
    parser.add_argument("--record", action=argparse.BooleanOptionalAction, default=True)
    quick = {"pixels": 64, "batch": 2, "steps": WARM + 3, "channels": 64, "text": 64}
    runner.main("bench-launches", bench, parser, quick)


if __name__ == "__main__":
    main()
