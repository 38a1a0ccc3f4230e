"""`make bench-data`: data preparation beside DataLoader, Ray Data and tokenizers.

Draws two sets of pairs, runs Tidemill and the peers alternately, each in a fresh process, writes
target/bench/data.json and redraws its part of docs/benchmarks.md, which explains the figures.
"""

import argparse
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benches import pairs, report, runner
from benches.runner import Command, Outcome, ours, peer

MODELS = runner.ROOT / "assets"
TOKENIZER = MODELS / "tokenizer"
FOLDER = runner.RESULTS / "data"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
CHART = runner.ROOT / "docs" / "benchmarks-data.svg"

PACKAGES = ("torch", "torchvision", "pillow", "ray", "pyarrow", "transformers", "tokenizers")
TORCHVISION, PILLOW = "DataLoader, torchvision", "DataLoader, Pillow"
RAY, RAY_BYTES = "Ray Data", "Ray Data, pixels as bytes"
TOKENIZERS = "tokenizers"

# Times of the stages in ms per row, by case.
Parts = Mapping[str, Mapping[str, float]]

CAPTIONS = 50_000
# The engine's memory limit, and how many times the rows of set A the longer run has.
MEMORY_MIB = 256
LONGER = 10


@dataclass(frozen=True)
class Contest:
    """A case: the sides' commands, the ratios to reach, and a check of the results."""

    name: str
    unit: str
    ours: Command
    peers: Mapping[str, tuple[Command, float | None]]
    check: Callable[[Mapping[str, Sequence[Outcome]]], None]


def list_contests(sets: Mapping[str, pairs.PairSet], seed: int) -> list[Contest]:
    a, b = sets["A"], sets["B"]
    return [
        prepare_contest(a, {TORCHVISION: 1.15, PILLOW: 2.4}),
        prepare_contest(b, {TORCHVISION: 1.15, PILLOW: 2.4}),
        prepare_contest(b, {PILLOW: 4.0}, "--set", "prepare.scaled_decode=true"),
        parquet_contest(a, goal=5.0),
        parquet_contest(b, goal=3.5),
        tokenizer_contest(seed),
    ]


def prepare_contest(pair_set: pairs.PairSet, goals: Mapping[str, float], *settings: str) -> Contest:
    """Pairs to pixels and ids in memory."""
    decoders = {TORCHVISION: "torchvision", PILLOW: "pillow"}
    workers = ("--workers", str(runner.cores()))
    loaders = {
        name: (peer("torch_loader", pair_set.folder, TOKENIZER, "--decoder", decoders[name], *workers), goal)
        for name, goal in goals.items()
    }
    command = ours("bench", "prepare", write_run_file(pair_set), *settings)
    scaled = ", scaled decode" if settings else ""
    return Contest(title(pair_set) + scaled, "rows/s", command, loaders, check_row_count(pair_set.rows))


def parquet_contest(pair_set: pairs.PairSet, goal: float) -> Contest:
    """Parquet to Parquet."""
    our_output, output = FOLDER / "ours", FOLDER / "ray"
    command = ours(
        "bench",
        "prepare",
        write_run_file(pair_set),
        "--output",
        our_output,
        "--sample",
        0,
        writes=[our_output],
    )

    def ray(pixels: str) -> Command:
        arguments = (pair_set.folder, TOKENIZER, output, "--pixels", pixels, "--cpus", runner.cores())
        return peer("ray_data", *arguments, writes=[output])

    peers = {RAY: (ray("tensor"), goal), RAY_BYTES: (ray("bytes"), None)}
    return Contest(
        f"{title(pair_set)}, Parquet out", "rows/s", command, peers, check_row_count(pair_set.rows)
    )


def tokenizer_contest(seed: int) -> Contest:
    """Captions to ids on one core."""
    captions, our_ids, ids = FOLDER / "captions.txt", FOLDER / "ours.ids", FOLDER / "peer.ids"
    drawn = pairs.draw_captions(CAPTIONS, seed, TOKENIZER / "vocab.json")
    captions.write_text("\n".join(drawn) + "\n", encoding="utf-8")
    figure = "captions_per_second"
    command = ours("bench", "tokenize", captions, "--models", MODELS, "--ids", our_ids, figure=figure)
    other = peer("tokenizers_hf", captions, TOKENIZER, ids, figure=figure)

    def check(_) -> None:
        if our_ids.read_bytes() != ids.read_bytes():
            raise runner.BenchError(f"the ids of {our_ids} and {ids} differ")

    return Contest("captions to ids, one core", "captions/s", command, {TOKENIZERS: (other, 2.0)}, check)


def title(pair_set: pairs.PairSet) -> str:
    return f"{pair_set.name}: {pair_set.width}x{pair_set.height} to 256"


def check_row_count(expected: int) -> Callable[[Mapping[str, Sequence[Outcome]]], None]:
    """A check that every side has made all rows."""

    def check(outcomes: Mapping[str, Sequence[Outcome]]) -> None:
        for side, runs in outcomes.items():
            for run in runs:
                rows = run.result["rows"]
                kept = rows["kept"] if side == "ours" else rows
                if kept != expected:
                    raise runner.BenchError(f"{side} made {kept} rows of {expected}")

    return check


def write_run_file(pair_set: pairs.PairSet, uri: str | None = None) -> Path:
    """Writes a run file for the set, beside its folder."""
    path = FOLDER / f"{pair_set.name}.toml"
    lines = [
        'name = "bench"',
        f"[source]\nuri = {json.dumps(uri or pair_set.uri)}\nrows_per_unit = {pairs.ROWS_PER_GROUP}",
        "[prepare]\nresolutions = [256]",
        f"[models]\npath = {json.dumps(str(MODELS))}",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def measure(contest: Contest, rounds: int, check_load: bool) -> tuple[report.Case, dict[str, float]]:
    """The case's figures, and the parts of our time in ms per row where they were taken."""
    print(contest.name, flush=True)
    commands = {name: command for name, (command, _) in contest.peers.items()}
    outcomes = runner.alternate(contest.ours, commands, rounds, check_load)
    contest.check(outcomes)

    def figures(side: str, command: Command) -> list[float]:
        return [outcome.result[command.figure] for outcome in outcomes[side]]

    case = report.Case(
        contest.name,
        contest.unit,
        figures("ours", contest.ours),
        {name: figures(name, command) for name, command in commands.items()},
        {name: goal for name, (_, goal) in contest.peers.items() if goal is not None},
    )
    parts = [outcome.result.get("parts_ms", {}) for outcome in outcomes["ours"]]
    return case, {part: median(run[part] for run in parts) for part in parts[0]}


def measure_memory(pair_set: pairs.PairSet) -> list[dict]:
    """Peak memory of `tidemill preprocess` over the set, and over many times its rows."""
    longer = FOLDER / f"{pair_set.name}-longer"
    longer.mkdir()
    for file in pair_set.folder.iterdir():
        for copy in range(LONGER):
            os.link(file, longer / f"{file.stem}-{copy}.parquet")
    return [
        measure_peak(pair_set, pair_set.uri, pair_set.rows),
        measure_peak(pair_set, str(longer / "*.parquet"), LONGER * pair_set.rows),
    ]


def measure_peak(pair_set: pairs.PairSet, uri: str, rows: int) -> dict:
    output = FOLDER / "dataset"
    shutil.rmtree(output, ignore_errors=True)
    # The small models in assets/ are made for 64 pixels.
    settings = {"output": output, "engine.memory": f"{MEMORY_MIB} MiB", "prepare.resolutions": "[64]"}
    command = ours("preprocess", write_run_file(pair_set, uri), *runner.overrides(settings))
    working = runner.run(command)
    if working.result["rows"]["kept"] != rows:
        raise runner.BenchError(f"preprocess kept {working.result['rows']} of {rows} rows")
    # Everything is committed now, so the same command only loads the models.
    loaded = runner.run(command).peak_mib
    bound = loaded + 1.25 * MEMORY_MIB
    print(f"  {rows} rows: {working.peak_mib:.0f} MiB, bound {bound:.0f} MiB", flush=True)
    return {"rows": rows, "peak_mib": working.peak_mib, "loaded_mib": loaded, "bound_mib": bound}


def page(cases: Sequence[report.Case], parts: Parts, peaks: Sequence[Mapping], head: str) -> str:
    """The benchmark's part of docs/benchmarks.md."""
    columns = next(iter(parts.values()))
    times = [[name, *(f"{ms:.3f}" for ms in row.values())] for name, row in parts.items()]
    levels = [
        [f"{peak['rows']:,}", *(f"{peak[key]:,.0f}" for key in ("loaded_mib", "peak_mib", "bound_mib"))]
        for peak in peaks
    ]
    return "\n\n".join(
        [
            head,
            report.comparison(cases),
            f"![Medians of each side]({CHART.name})",
            "Where our time goes, ms per row on one core:",
            report.table(["", *columns], times),
            f'Peak resident memory of `preprocess` with `engine.memory = "{MEMORY_MIB} MiB"`, MiB:',
            report.table(["rows", "models loaded", "peak", "bound"], levels, numbers_from=0),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000, help="rows of each set")
    parser.add_argument("--rounds", type=int, default=5, help="times that both sides run; medians count")
    parser.add_argument("--seed", type=int, help="seed of the pairs; drawn and printed if not given")
    parser.add_argument("--only", help="measure the cases whose name has this in it, and record nothing")
    runner.main("bench-data", bench, parser, quick={"rows": 64, "rounds": 1})


def bench(args: argparse.Namespace) -> None:
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    shutil.rmtree(FOLDER, ignore_errors=True)
    sets = {}
    for name, width, height in (("A", 500, 375), ("B", 1024, 768)):
        vocabulary = TOKENIZER / "vocab.json"
        sets[name] = pairs.draw_set(name, FOLDER / name, width, height, args.rows, seed, vocabulary)
        print(f"seed {seed}, set {name}: {sets[name]}", flush=True)
    cases, parts = [], {}
    for contest in list_contests(sets, seed):
        # A quick run leaves out the larger images.
        if (args.only and args.only not in contest.name) or (args.quick and contest.name.startswith("B:")):
            continue
        case, times = measure(contest, args.rounds, not args.force)
        cases.append(case)
        if times:
            parts[case.name] = times
    print(report.comparison(cases))
    if args.only:
        return
    print("memory", flush=True)
    peaks = measure_memory(sets["A"])
    if args.quick:
        return
    record(cases, parts, peaks, sets, args.rounds, seed)


def record(
    cases: Sequence[report.Case],
    parts: Parts,
    peaks: Sequence[Mapping],
    sets: Mapping[str, pairs.PairSet],
    rounds: int,
    seed: int,
) -> None:
    """Writes the JSON, the page's part and the chart; prints which goals were missed."""
    versions, machine = runner.versions(*PACKAGES), runner.machine()
    about = {"versions": versions, "machine": machine, "seed": seed}
    entries = [case.to_json() | {"parts_ms": parts.get(case.name, {})} | about for case in cases]
    peak = {"case": "peak memory", "unit": "MiB", "ours": peaks[-1]["peak_mib"], "peers": {}, "ratios": {}}
    report.write_json(runner.RESULTS / "data.json", [*entries, peak | {"runs": peaks} | about])

    described = "; ".join(f"set {name}: {one}" for name, one in sets.items())
    head = f"{report.measured_on(machine, versions)} Medians of {rounds} rounds, seed {seed}; {described}."
    CHART.write_text(report.bar_chart("Medians; longer is faster", cases), encoding="utf-8")
    report.redraw(PAGE, "bench-data", page(cases, parts, peaks, head))
    print(f"wrote {runner.RESULTS / 'data.json'}, {PAGE}, {CHART}")

    missed = [f"{case.name} against {name}" for case in cases for name in case.missed()]
    missed += [f"memory at {peak['rows']} rows" for peak in peaks if peak["peak_mib"] > peak["bound_mib"]]
    print("missed: " + "; ".join(missed) if missed else "every goal is reached")


if __name__ == "__main__":
    main()
