"""`make soak`: `tidemill preprocess` over millions of small pairs, with faults of every kind.

The process is killed, its disk gets full, its source vanishes; the same command continues each time. At the
end every row must have the outcome that it was drawn with, and memory and rate must be those of the
beginning. Writes target/bench/soak.json and redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benches import plots, report, runner, soak_check
from benches.runner import BenchError
from benches.soak_interruptions import Interruption, Kill, MissingSource, SmallDisk, enter_private_mounts
from benches.soak_machine import Machine, Work
from benches.soak_pairs import FAULTS, Pairs, draw_pairs, write_run_file
from benches.soak_run import Commit, Sample, Soak

FOLDER = runner.RESULTS / "soak"
DISK, RUN_FILE = FOLDER / "disk", FOLDER / "run.toml"
MODELS = runner.ROOT / "assets"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
CHART = runner.ROOT / "docs" / "benchmarks-soak"
ROWS_PER_UNIT, LEAST_UNITS = 4096, 48
# The disk's size, by rows; a row takes about 700 bytes, and files of killed processes stay.
DISK_BYTES_PER_ROW = 4096
KILLS = 3
# Memory and rate of the last tenth may differ from those of the first by this share.
GOAL = 0.05
# Points of memory in the chart.
POINTS = 1000
SETTINGS = {
    # The smallest that this VAE takes, and no text encoder: the pipeline is what is tested.
    "prepare.resolutions": "[32]",
    "encode.embeddings": '"none"',
    "engine.device": '"cpu"',
    "engine.memory": '"512 MiB"',
    "models.path": f'"{MODELS}"',
}


@dataclass(frozen=True)
class Change:
    """A figure in the first and in the last tenth of the rows."""

    name: str
    first: float
    last: float
    has_goal: bool = True

    @property
    def share(self) -> float:
        return self.last / self.first - 1

    @property
    def is_missed(self) -> bool:
        return self.has_goal and abs(self.share) > GOAL

    def cells(self) -> list[str]:
        goal = f"within {GOAL:.0%}" if self.has_goal else ""
        figures = [report.number(self.first), report.number(self.last), f"{self.share:+.1%}"]
        return [self.name, *figures, goal + (", missed" if self.is_missed else "")]


def plan_interruptions(pairs: Pairs, disk: SmallDisk | None, seed: int) -> list[tuple[int, Interruption]]:
    """Interruptions in a drawn order, each with the number of committed units at which it comes.

    None comes in the first tenth or in the second half: one process makes each.
    """
    rng = random.Random(seed)
    interruptions = [*[Kill()] * KILLS, MissingSource(pairs.folder), *([disk] if disk else [])]
    rng.shuffle(interruptions)
    points = rng.sample(range(pairs.units // 10 + 1, pairs.units // 2), len(interruptions))
    return list(zip(sorted(points), interruptions, strict=True))


@dataclass(frozen=True)
class Part:
    """Consecutive rows, and what the machine could do while they were processed."""

    # Rows that were done before the middle of the part.
    done: float
    rows: int
    work: Work

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.work.seconds

    @property
    def speed(self) -> float:
        """The machine's, in convolutions per second."""
        return self.work.convolutions / self.work.seconds

    @property
    def rows_per_convolution(self) -> float:
        return self.rows / self.work.convolutions


def measure_parts(commits: Iterable[Commit], machine: Machine, count: int) -> list[Part]:
    """Equal parts of the rows. The time before the first commit of each process does not count."""
    ordered = sorted(commits, key=lambda commit: commit.at)
    total = sum(commit.rows for commit in ordered)
    rows, work = [0] * count, [Work()] * count
    done = ordered[0].rows
    for before, commit in pairwise(ordered):
        done += commit.rows
        if before.process == commit.process:
            part = min(count - 1, int(count * done / (total + 1)))
            rows[part] += commit.rows
            work[part] += machine.between(before.at, commit.at)
    return [Part((i + 0.5) / count * total, rows[i], work[i]) for i in range(count) if rows[i]]


def after_first_commit(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of processes that have committed a unit, and so have loaded their models."""
    at_start: dict[int, int] = {}
    for sample in samples:
        at_start.setdefault(sample.process, sample.units)
    return [sample for sample in samples if sample.units > at_start[sample.process]]


def measure_changes(soak: Soak, units: int) -> list[Change]:
    parts = measure_parts(soak.commits.values(), soak.machine, 10)
    first, last = parts[0], parts[-1]
    memory = measure_memory(soak.samples, units)
    return [
        Change("rows/s", first.rows_per_second, last.rows_per_second, has_goal=False),
        Change("the machine's speed, convolutions/s", first.speed, last.speed, has_goal=False),
        Change("rows per convolution", first.rows_per_convolution, last.rows_per_convolution),
        Change("resident memory, MiB", memory[0], memory[9]),
        Change(
            "resident memory of the last process (sixth and last tenth)", memory[5], memory[9], has_goal=False
        ),
    ]


def measure_memory(samples: Sequence[Sample], units: int) -> list[float]:
    """Median resident memory, MiB, in each tenth of the units."""
    tenths: list[list[float]] = [[] for _ in range(10)]
    for sample in after_first_commit(samples):
        tenths[min(9, 10 * sample.units // units)].append(sample.rss_mib)
    return [median(tenth) for tenth in tenths]


def inspect() -> dict:
    """What `tidemill inspect` says of the dataset, after it has compared every file with its checksum."""
    command = [str(runner.TIDEMILL), "inspect", str(DISK / "out/dataset"), "--verify", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"inspect ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def check(result: dict, pairs: Pairs) -> None:
    """Raises `BenchError` unless preprocess, inspect and the files agree with what was drawn."""
    reported = {**result["rows"], "rejected": result["rejected"], "quarantined": result["quarantined"]}
    soak_check.check_counts("preprocess", reported, pairs)
    soak_check.check_counts("inspect", inspect()["totals"]["rows"], pairs)
    soak_check.check_dataset(DISK / "out/dataset", pairs)


def page(head: str, pairs: Pairs, soak: Soak, changes: Sequence[Change], result: dict, seconds: float) -> str:
    outcomes = [[outcome, f"{rows:,}"] for outcome, rows in pairs.count_outcomes().items()]
    interruptions = [f"{name} after {units}" for units, name in soak.interruptions]
    stages = ", ".join(
        f"{stage['stage']} {stage['utilisation']:.0%}" for stage in result["this_run"]["stages"]
    )
    parts = [
        head,
        report.table(["", "first tenth", "last tenth", "change", "goal"], [c.cells() for c in changes]),
        f"{seconds / 60:.0f} minutes in {len(interruptions) + 1} processes, {pairs.units} units: "
        f"{', '.join(interruptions)}. "
        f"In the last process the threads of each stage were busy: {stages}.",
        f"{len(FAULTS)} kinds of faults; each row's outcome is the one that it was drawn with:",
        report.table(["outcome", "rows"], outcomes),
        f"![Memory and rate by rows done]({CHART.name}.svg)",
    ]
    return "\n\n".join(parts)


def draw_chart(soak: Soak, pairs: Pairs, folder: Path) -> None:
    rows = pairs.rows / pairs.units
    samples = after_first_commit(soak.samples)
    # As many as a chart can show.
    samples = samples[:: len(samples) // POINTS + 1]
    memory = [(sample.units * rows, sample.rss_mib) for sample in samples]
    parts = measure_parts(soak.commits.values(), soak.machine, 50)
    rates = [(part.done, part.rows_per_second, part.rows_per_convolution) for part in parts]
    interruptions = [(units * rows, name) for units, name in soak.interruptions]
    plots.draw_soak(folder / CHART.name, memory, rates, interruptions)


def open_disk(rows: int) -> SmallDisk | None:
    """A disk for the dataset that may be made full; None where this process may not mount one."""
    disk = SmallDisk(DISK, DISK_BYTES_PER_ROW * rows)
    if enter_private_mounts("benches.soak"):
        disk.mount()
        return disk
    print("no full disk: neither root nor a user may mount a tmpfs here (unshare --mount)", flush=True)
    DISK.mkdir(parents=True)
    return None


def bench(args: argparse.Namespace) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    disk = open_disk(args.rows)
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    rows_per_unit = max(1, min(ROWS_PER_UNIT, args.rows // LEAST_UNITS))
    started = time.monotonic()
    vocabulary = MODELS / "tokenizer" / "vocab.json"
    pairs = draw_pairs(FOLDER / "pairs", args.rows, rows_per_unit, seed, args.distinct, vocabulary)
    print(f"seed {seed}: {args.rows} rows drawn in {time.monotonic() - started:.0f} s", flush=True)
    write_run_file(RUN_FILE, pairs, DISK / "out", SETTINGS)
    command = [str(runner.TIDEMILL), "preprocess", str(RUN_FILE), "--json", "--quiet"]
    soak = Soak(command, DISK / "out", FOLDER / "log")
    started = time.monotonic()
    result = soak.run(plan_interruptions(pairs, disk, seed))
    seconds = time.monotonic() - started
    check(result, pairs)
    report_soak(args, seed, pairs, soak, result, seconds)


def report_soak(
    args: argparse.Namespace, seed: int, pairs: Pairs, soak: Soak, result: dict, seconds: float
) -> None:
    changes = measure_changes(soak, pairs.units)
    versions, machine = runner.versions("pyarrow", "torch"), runner.machine()
    head = f"{report.measured_on(machine, versions)} {pairs.rows:,} rows, seed {seed}."
    draw_chart(soak, pairs, FOLDER if args.quick else CHART.parent)
    if not args.quick:
        about = {"versions": versions, "machine": machine, "seed": seed, "rows": pairs.rows}
        found = {"changes": [asdict(change) for change in changes], "interruptions": soak.interruptions}
        found["memory_mib"] = measure_memory(soak.samples, pairs.units)
        entry = found | {"faults": pairs.count_faults(), "seconds": seconds, "result": result} | about
        report.write_json(runner.RESULTS / "soak.json", [entry])
    report.publish(PAGE, "bench-soak", page(head, pairs, soak, changes, result, seconds), args.quick)
    missed = [change.name for change in changes if change.is_missed]
    print("missed: " + "; ".join(missed) if missed else "every goal is reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--distinct", type=int, default=4096, help="images that are drawn")
    parser.add_argument("--seed", type=int, help="of pairs and interruptions; drawn and printed if not given")
    runner.main("soak", bench, parser, quick={"rows": 20_000, "distinct": 256})


if __name__ == "__main__":
    main()
