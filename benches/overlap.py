"""`make bench-overlap`: how much of the communication between ranks hides behind computation.

Trains the quickstart's U-Net on two ranks over Gloo with several sizes of buckets, alternately, and
counts what crosses the loopback interface beside what the start of a run says must; writes
target/bench/overlap.json and redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from statistics import fmean, median

from tidemill.run_file import to_command_line

from benches import report, runner
from benches.runner import ROOT, TIDEMILL

FOLDER = runner.RESULTS / "overlap"
PAGE = ROOT / "docs" / "benchmarks.md"
RANKS = 2
BATCH = 64
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

CASES = {
    "one bucket": {"train.bucket_bytes": "1 GiB"},
    "4 MiB": {"train.bucket_bytes": "4 MiB"},
    "the default": {},
    "1 MiB": {"train.bucket_bytes": "1 MiB"},
    "256 KiB": {"train.bucket_bytes": "256 KiB"},
    "bf16 on the network": {"train.reduce_precision": "bf16"},
    "two micro-batches": {"train.micro_batch": BATCH // RANKS // 2},
    '`sharding = "none"`': {"train.sharding": "none"},
}


@dataclass(frozen=True)
class Run:
    """Means of a step's milliseconds and megabytes."""

    gradients_ms: float
    gradients_exposed_ms: float
    weights_ms: float
    weights_exposed_ms: float
    ranks_ms: float
    step_ms: float
    # Sent by each rank: at least, as the run says when it begins, and counted.
    least_mb: float
    sent_mb: float


def base(output: Path) -> dict[str, object]:
    return {
        "source.uri": f"{FOLDER}/pairs/*.parquet",
        "source.columns": {"image": "jpg", "caption": "caption", "key": "key"},
        "prepare.resolutions": [64],
        "models.path": str(ROOT / "assets"),
        "engine.device": "cpu",
        "train.precision": "bf16",
        "train.global_batch": BATCH,
        "train.micro_batch": BATCH // RANKS,
        "train.log_every": 1,
        "output": str(output),
    }


def prepare(rows: int) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    draw = [TIDEMILL, "synth", FOLDER / "pairs", "--rows", rows, "--files", 4, "-q"]
    subprocess.run([*map(str, draw)], check=True)
    command = [TIDEMILL, "preprocess", *to_command_line(base(FOLDER)), "--quiet"]
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


def loopback_bytes() -> int:
    """What has been sent over the loopback interface so far, headers and answers among it."""
    counters = Path("/proc/net/dev").read_text()
    [line] = [line for line in counters.splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def train(case: Mapping[str, object], steps: int) -> Run:
    output = FOLDER / "run"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    (output / "dataset").symlink_to(FOLDER / "dataset")
    values = base(output) | {"train.phase": [{"resolution": 64, "steps": steps}]} | dict(case)
    command = [str(TIDEMILL), "train", *to_command_line(values), "--workers", str(RANKS), "--json"]
    environment = {**os.environ, "TIDEMILL_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    with (output / "said").open("w+") as said:
        options = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": said}
        process = subprocess.Popen(command, **options, text=True)
        counted = count(output / "metrics.jsonl", (steps // 4, steps), process)
        code = process.wait(timeout=runner.LIMIT_S)
        said.seek(0)
        words = said.read()
    if code != 0 or len(counted) != 2:
        raise runner.BenchError(f"{' '.join(command)} ended with {code}:\n{words[-4000:]}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return read(lines[steps // 4 :], words, counted)


def count(metrics: Path, steps: Sequence[int], process: subprocess.Popen) -> list[tuple[int, int]]:
    """How many steps there are, and what has been sent, once there are as many as each of these."""
    counted: list[tuple[int, int]] = []
    while len(counted) < len(steps) and process.poll() is None:
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done >= steps[len(counted)]:
            counted.append((done, loopback_bytes()))
        time.sleep(0.01)
    return counted


def read(lines: Sequence[Mapping], words: str, counted: Sequence[tuple[int, int]]) -> Run:
    def ms(kind: str, what: str) -> float:
        return 1e3 * fmean(line["communication"][kind][what] or 0.0 for line in lines)

    (first, before), (last, after) = counted
    least = re.search(r"sends ([\d.]+ \w+) of gradients and ([\d.]+ \w+) of weights per step", words)
    if least is None:
        raise runner.BenchError(f"a run does not say what each rank sends:\n{words[-4000:]}")
    return Run(
        gradients_ms=ms("gradients", "busy"),
        gradients_exposed_ms=ms("gradients", "exposed"),
        weights_ms=ms("weights", "busy"),
        weights_exposed_ms=ms("weights", "exposed"),
        ranks_ms=ms("ranks", "exposed"),
        step_ms=1e3 * BATCH * fmean(1 / line["images_per_second"] for line in lines),
        least_mb=sum(megabytes(size) for size in least.groups()),
        sent_mb=(after - before) / (last - first) / RANKS / 1e6,
    )


def megabytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * UNITS[unit] / 1e6


def measure(steps: int, rounds: int, check_load: bool) -> dict[str, Run]:
    runs: dict[str, list[Run]] = {name: [] for name in CASES}
    for number in range(rounds):
        for name, case in CASES.items():
            if check_load:
                runner.wait_until_quiet()
            runs[name].append(train(case, steps))
            print(f"  round {number + 1}: {name} {runs[name][-1]}", flush=True)
    middle = {}
    for name, some in runs.items():
        medians = {f.name: median(getattr(run, f.name) for run in some) for f in fields(Run)}
        middle[name] = Run(**medians)
    return middle


def hidden(busy: float, exposed: float) -> str:
    return f"{max(0.0, 1 - exposed / busy):.0%}" if busy else ""


def table(runs: Mapping[str, Run]) -> str:
    columns = ["buckets", "gradients, ms", "hidden", "weights, ms", "hidden", "asking, ms", "step, ms"]
    rows = [
        [
            name,
            f"{run.gradients_ms:.1f}",
            hidden(run.gradients_ms, run.gradients_exposed_ms),
            f"{run.weights_ms:.1f}",
            hidden(run.weights_ms, run.weights_exposed_ms),
            f"{run.ranks_ms:.1f}",
            f"{run.step_ms:.0f}",
            f"{run.least_mb:.1f}",
            f"{run.sent_mb:.1f}",
        ]
        for name, run in runs.items()
    ]
    return report.table([*columns, "least to send, MB", "sent, MB"], rows)


def bench(args: argparse.Namespace) -> None:
    prepare(args.rows)
    runs = measure(args.steps, args.rounds, not args.force)
    versions, machine = runner.versions("torch"), runner.machine()
    about = {"versions": versions, "machine": machine, "rounds": args.rounds}
    named = {name: asdict(run) for name, run in runs.items()}
    report.write_json(runner.RESULTS / "overlap.json", [named | about])
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    head = (
        f"Measured on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {said}. "
        f"Medians of {args.rounds} rounds of {args.steps} steps of {BATCH} images, without the first quarter."
    )
    print(table(runs))
    report.redraw(PAGE, "bench-overlap", "\n\n".join([head, table(runs)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3, help="times that each case runs; medians count")
    runner.main("bench-overlap", bench, parser)


if __name__ == "__main__":
    main()
