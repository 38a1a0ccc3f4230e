"""`make bench-stream`: the training stream against other loaders, and against a memory map.

Draws rows of SD2's size at 256 pixels, writes them in each loader's format, runs Tidemill and the
peers alternately, each in a fresh process, writes target/bench/stream.json and redraws
docs/benchmarks.md.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benches import report, runner
from benches.peers.stream_rows import BATCH, ROW_BYTES, rows
from benches.runner import Outcome, peer

FOLDER = runner.RESULTS / "stream"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
CHART = runner.ROOT / "docs" / "benchmarks-stream.svg"
SYNTHETIC = runner.ROOT / "target" / "release" / "examples" / "synthetic"
S3_SERVER = runner.ROOT / "target" / "release" / "examples" / "s3_server"

PACKAGES = ("torch", "litdata", "mosaicml-streaming", "ray", "datasets", "obstore", "pyarrow", "numpy")
FIGURE = "samples_per_second"
# Rows in a row group, for loaders that read Parquet.
ROW_GROUP = 256
# Each peer's modules with their numbers of workers (the best median counts), and the ratio to
# reach.
PEERS = {
    "litdata": ([("stream_litdata", 0), ("stream_litdata", 2)], 3.0),
    "mosaicml-streaming": ([("stream_mosaicml", 0), ("stream_mosaicml", 2)], 4.0),
    "Ray Data": ([("stream_ray", 2)], 7.0),
    "HF datasets": ([("stream_hf", 0)], 15.0),
    "gather from a memory map": ([("stream_mmap", 0)], 0.8),
}
# The same rows over S3 on loopback: latency of each answer, requests in flight, and the clients
# that only fetch the row groups.
LATENCY_MS, IN_FLIGHT = 20, 16
GETS = {"ranged GETs, obstore": ("obstore", 0.8), "ranged GETs into the same memory": ("http", None)}
SECONDS = {"first_batch_s": "first batch", "resume_s": "resume"}
SECONDS_ALLOWED = 0.05


def draw_rows(count: int) -> None:
    """The rows as a dataset, flat, and as plain Parquet.

    Litdata and MDS are written by their own modules.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "parquet").mkdir(parents=True)
    subprocess.run([SYNTHETIC, FOLDER / "tidemill", str(count)], check=True)
    with (FOLDER / "rows.f16").open("wb") as flat:
        for latents in sorted((FOLDER / "tidemill").glob("data/*/*/latents-256.parquet")):
            tables = [pq.read_table(path).column(3) for path in (latents, latents.with_name("text.parquet"))]
            for row in zip(*tables, strict=True):
                flat.writelines(part.as_buffer() for part in row)
    schema = pa.schema({"latents": pa.binary(), "text": pa.binary()})
    parts = np.array_split(np.arange(count), 8)
    every = rows(FOLDER)
    for number, part in enumerate(parts):
        some = [next(every) for _ in part]
        table = pa.table({name: [row[name].tobytes() for row in some] for name in schema.names}, schema)
        path = FOLDER / "parquet" / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP, compression="none")


def measure(count: int, rounds: int, check_load: bool, only: str) -> dict[str, list[Outcome]]:
    """The outcomes of each side; of a peer those of its fastest configuration."""
    ours = peer("stream_tidemill", FOLDER, count, figure=FIGURE)
    # Peers write their formats, and everything is read once, before measuring.
    runner.run(ours)
    outcomes = {"ours": []}
    for name, (forms, _) in PEERS.items():
        if only not in name:
            continue
        print(name, flush=True)
        commands = {
            f"{module} {argument}": peer(module, FOLDER, count, argument, figure=FIGURE)
            for module, argument in forms
        }
        for command in commands.values():
            runner.run(command)
        found = runner.alternate(ours, commands, rounds, check_load)
        outcomes["ours"] += found.pop("ours")
        outcomes[name] = max(found.values(), key=lambda runs: median(get_figures(runs)))
    return outcomes


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Starts an S3 server with the dataset in a bucket; yields the environment variables for it."""
    command = [S3_SERVER, FOLDER / "tidemill", str(LATENCY_MS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        yield json.loads(server.stdout.readline())
        server.stdin.close()


def measure_s3(count: int, rounds: int, check_load: bool) -> report.Case:
    """Tidemill against plain GET requests for the same row groups."""
    print("S3", flush=True)
    with s3_server() as environment:
        common = {"figure": FIGURE, "environment": environment}
        ours = peer("stream_s3_tidemill", str(count), str(IN_FLIGHT), **common)
        gets = {
            name: peer("stream_s3_gets", FOLDER / "tidemill", str(IN_FLIGHT), client, **common)
            for name, (client, _) in GETS.items()
        }
        found = runner.alternate(ours, gets, rounds, check_load)
    runs = {name: get_figures(runs) for name, runs in found.items()}
    goals = {name: goal for name, (_, goal) in GETS.items() if goal is not None}
    name = f"the same from S3, answers {LATENCY_MS} ms late, {IN_FLIGHT} at a time"
    return report.Case(name, "samples/s", runs.pop("ours"), runs, goals)


def get_figures(runs: Sequence[Outcome], figure: str = FIGURE) -> list[float]:
    return [run.result[figure] for run in runs]


def page(cases: Sequence[report.Case], outcomes: Mapping[str, Sequence[Outcome]], head: str) -> str:
    names = {"ours": report.OURS}
    times = [
        [names.get(name, name), *(f"{median(get_figures(runs, key)):.3f}" for key in SECONDS)]
        for name, runs in outcomes.items()
    ]
    return "\n\n".join(
        [
            head,
            report.comparison(cases),
            f"![Medians of each side]({CHART.name})",
            "Seconds to the first batch of a fresh loader, and of one that resumes at 60 % of an epoch:",
            report.table(["", *SECONDS.values()], times),
        ]
    )


def missed(cases: Sequence[report.Case], outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    slow = [
        name for key, name in SECONDS.items() if median(get_figures(outcomes["ours"], key)) > SECONDS_ALLOWED
    ]
    return [f"against {name}" for case in cases for name in case.missed()] + slow


def bench(args: argparse.Namespace) -> None:
    draw_rows(args.rows)
    outcomes = measure(args.rows, args.rounds, not args.force, args.only)
    ours = get_figures(outcomes["ours"])
    peers = {name: get_figures(runs) for name, runs in outcomes.items() if name != "ours"}
    goals = {name: goal for name, (_, goal) in PEERS.items() if name in peers}
    name = f"{args.rows} rows of {ROW_BYTES // 1000} KB, batch {BATCH}"
    case = report.Case(name, "samples/s", ours, peers, goals)
    # The quick run measures S3, too: it needs no peer.
    cases = (
        [case] if args.only and not args.quick else [case, measure_s3(args.rows, args.rounds, not args.force)]
    )
    print(report.comparison(cases))
    times = {
        key: {name: median(get_figures(runs, key)) for name, runs in outcomes.items()} for key in SECONDS
    }
    print(json.dumps(times))
    if args.only:
        return
    versions, machine = runner.versions(*PACKAGES), runner.machine()
    entry = case.to_json() | times | {"versions": versions, "machine": machine}
    report.write_json(runner.RESULTS / "stream.json", [entry, *(case.to_json() for case in cases[1:])])
    head = f"{report.measured_on(machine, versions)} Medians of {args.rounds} rounds with each peer."
    CHART.write_text(report.bar_chart("Medians; longer is faster", cases), encoding="utf-8")
    report.redraw(PAGE, "bench-stream", page(cases, outcomes, head))
    goals_missed = missed(cases, outcomes)
    print("missed: " + "; ".join(goals_missed) if goals_missed else "every goal is reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5, help="times that both sides run; medians count")
    parser.add_argument("--only", default="", help="measure these peers, and record nothing")
    quick = {"rows": 512, "rounds": 1, "only": "memory map"}
    runner.main("bench-stream", bench, parser, quick)


if __name__ == "__main__":
    main()
