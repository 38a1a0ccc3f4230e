"""`make bench-ray`: the Ray engine beside plain Ray Data, and the local engine.

Draws pairs and encodes them with the quickstart's models; all sides use all cores of this machine.
Writes target/bench/ray.json and redraws docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches import pairs, report, runner
from benches.runner import Command, Outcome, cores, ours, peer

FOLDER = runner.RESULTS / "ray"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
MODELS = runner.ROOT / "assets"
PACKAGES = ("ray", "torch", "diffusers", "transformers", "pillow", "pyarrow")
TEMPLATE, LOCAL = "Ray Data: Pillow, diffusers", "the local engine"
# Ratios to reach: end to end, and at most 25 % more time than the local engine.
GOALS = {TEMPLATE: 2.0, LOCAL: 0.8}
# A run over this fraction of the rows gives the start-up time, which is subtracted.
PARTS = 5
UNIT = 1000
# Different photographs, each of which occurs several times.
PHOTOGRAPHS, WIDTH, HEIGHT = 2000, 500, 375


@dataclass(frozen=True)
class Pairs:
    """Pairs in Parquet files of a folder."""

    name: str
    folder: Path
    rows: int
    # The column with the image files.
    image: str


def draw_scenes(rows: int) -> Pairs:
    """Scenes of the quickstart, one file for each unit."""
    folder = FOLDER / f"scenes-{rows}"
    if not folder.exists():
        command = [runner.TIDEMILL, "synth", folder, "--rows", rows, "--files", max(1, rows // UNIT), "-q"]
        subprocess.run([*map(str, command)], check=True)
    return Pairs("scenes", folder, rows, "jpg")


def draw_photographs(rows: int) -> Pairs:
    """Drawn images of the size of photographs."""
    folder, drawn = FOLDER / f"photographs-{rows}", FOLDER / "photographs"
    if not folder.exists():
        shutil.rmtree(drawn, ignore_errors=True)
        pairs.draw_set(
            "photographs", drawn, WIDTH, HEIGHT, PHOTOGRAPHS, 1, MODELS / "tokenizer" / "vocab.json"
        )
        folder.mkdir()
        for copy in range(rows // PHOTOGRAPHS):
            for file in sorted(drawn.iterdir()):
                os.link(file, folder / f"{copy}-{file.name}")
    return Pairs(f"photographs of {WIDTH}x{HEIGHT}", folder, rows, "image")


def tidemill_command(kind: str, source: Pairs) -> Command:
    output = FOLDER / kind
    settings = {
        "source.uri": f"{source.folder}/*.parquet",
        "source.columns": {"image": source.image, "caption": "caption"},
        "source.rows_per_unit": UNIT,
        "prepare.resolutions": [64],
        "models.path": str(MODELS),
        "engine.kind": kind,
        "engine.device": "cpu",
        "engine.ray.address": "local",
        # Local: one encoder that uses all cores. Ray: an encoder for each core, which has it for
        # itself.
        "engine.encode.workers": cores() if kind == "ray" else 1,
        "engine.encode.cpus": 0.5,
        "engine.prepare.cpus": 0.5,
        "output": str(output),
    }
    given = runner.overrides({key: to_toml(value) for key, value in settings.items()})
    return ours("preprocess", "/dev/null", *given, figure="wall_s", writes=[output])


def to_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def template_command(source: Pairs) -> Command:
    output, blocks = FOLDER / "template", str(max(1, source.rows // UNIT))
    arguments = (source.folder, source.image, blocks, output)
    return peer("ray_template", *arguments, figure="wall_s", writes=[output])


def seconds(runs: Sequence[Outcome]) -> list[float]:
    return [run.result["wall_s"] for run in runs]


def alternate(
    source: Pairs, sides: Mapping[str, Command], args: argparse.Namespace
) -> dict[str, list[Outcome]]:
    """Runs Tidemill on Ray and the others alternately; checks that all have read all rows."""
    found = runner.alternate(tidemill_command("ray", source), sides, args.rounds, not args.force)
    for name, runs in found.items():
        for run in runs:
            rows = run.result["rows"]
            rows = rows["read"] if isinstance(rows, Mapping) else rows
            if rows != source.rows:
                raise runner.BenchError(f"{name} had {rows} rows of {source}")
    return found


def end_to_end(source: Pairs, found: dict[str, list[Outcome]]) -> report.Case:
    rates = {name: [source.rows / s for s in seconds(found[name])] for name in ("ours", TEMPLATE)}
    name, goals = f"{source.rows:,} {source.name}, end to end", {TEMPLATE: GOALS[TEMPLATE]}
    return report.Case(name, "rows/s", rates["ours"], {TEMPLATE: rates[TEMPLATE]}, goals)


def measure(args: argparse.Namespace) -> list[report.Case]:
    drawn, few = draw_scenes(args.rows), draw_scenes(args.rows // PARTS)
    cases = []
    if args.photographs:
        real = draw_photographs(args.photographs)
        cases.append(end_to_end(real, alternate(real, {TEMPLATE: template_command(real)}, args)))
    sides = {TEMPLATE: template_command(drawn), LOCAL: tidemill_command("local", drawn)}
    found = alternate(drawn, sides, args)
    found_of_few = alternate(few, {LOCAL: tidemill_command("local", few)}, args)
    without_start = report.Case(
        f"{args.rows:,} scenes, start-up excluded",
        "rows/s",
        marginal(args.rows, found["ours"], found_of_few["ours"]),
        {LOCAL: marginal(args.rows, found[LOCAL], found_of_few[LOCAL])},
        {LOCAL: GOALS[LOCAL]},
    )
    return [*cases, end_to_end(drawn, found), without_start]


def marginal(rows: int, whole: Sequence[Outcome], few: Sequence[Outcome]) -> list[float]:
    """Rows/s without start-up: additional rows over additional time, of runs in the order of times."""
    times = zip(sorted(seconds(whole)), sorted(seconds(few)) * 2, strict=False)
    return [(rows - rows // PARTS) / (all_of_them - some) for all_of_them, some in times]


def bench(args: argparse.Namespace) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    cases = measure(args)
    versions, machine = runner.versions(*PACKAGES), runner.machine()
    print(report.comparison(cases))
    if args.quick:
        return
    about = {"versions": versions, "machine": machine}
    report.write_json(runner.RESULTS / "ray.json", [case.to_json() | about for case in cases])
    head = f"{report.measured_on(machine, versions)} Medians of {args.rounds} rounds."
    report.redraw(PAGE, "bench-ray", "\n\n".join([head, report.comparison(cases)]))
    missed = [f"{case.name} against {name}" for case in cases for name in case.missed()]
    print("missed: " + "; ".join(missed) if missed else "every goal is reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="scenes, a multiple of 5,000")
    parser.add_argument(
        "--photographs", type=int, default=10_000, help="a multiple of 2,000; 0 leaves them out"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs; medians count")
    quick = {"rows": 500, "photographs": 0, "rounds": 1}
    runner.main("bench-ray", bench, parser, quick)


if __name__ == "__main__":
    main()
