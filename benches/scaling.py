"""`make bench-scaling`: throughput on a Ray cluster by the number of encoders.

benches/scaling_measurement.py measures. This module writes target/bench/scaling.json and redraws
its part of docs/benchmarks.md.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benches import plots, report, runner
from benches.scaling_measurement import LARGE, NEEDED, QUICK, SPEEDS, Plan, Results, measure, train_rate

PAGE = runner.ROOT / "docs" / "benchmarks.md"
DOCS = PAGE.parent
MODES = runner.RESULTS / "modes.json"

GOALS = {"linear": 0.99, "plateau": 0.97, "busy": 0.95}
# Published images/s on 32 A100 at 256 pixels, online with 40 A10G. "co-located" is what its authors
# call online processing with the Torch DataLoader.
PUBLISHED = {"offline": 4068.0, "online": 4075.0, "co-located": 2811.0}
IMAGES = {"Rates and the pool": "scaling", "Modes beside published ones": "published"}


def format_tables(results: Results) -> str:
    rows = [
        [
            str(point.encoders),
            report.number(point.rate),
            f"{point.busy:.1%}",
            report.number(results.offline[point.encoders]) if point.encoders in results.offline else "",
        ]
        for point in results.online
    ]
    names = {
        "linear": f"R2 of the line below {NEEDED} encoders",
        "plateau": "least rate above them, of that from memory",
        "busy": "least share of time busy below them",
    }
    goals = [
        [names[key], f"{value:.4f}", f"{GOALS[key]}" + ("" if value >= GOALS[key] else ", missed")]
        for key, value in results.reached.items()
    ]
    columns = ["encoders", "online, img/s", "busy", "offline, rows/s"]
    return "\n\n".join([report.table(columns, rows, 0), report.table(["", "reached", "goal"], goals)])


def format_sentences(results: Results) -> list[str]:
    """The results that do not fit into a table."""
    growth, start = results.growth, results.growth[0].at
    sizes = [reading.encoders for reading in growth]
    enough = next((f"after {r.at - start:.0f} s" for r in growth if r.encoders >= NEEDED), "never")
    end = [reading for reading in growth if reading.at > growth[-1].at - 30]
    sentences = [
        f"From memory the trainers take {report.number(results.memory)} img/s; an encoder gives "
        f"{report.number(SPEEDS.encoder)} rows/s, so {NEEDED} are needed.",
        f"A pool that may grow from 1 has {NEEDED} {enough}, {max(sizes)} at most, and {sizes[-1]} at the "
        f"end, {growth[-1].at - start:.0f} s after its first window; in the last 30 s the trainers take "
        f"{report.number(train_rate(end))} img/s.",
    ]
    shares = [f"{share:.0%} after {seconds:.0f} s" for share, seconds in results.offline_growth.items()]
    reached = " and ".join(shares) or "less than half"
    sentences.append(f"Offline, a pool that may grow from 1 reaches of all encoders' rate {reached}.")
    large = ", ".join(
        f"{p.encoders} encoders {report.number(p.rate)} img/s, {p.busy:.1%} busy" for p in results.large
    )
    return [*sentences, f"With rows of {LARGE.encoded_bytes // 1000} KB: {large}."] if large else sentences


def draw_charts(results: Results, ours: tuple[str, Mapping[str, float]] | None, folder: Path) -> None:
    """Draws the charts; the one of modes only if there are figures of `make bench-modes`."""
    online_line = {point.encoders: point.rate for point in results.online}
    sizes = [(reading.at - results.growth[0].at, reading.encoders) for reading in results.growth]
    plots.draw_scaling(
        folder / "benchmarks-scaling", online_line, results.offline, results.memory, sizes, NEEDED
    )
    if ours is None:
        return
    plateau = {"offline": results.memory, "online": results.reached["plateau"] * results.memory}
    sides = {
        "Anyscale, 32 A100 (online + 40 A10G)": PUBLISHED,
        "Tidemill, stages that sleep": plateau,
        ours[0]: ours[1],
    }
    plots.draw_modes(folder / "benchmarks-published", sides)


def read_modes() -> tuple[str, dict[str, float]] | None:
    """The figures of `make bench-modes` and their title; None if it has not been run."""
    if not MODES.exists():
        return None
    [case] = json.loads(MODES.read_text())
    rates = {
        "offline": case["peers"]["offline"],
        "online": case["ours"],
        "co-located": case["peers"]["colocated"],
    }
    return f"Tidemill, everything on {case['machine']['cores']} cores", rates


def bench(args: argparse.Namespace) -> None:
    modes = read_modes()
    if modes is None and not args.quick:
        raise runner.BenchError(f"there is no {MODES}; run `make bench-modes` first")
    results = measure(QUICK if args.quick else Plan(rounds=args.rounds, seconds=args.seconds))
    body = [format_tables(results), *format_sentences(results)]
    print("\n\n".join(body))
    draw_charts(results, modes, runner.RESULTS if args.quick else DOCS)
    if args.quick:
        return
    versions, machine = runner.versions("ray"), runner.machine()
    about = {"versions": versions, "machine": machine, "rounds": args.rounds}
    report.write_json(runner.RESULTS / "scaling.json", [asdict(results) | results.reached | about])
    rounds = "Once" if args.rounds == 1 else f"Medians of {args.rounds} rounds"
    head = (
        f"{report.measured_on(machine, versions)} {rounds}, {args.seconds:g} s for each number of encoders."
    )
    drawn = [f"![{name}](benchmarks-{file}.svg)" for name, file in IMAGES.items()]
    report.redraw(PAGE, "bench-scaling", "\n\n".join([head, *body, *drawn]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=1, help="times that each pool is measured; medians count"
    )
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="for each pool")
    runner.main("bench-scaling", bench, parser, quick={})


if __name__ == "__main__":
    main()
