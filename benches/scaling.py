"""`make bench-scaling`: what encoders on a Ray cluster give, by their number.

Encoders and trainers sleep (benches/sleeping.py), so that two cores can be a cluster; what hands units out
and moves rows is what runs anywhere: the `Feeder` of `tidemill.ray` online, Ray Data offline. Writes
target/bench/scaling.json and redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from itertools import accumulate, takewhile
from pathlib import Path
from statistics import correlation, linear_regression, median
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from tidemill.ray.feeder import Encoders, Feeder
from tidemill.ray.offline import COMMIT_CPUS
from tidemill.ray.pace import UNITS_EACH
from tidemill.ray.stages import in_actors

from benches import plots, report, runner, sleeping
from benches.sleeping import Memory, Rank, Speeds, trained

PAGE = runner.ROOT / "docs" / "benchmarks.md"
DOCS = PAGE.parent
MODES = runner.RESULTS / "modes.json"

SPEEDS = Speeds(rows=64, prepare_s=0.05, encode_s=0.5)
# As fast, but in units twice as large: on two cores Ray Data runs no more tasks a second.
OFFLINE = replace(SPEEDS, rows=128, prepare_s=0.1, encode_s=1.0)
# SD2's rows at 256 pixels: bytes of pixels and token ids; of moments and text.
LARGE = replace(SPEEDS, prepared_bytes=197_000, encoded_bytes=174_000)
# The trainers take what so many encoders give. No pool is just as large, for then chance decides.
NEEDED = 9
RANKS, WINDOW = 2, 2
# Tasks that read and prepare, at a time.
PREPARING = 6
# Until an encoder of a growing pool is there.
LOAD_S = 2.0
WARM_S = 4.0

GOALS = {"linear": 0.99, "plateau": 0.97, "busy": 0.95}
# Images/s on 32 A100, with 40 A10G online, at 256 pixels. Co-located is what their authors call online
# processing with the Torch DataLoader.
PUBLISHED = {"offline": 4068.0, "online": 4075.0, "co-located": 2811.0}
IMAGES = {"Rates and the pool": "scaling", "Modes beside published ones": "published"}


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long."""

    online: Sequence[int] = (1, 2, 4, 6, 8, 10, 12, 16)
    offline: Sequence[int] = (1, 2, 4, 8, 16)
    large: Sequence[int] = (8, 12)
    most: int = 16
    seconds: float = 15.0
    growth_s: float = 120.0
    rounds: int = 1


QUICK = Plan(online=(1, 2, 4, 12), offline=(1, 4), large=(), seconds=5.0, growth_s=40.0)


@dataclass(frozen=True)
class Reading:
    """After a window: rows trained so far; encoders, and the seconds they have been there and busy."""

    at: float
    rows: int
    encoders: int
    seconds: float
    busy: float


@dataclass(frozen=True)
class Online:
    """Images/s that so many encoders give the trainers, and the share of their time that these encode."""

    encoders: int
    rate: float
    busy: float


@dataclass(frozen=True)
class Found:
    """All that was measured; rates by the number of encoders."""

    memory: float
    online: list[Online]
    offline: dict[int, float]
    large: list[Online]
    growth: list[Reading]
    offline_growth: dict[float, float]

    @property
    def below(self) -> list[Online]:
        """Those that are too few for the trainers."""
        return [point for point in self.online if point.encoders < NEEDED]

    @property
    def reached(self) -> dict[str, float]:
        """What GOALS are for: R2 below saturation, the least rate above it, the least busy below."""
        linear = correlation([p.encoders for p in self.below], [p.rate for p in self.below]) ** 2
        plateau = min(p.rate for p in self.online if p.encoders > NEEDED) / self.memory
        return {"linear": linear, "plateau": plateau, "busy": min(p.busy for p in self.below)}


def trainers() -> float:
    """Images/s that all ranks take together."""
    return NEEDED * SPEEDS.encoder


@contextmanager
def cluster(encoders: int) -> Iterator[None]:
    """GPUs that are there by name only, one for each encoder."""
    ray.init(
        # Not one that runs here for something else.
        address="local",
        num_cpus=PREPARING + 2,
        num_gpus=encoders,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def observed(windows: Iterator[int], ask: Callable[[], ray.ObjectRef]) -> Iterator[Reading]:
    """What trainers and encoders have done, window by window. Nobody waits for the answers."""
    rows, before, asked = 0, 0.0, None
    for more in windows:
        if asked is not None:
            yield Reading(before, rows, **ray.get(asked))
        rows, before, asked = rows + more, time.monotonic(), ask()


def steady(readings: Iterator[Reading], encoders: int, seconds: float) -> list[Reading]:
    """The readings of so many seconds, from a while after all encoders are there."""
    kept: list[Reading] = []
    warm_at = math.inf
    for reading in readings:
        if reading.encoders == encoders:
            warm_at = min(warm_at, reading.at + WARM_S)
        if reading.at >= warm_at:
            kept.append(reading)
            if reading.at >= kept[0].at + seconds:
                break
    return kept


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the line through points: a rate that depends little on when in a burst it begins and ends."""
    return linear_regression(xs, ys).slope


def rate(readings: Sequence[Reading]) -> float:
    return slope([reading.at for reading in readings], [reading.rows for reading in readings])


def memory(seconds: float) -> float:
    """Images/s of trainers whose rows are there already."""
    nobody = ray.put({"encoders": 0, "seconds": 0.0, "busy": 0.0})
    with ended([Rank(Memory(SPEEDS.rows), WINDOW, 1) for _ in range(RANKS)]) as ranks:
        return rate(steady(observed(trained(ranks, trainers()), lambda: nobody), 0, seconds))


@contextmanager
def ended(ranks: list[Rank]) -> Iterator[list[Rank]]:
    """Ranks whose threads end with what is done with them."""
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


@contextmanager
def fed(workers: int | str, speeds: Speeds) -> Iterator[Iterator[Reading]]:
    """Trainers whose feeder has so many encoders, and is asked for as much as keeps the most of them busy."""
    most = int(str(workers).rpartition("..")[2])
    pool = {"workers": workers, "cpus": 0, "gpus": 1}
    run = {
        "engine": {"device": "auto", "prepare": {"workers": 0, "cpus": 1}, "encode": pool},
        "speeds": speeds,
    }
    feeder = Feeder.remote(run, sleeping.prepared, sleeping.Encoder)
    ahead = max(2, math.ceil((UNITS_EACH + 2) * most / (RANKS * WINDOW)))
    try:
        with ended([Rank(Encoders(feeder), WINDOW, ahead) for _ in range(RANKS)]) as ranks:
            yield observed(trained(ranks, trainers()), feeder.encoders.remote)
    finally:
        ray.kill(feeder)


def online(count: int, speeds: Speeds, seconds: float) -> Online:
    """Trainers fed by so many encoders."""
    with fed(count, speeds) as readings:
        some = steady(readings, count, seconds)
    return Online(count, rate(some), slope([r.seconds for r in some], [r.busy for r in some]))


def growing(most: int, seconds: float) -> list[Reading]:
    """Trainers fed by as many encoders as the feeder finds right, from the first one on."""
    with fed(f"1..{most}", replace(SPEEDS, load_s=LOAD_S)) as readings:
        first = next(readings)
        return [first, *takewhile(lambda reading: reading.at < first.at + seconds, readings)]


def encoded(fewest: int, most: int, units: int, speeds: Speeds) -> list[tuple[float, int]]:
    """When units were done, and their rows, by `tidemill preprocess` as tidemill.ray.offline runs it."""
    source = sleeping.Units(units, speeds)
    read = ray.data.read_datasource(source, override_num_blocks=units, num_cpus=1)
    read.context.target_max_block_size = None
    arrow = {"batch_size": None, "batch_format": "pyarrow"}
    prepared = read.map_batches(partial(sleeping.prepare, speeds), num_cpus=1, **arrow)
    compute = ActorPoolStrategy(min_size=fewest, max_size=most)
    encoded = in_actors(prepared, sleeping.Encode, speeds, compute=compute, num_cpus=0, num_gpus=1)
    done = encoded.map_batches(sleeping.commit, num_cpus=COMMIT_CPUS, **arrow)
    return sorted((row["at"], row["rows"]) for row in done.iter_rows())


def offline(count: int, seconds: float) -> float:
    """Rows/s of so many encoders."""
    units = count * math.ceil((seconds + WARM_S) / OFFLINE.encode_s)
    rows = encoded(count, count, units, OFFLINE)
    # Without the start, and the end, at which encoders run out of units.
    some = rows[len(rows) // 4 : -max(1, len(rows) // 10)]
    return slope([at for at, _ in some], list(accumulate(rows for _, rows in some)))


def growing_offline(most: int, seconds: float) -> dict[float, float]:
    """Seconds from the first unit until a pool that grows from one does some shares of what `most` do."""
    units = math.ceil(most * seconds / OFFLINE.encode_s / 2)
    rows = encoded(1, most, units, replace(OFFLINE, load_s=LOAD_S))
    reached: dict[float, float] = {}
    recent: deque[tuple[float, int]] = deque()
    for at, count in rows:
        recent.append((at, count))
        while recent[0][0] < at - WARM_S:
            recent.popleft()
        doing = sum(count for _, count in recent) / WARM_S / (most * OFFLINE.encoder)
        for share in (0.5, 0.9):
            if doing >= share:
                reached.setdefault(share, at - rows[0][0])
    return reached


def measure(plan: Plan) -> Found:
    def said(value: Any) -> Any:
        print(f"  {value}", flush=True)
        return value

    with cluster(plan.most):
        alone = said(memory(plan.seconds))
        online_runs = [
            [said(online(count, SPEEDS, plan.seconds)) for count in plan.online] for _ in range(plan.rounds)
        ]
        offline_runs = [
            [said(offline(count, plan.seconds)) for count in plan.offline] for _ in range(plan.rounds)
        ]
        large = [said(online(count, LARGE, plan.seconds)) for count in plan.large]
        growth = growing(plan.most, plan.growth_s)
        offline_growth = said(growing_offline(plan.most, plan.growth_s))
    points = [
        Online(runs[0].encoders, median(run.rate for run in runs), median(run.busy for run in runs))
        for runs in zip(*online_runs, strict=True)
    ]
    rates = [median(runs) for runs in zip(*offline_runs, strict=True)]
    return Found(alone, points, dict(zip(plan.offline, rates, strict=True)), large, growth, offline_growth)


def tables(found: Found) -> str:
    rows = [
        [
            str(point.encoders),
            report.number(point.rate),
            f"{point.busy:.1%}",
            report.number(found.offline[point.encoders]) if point.encoders in found.offline else "",
        ]
        for point in found.online
    ]
    names = {
        "linear": f"R2 of the line below {NEEDED} encoders",
        "plateau": "least rate above them, of that from memory",
        "busy": "least share of time busy below them",
    }
    goals = [
        [names[key], f"{value:.4f}", f"{GOALS[key]}" + ("" if value >= GOALS[key] else ", missed")]
        for key, value in found.reached.items()
    ]
    columns = ["encoders", "online, img/s", "busy", "offline, rows/s"]
    return "\n\n".join([report.table(columns, rows, 0), report.table(["", "reached", "goal"], goals)])


def sentences(found: Found) -> list[str]:
    """What is no table."""
    growth, start = found.growth, found.growth[0].at
    sizes = [reading.encoders for reading in growth]
    enough = next((f"after {r.at - start:.0f} s" for r in growth if r.encoders >= NEEDED), "never")
    end = [reading for reading in growth if reading.at > growth[-1].at - 30]
    said = [
        f"From memory the trainers take {report.number(found.memory)} img/s; an encoder gives "
        f"{report.number(SPEEDS.encoder)} rows/s, so {NEEDED} are needed.",
        f"A pool that may grow from 1 has {NEEDED} {enough}, {max(sizes)} at most, and {sizes[-1]} at the "
        f"end, {growth[-1].at - start:.0f} s after its first window; in the last 30 s the trainers take "
        f"{report.number(rate(end))} img/s.",
    ]
    shares = [f"{share:.0%} after {seconds:.0f} s" for share, seconds in found.offline_growth.items()]
    reached = " and ".join(shares) or "less than half"
    said.append(f"Offline, a pool that may grow from 1 reaches of all encoders' rate {reached}.")
    large = ", ".join(
        f"{p.encoders} encoders {report.number(p.rate)} img/s, {p.busy:.1%} busy" for p in found.large
    )
    return [*said, f"With rows of {LARGE.encoded_bytes // 1000} KB: {large}."] if large else said


def charts(found: Found, ours: tuple[str, Mapping[str, float]], folder: Path) -> None:
    online_line = {point.encoders: point.rate for point in found.online}
    sizes = [(reading.at - found.growth[0].at, reading.encoders) for reading in found.growth]
    plots.scaling(folder / "benchmarks-scaling", online_line, found.offline, found.memory, sizes, NEEDED)
    plateau = {"offline": found.memory, "online": found.reached["plateau"] * found.memory}
    sides = {
        "Anyscale, 32 A100 (online + 40 A10G)": PUBLISHED,
        "Tidemill, stages that sleep": plateau,
        ours[0]: ours[1],
    }
    plots.modes(folder / "benchmarks-published", sides)


def our_modes() -> tuple[str, dict[str, float]]:
    """What `make bench-modes` has measured, and on what."""
    if not MODES.exists():
        raise runner.BenchError(f"there is no {MODES}; run `make bench-modes` first")
    [case] = json.loads(MODES.read_text())
    rates = {
        "offline": case["peers"]["offline"],
        "online": case["ours"],
        "co-located": case["peers"]["colocated"],
    }
    return f"Tidemill, everything on {case['machine']['cores']} cores", rates


def bench(args: argparse.Namespace) -> None:
    modes = our_modes()
    found = measure(QUICK if args.quick else Plan(rounds=args.rounds, seconds=args.seconds))
    body = [tables(found), *sentences(found)]
    print("\n\n".join(body))
    charts(found, modes, runner.RESULTS if args.quick else DOCS)
    if args.quick:
        return
    versions, machine = runner.versions("ray"), runner.machine()
    about = {"versions": versions, "machine": machine, "rounds": args.rounds}
    report.write_json(runner.RESULTS / "scaling.json", [asdict(found) | found.reached | about])
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    rounds = "Once" if args.rounds == 1 else f"Medians of {args.rounds} rounds"
    head = (
        f"Measured on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {named}. "
        f"{rounds}, {args.seconds:g} s for each number of encoders."
    )
    drawn = [f"![{name}](benchmarks-{file}.svg)" for name, file in IMAGES.items()]
    report.redraw(PAGE, "bench-scaling", "\n\n".join([head, *body, *drawn]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=1, help="times that each pool is measured; medians count"
    )
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="for each pool")
    parser.add_argument("--quick", action="store_true", help="a few, for seconds; charts go to target/bench")
    runner.main("bench-scaling", bench, parser)


if __name__ == "__main__":
    main()
