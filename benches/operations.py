"""`make bench-operations`: time of a training step by operation, beside diffusers.

Profiles three steps of each U-Net of `make bench-train` with each side, alternately for some
rounds, and redraws its part of docs/performance.md. It makes models and dataset if `make
bench-train` has not.
"""

import argparse
import shutil
import subprocess

from benches import profiler_trace, report, runner
from benches.runner import TIDEMILL
from benches.train import BATCH, CHANNELS, FOLDER, SIZE, TEXT, make_models, prepare, settings

PAGE = runner.ROOT / "docs" / "performance.md"
# Models and precisions.
CASES = [("small", "bf16"), ("small", "f32"), ("large", "bf16"), ("large", "f32")]
QUICK_CASES = [("small", "f32")]
AFTER, STEPS = 4, 3
# The largest number of operations in a table.
MAX_OPERATIONS = 12


def profile_ours(model: str, precision: str) -> profiler_trace.Trace:
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
    return profiler_trace.read_trace(path, STEPS)


def profile_peer(model: str, precision: str) -> profiler_trace.Trace:
    path = FOLDER / "peer.trace.json"
    options = ["--batch", BATCH, "--size", SIZE, "--after", AFTER, "--steps", AFTER + STEPS]
    options += ["--log", FOLDER / "peer.jsonl", "--profile", path]
    if precision == "bf16":
        options.append("--bf16")
    subprocess.run(runner.peer("diffusers_train", FOLDER / model, *map(str, options)).arguments, check=True)
    return profiler_trace.read_trace(path, STEPS)


def measure(
    model: str, precision: str, args: argparse.Namespace
) -> tuple[profiler_trace.Trace, profiler_trace.Trace]:
    """Medians of both sides.

    Rounds alternate, so that a slow minute does not affect only one side.
    """
    mine, theirs = [], []
    for number in range(args.rounds):
        for side, found in ((profile_ours, mine), (profile_peer, theirs)):
            if not args.force:
                runner.wait_until_idle()
            found.append(side(model, precision))
        walls = f"Tidemill {mine[-1].wall:,.0f} ms, diffusers {theirs[-1].wall:,.0f} ms"
        print(f"  {model}, {precision}, round {number + 1}: {walls}", flush=True)
    return profiler_trace.medians(mine), profiler_trace.medians(theirs)


def format_tables(mine: profiler_trace.Trace, theirs: profiler_trace.Trace) -> list[str]:
    kinds = sorted(mine.by_kind.keys() | theirs.by_kind.keys(), key=lambda kind: -mine.by_kind.get(kind, 0))
    rows = [[kind, *format_figures(mine.by_kind.get(kind, 0), theirs.by_kind.get(kind, 0))] for kind in kinds]
    rows.append(["**all**", *format_figures(mine.wall, theirs.wall)])
    most = sorted(mine.by_name, key=lambda name: -mine.by_name[name])[:MAX_OPERATIONS]
    named = [
        [
            f"`{name}`",
            *format_figures(mine.by_name[name], theirs.by_name.get(name, 0)),
            f"{mine.calls[name]:,}",
            f"{theirs.calls.get(name, 0):,}",
        ]
        for name in most
    ]
    return [
        report.table(["", "Tidemill, ms", "diffusers, ms"], rows),
        report.table(["operation", "Tidemill, ms", "diffusers, ms", "calls", "calls"], named),
    ]


def format_figures(*milliseconds: float) -> list[str]:
    return [f"{one:,.0f}" for one in milliseconds]


def make_missing_models(models: set[str]) -> None:
    """Makes models and datasets as `make bench-train` does, unless they exist."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for model in sorted(models):
        if not (FOLDER / f"{model}-run" / "dataset").exists():
            shutil.rmtree(FOLDER / model, ignore_errors=True)
            make_models(FOLDER / model, CHANNELS[model], TEXT, SIZE)
            prepare(model)


def bench(args: argparse.Namespace) -> None:
    cases = QUICK_CASES if args.quick else CASES
    make_missing_models({model for model, _ in cases})
    measured_on = report.measured_on(runner.machine(), runner.versions("torch", "diffusers"))
    parts = [
        f"{measured_on} Medians of {args.rounds} rounds, in which sides alternate, each figure's by itself: "
        "they need not add up."
    ]
    for model, precision in cases:
        figures = format_tables(*measure(model, precision, args))
        parts += [f"### The {model} U-Net, {precision}", *figures]
    report.publish(PAGE, "bench-operations", "\n\n".join(parts), args.quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="profiles of each side; medians count")
    runner.main("bench-operations", bench, parser, quick={"rounds": 1})


if __name__ == "__main__":
    main()
