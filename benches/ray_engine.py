"""`make bench-ray`: the Ray engine beside plain Ray Data with Python's libraries, and the local engine.

Draws scenes, turns them into latents with the quickstart's models, all sides on all cores of this machine,
writes target/bench/ray.json and redraws docs/benchmarks.md.
"""

import argparse
import subprocess
from collections.abc import Sequence
from datetime import date

from benches import report, runner
from benches.runner import Command, Outcome, peer

FOLDER = runner.RESULTS / "ray"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
PACKAGES = ("ray", "torch", "diffusers", "transformers", "pillow", "pyarrow")
TEMPLATE, LOCAL = "Ray Data: Pillow, diffusers", "the local engine"
# End to end, and 25 % more time.
GOALS = {TEMPLATE: 3.0, LOCAL: 0.8}
# Few rows are a part of all: what they take is taken off both for a rate without start-up.
PARTS = 5


def draw(rows: int) -> None:
    """Scenes in as many files of 1,000, which both engines take as units."""
    for name, count in (("all", rows), ("few", rows // PARTS)):
        folder = FOLDER / name
        if len(list(folder.glob("*.parquet"))) != count // 1000:
            command = [runner.TIDEMILL, "synth", folder, "--rows", count, "--files", count // 1000, "-q"]
            subprocess.run([*map(str, command)], check=True)


def tidemill(kind: str, pairs: str) -> Command:
    output = FOLDER / kind
    return peer("ray_tidemill", kind, FOLDER / pairs, output, figure="seconds", writes=[output])


def template() -> Command:
    output = FOLDER / "template"
    return peer("ray_template", FOLDER / "all", output, figure="seconds", writes=[output])


def seconds(runs: Sequence[Outcome]) -> list[float]:
    return [run.result["seconds"] for run in runs]


def measure(rows: int, rounds: int, check_load: bool) -> list[report.Case]:
    sides = {TEMPLATE: template(), LOCAL: tidemill("local", "all")}
    found = runner.alternate(tidemill("ray", "all"), sides, rounds, check_load)
    few = runner.alternate(tidemill("ray", "few"), {LOCAL: tidemill("local", "few")}, rounds, check_load)
    whole = report.Case(
        f"{rows:,} pairs, end to end",
        "rows/s",
        [rows / s for s in seconds(found["ours"])],
        {TEMPLATE: [rows / s for s in seconds(found[TEMPLATE])]},
        {TEMPLATE: GOALS[TEMPLATE]},
    )
    without_start = report.Case(
        "the same, start-up excluded",
        "rows/s",
        marginal(rows, found["ours"], few["ours"]),
        {LOCAL: marginal(rows, found[LOCAL], few[LOCAL])},
        {LOCAL: GOALS[LOCAL]},
    )
    return [whole, without_start]


def marginal(rows: int, whole: Sequence[Outcome], few: Sequence[Outcome]) -> list[float]:
    """Rows over the time that they took beyond that of few, from all runs in the order of their times."""
    pairs = zip(sorted(seconds(whole)), sorted(seconds(few)) * 2, strict=False)
    return [(rows - rows // PARTS) / (all_of_them - some) for all_of_them, some in pairs]


def bench(args: argparse.Namespace) -> None:
    draw(args.rows)
    cases = measure(args.rows, args.rounds, not args.force)
    versions, machine = runner.versions(*PACKAGES), runner.machine()
    print(report.comparison(cases))
    about = {"versions": versions, "machine": machine}
    report.write_json(runner.RESULTS / "ray.json", [case.to_json() | about for case in cases])
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    head = (
        f"Measured on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {named}. "
        f"Medians of {args.rounds} rounds."
    )
    report.redraw(PAGE, "bench-ray", "\n\n".join([head, report.comparison(cases)]))
    missed = [f"against {name}" for case in cases for name in case.missed()]
    print("missed: " + "; ".join(missed) if missed else "every goal is reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="a multiple of 5,000")
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs; medians count")
    runner.main("bench-ray", bench, parser)


if __name__ == "__main__":
    main()
