"""`make bench-overlap`: how much of the communication between ranks hides behind computation.

Trains the quickstart's U-Net on two ranks over Gloo with several bucket sizes, alternately, and
compares the bytes on the loopback interface with the minimum that a run reports. Writes
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
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
QUICK_CASES = ("the default", '`sharding = "none"`')


@dataclass(frozen=True)
class Run:
    """Mean milliseconds and megabytes of a step."""

    gradients_ms: float
    gradients_exposed_ms: float
    weights_ms: float
    weights_exposed_ms: float
    ranks_ms: float
    step_ms: float
    # Megabytes that each rank sends: the minimum that the run reports at its start, and as counted.
    least_mb: float
    sent_mb: float


def base_settings(output: Path) -> dict[str, object]:
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
    command = [TIDEMILL, "preprocess", *to_command_line(base_settings(FOLDER)), "--quiet"]
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


def loopback_bytes() -> int:
    """Bytes sent over the loopback interface so far, including headers and answers."""
    counters = Path("/proc/net/dev").read_text()
    [line] = [line for line in counters.splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def train(case: Mapping[str, object], steps: int) -> Run:
    output = FOLDER / "run"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    (output / "dataset").symlink_to(FOLDER / "dataset")
    values = base_settings(output) | {"train.phase": [{"resolution": 64, "steps": steps}]} | dict(case)
    command = [str(TIDEMILL), "train", *to_command_line(values), "--workers", str(RANKS), "--json"]
    environment = {**os.environ, "TIDEMILL_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    with (output / "stderr.log").open("w+") as log:
        options = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": log}
        process = subprocess.Popen(command, **options, text=True)
        at_steps = (steps // 4, steps)
        counted = count_bytes_at_steps(output / "metrics.jsonl", at_steps, process, loopback_bytes)
        code = process.wait(timeout=runner.LIMIT_S)
        log.seek(0)
        words = log.read()
    if code != 0 or len(counted) != 2:
        raise runner.BenchError(f"{' '.join(command)} ended with {code}:\n{words[-4000:]}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return compute_run(lines[steps // 4 :], words, counted)


def count_bytes_at_steps(
    metrics: Path, steps: Sequence[int], process: subprocess.Popen, sent_bytes: Callable[[], int]
) -> list[tuple[int, int]]:
    """Pairs of completed steps and bytes sent so far, taken when each of `steps` is reached."""
    counted: list[tuple[int, int]] = []
    while len(counted) < len(steps) and process.poll() is None:
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done >= steps[len(counted)]:
            counted.append((done, sent_bytes()))
        time.sleep(0.01)
    return counted


def compute_run(lines: Sequence[Mapping], words: str, counted: Sequence[tuple[int, int]]) -> Run:
    def ms(kind: str, what: str) -> float:
        return 1e3 * fmean(line["communication"][kind][what] or 0.0 for line in lines)

    (first, before), (last, after) = counted
    return Run(
        gradients_ms=ms("gradients", "busy"),
        gradients_exposed_ms=ms("gradients", "exposed"),
        weights_ms=ms("weights", "busy"),
        weights_exposed_ms=ms("weights", "exposed"),
        ranks_ms=ms("ranks", "exposed"),
        step_ms=1e3 * BATCH * fmean(1 / line["images_per_second"] for line in lines),
        least_mb=sum(read_reported_traffic(words)),
        sent_mb=(after - before) / (last - first) / RANKS / 1e6,
    )


def read_reported_traffic(log: str) -> tuple[float, float]:
    """Megabytes of gradients and of weights that each rank sends in a step, as a run reports it."""
    sizes = re.search(r"sends ([\d.]+ \w+) of gradients and ([\d.]+ \w+) of weights per step", log)
    if sizes is None:
        raise runner.BenchError(f"a run does not report what each rank sends:\n{log[-4000:]}")
    gradients, weights = sizes.groups()
    return to_megabytes(gradients), to_megabytes(weights)


def to_megabytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * UNITS[unit] / 1e6


def measure(cases: Mapping[str, Mapping], steps: int, rounds: int, check_load: bool) -> dict[str, Run]:
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            if check_load:
                runner.wait_until_idle()
            runs[name].append(train(case, steps))
            print(f"  round {number + 1}: {name} {runs[name][-1]}", flush=True)
    middle = {}
    for name, some in runs.items():
        medians = {f.name: median(getattr(run, f.name) for run in some) for f in fields(Run)}
        middle[name] = Run(**medians)
    return middle


def hidden_share(busy: float, exposed: float) -> str:
    return f"{max(0.0, 1 - exposed / busy):.0%}" if busy else ""


def format_table(runs: Mapping[str, Run]) -> str:
    columns = ["buckets", "gradients, ms", "hidden", "weights, ms", "hidden", "asking, ms", "step, ms"]
    rows = [
        [
            name,
            f"{run.gradients_ms:.1f}",
            hidden_share(run.gradients_ms, run.gradients_exposed_ms),
            f"{run.weights_ms:.1f}",
            hidden_share(run.weights_ms, run.weights_exposed_ms),
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
    cases = {name: CASES[name] for name in QUICK_CASES} if args.quick else CASES
    runs = measure(cases, args.steps, args.rounds, not args.force)
    versions, machine = runner.versions("torch"), runner.machine()
    about = {"versions": versions, "machine": machine, "rounds": args.rounds}
    named = {name: asdict(run) for name, run in runs.items()}
    if not args.quick:
        report.write_json(runner.RESULTS / "overlap.json", [named | about])
    head = (
        f"{report.measured_on(machine, versions)} "
        f"Medians of {args.rounds} rounds of {args.steps} steps of {BATCH} images, without the first quarter."
    )
    report.publish(PAGE, "bench-overlap", "\n\n".join([head, format_table(runs)]), args.quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3, help="times that each case runs; medians count")
    quick = {"rows": 200, "steps": 8, "rounds": 1}
    runner.main("bench-overlap", bench, parser, quick)


if __name__ == "__main__":
    main()
