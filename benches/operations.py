"""`make bench-operations`: where a training step's time goes, in Tidemill and in diffusers on
PyTorch.

After `make bench-train`, whose models and dataset it takes: profiles three steps of each of its
U-Nets with each side, alternately for some rounds, and redraws its part of docs/performance.md.
"""

import argparse
import shutil
import subprocess
from datetime import date

from benches import profiler_trace, report, runner
from benches.train import BATCH, FOLDER, SIZE, TIDEMILL, settings

PAGE = runner.ROOT / "docs" / "performance.md"
# Which model, in which precision.
CASES = [("small", "bf16"), ("small", "f32"), ("large", "bf16"), ("large", "f32")]
AFTER, STEPS = 4, 3
# Operations in a table.
MOST = 12


def ours(model: str, precision: str) -> profiler_trace.Trace:
    output = FOLDER / f"{model}-run"
    for folder in ("checkpoints", "profile"):
        shutil.rmtree(output / folder, ignore_errors=True)
    more = {
        "train.precision": precision,
        "train.global_batch": BATCH,
        "train.micro_batch": BATCH,
        "train.phase": [{"resolution": 8 * SIZE, "steps": AFTER + STEPS}],
        "train.profile": {"after": AFTER, "steps": STEPS},
    }
    subprocess.run([TIDEMILL, "train", *settings(model, **more), "-q"], check=True)
    (path,) = (output / "profile").iterdir()
    return profiler_trace.read(path, STEPS)


def peer(model: str, precision: str) -> profiler_trace.Trace:
    path = FOLDER / "peer.trace.json"
    options = ["--batch", BATCH, "--size", SIZE, "--after", AFTER, "--steps", AFTER + STEPS]
    options += ["--log", FOLDER / "peer.jsonl", "--profile", path]
    if precision == "bf16":
        options.append("--bf16")
    subprocess.run(runner.peer("diffusers_train", FOLDER / model, *map(str, options)).arguments, check=True)
    return profiler_trace.read(path, STEPS)


def measure(
    model: str, precision: str, args: argparse.Namespace
) -> tuple[profiler_trace.Trace, profiler_trace.Trace]:
    """Both sides' medians.

    What slows a shared machine for a minute would fall on one of two single runs.
    """
    mine, theirs = [], []
    for number in range(args.rounds):
        for side, found in ((ours, mine), (peer, theirs)):
            if not args.force:
                runner.wait_until_quiet()
            found.append(side(model, precision))
        walls = f"Tidemill {mine[-1].wall:,.0f} ms, diffusers {theirs[-1].wall:,.0f} ms"
        print(f"  {model}, {precision}, round {number + 1}: {walls}", flush=True)
    return profiler_trace.medians(mine), profiler_trace.medians(theirs)


def tables(mine: profiler_trace.Trace, theirs: profiler_trace.Trace) -> list[str]:
    kinds = sorted(mine.by_kind.keys() | theirs.by_kind.keys(), key=lambda kind: -mine.by_kind.get(kind, 0))
    rows = [[kind, *figures(mine.by_kind.get(kind, 0), theirs.by_kind.get(kind, 0))] for kind in kinds]
    rows.append(["**all**", *figures(mine.wall, theirs.wall)])
    most = sorted(mine.by_name, key=lambda name: -mine.by_name[name])[:MOST]
    named = [
        [
            f"`{name}`",
            *figures(mine.by_name[name], theirs.by_name.get(name, 0)),
            f"{mine.calls[name]:,}",
            f"{theirs.calls.get(name, 0):,}",
        ]
        for name in most
    ]
    return [
        report.table(["", "Tidemill, ms", "diffusers, ms"], rows),
        report.table(["operation", "Tidemill, ms", "diffusers, ms", "calls", "calls"], named),
    ]


def figures(*milliseconds: float) -> list[str]:
    return [f"{one:,.0f}" for one in milliseconds]


def bench(args: argparse.Namespace) -> None:
    if not all((FOLDER / model).exists() for model, _ in CASES):
        raise runner.BenchError("there are no models: run `make bench-train` first")
    machine, versions = runner.machine(), runner.versions("torch", "diffusers")
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    parts = [
        f"Measured on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {named}. Medians "
        f"of {args.rounds} rounds, in which sides alternate, each figure's by itself: they need not add up."
    ]
    for model, precision in CASES:
        parts += [f"### The {model} U-Net, {precision}", *tables(*measure(model, precision, args))]
    report.redraw(PAGE, "bench-operations", "\n\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="profiles of each side; medians count")
    runner.main("bench-operations", bench, parser)


if __name__ == "__main__":
    main()
