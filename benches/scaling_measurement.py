"""Measurements of `make bench-scaling`: throughput on a Ray cluster by the number of encoders.

Encoders and trainers sleep (benches/sleeping_stages.py), so that two cores can stand for a cluster.
What assigns units and moves rows is the real thing: the `EncoderPool` of `tidemill.ray` online, Ray
Data offline.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, takewhile
from statistics import correlation, linear_regression, median
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from tidemill.ray.online.autoscaling import UNITS_PER_ENCODER
from tidemill.ray.online.encoder_pool import EncoderPool
from tidemill.ray.online.encoder_pool_client import EncoderPoolClient
from tidemill.ray.preprocess.driver import COMMIT_CPUS
from tidemill.ray.preprocess.encoder_actor import map_blocks_in_actors

from benches import sleeping_stages
from benches.sleeping_stages import MemorySource, Rank, Speeds, train

SPEEDS = Speeds(rows=64, prepare_s=0.05, encode_s=0.5)
# The same speed in units twice as large: on two cores Ray Data cannot run more tasks per second.
OFFLINE = replace(SPEEDS, rows=128, prepare_s=0.1, encode_s=1.0)
# Row sizes of SD2 at 256 pixels: bytes of pixels and token ids, and of moments and text embeddings.
LARGE = replace(SPEEDS, prepared_bytes=197_000, encoded_bytes=174_000)
# The trainers consume as much as this many encoders produce. No measured pool has exactly this
# size, because there chance would decide.
NEEDED = 9
RANKS, WINDOW = 2, 2
# Read and prepare tasks at a time.
PREPARING = 6
# Start-up time of an encoder in a growing pool.
LOAD_S = 2.0
WARM_S = 4.0


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long."""

    online: Sequence[int] = (1, 2, 4, 6, 8, 10, 12, 16)
    offline: Sequence[int] = (1, 2, 4, 8, 16)
    large: Sequence[int] = (8, 12)
    max_encoders: int = 16
    seconds: float = 15.0
    growth_s: float = 120.0
    rounds: int = 1


QUICK = Plan(online=(1, 2, 12), offline=(1,), large=(), max_encoders=12, seconds=5.0, growth_s=15.0)


@dataclass(frozen=True)
class Reading:
    """The state after a window: rows trained so far.

    Encoders, and the sums of their lifetimes and busy times.
    """

    at: float
    rows: int
    encoders: int
    seconds: float
    busy: float


@dataclass(frozen=True)
class Online:
    """Images/s that trainers get from a number of encoders, and the encoders' utilisation."""

    encoders: int
    rate: float
    busy: float


@dataclass(frozen=True)
class Results:
    """All measurements; rates by the number of encoders."""

    memory: float
    online: list[Online]
    offline: dict[int, float]
    large: list[Online]
    growth: list[Reading]
    offline_growth: dict[float, float]

    @property
    def below(self) -> list[Online]:
        """Measurements with fewer encoders than the trainers need."""
        return [point for point in self.online if point.encoders < NEEDED]

    @property
    def reached(self) -> dict[str, float]:
        """The figures that have goals.

        R2 of the line below saturation, the lowest rate above it, the lowest utilisation below it.
        """
        linear = correlation([p.encoders for p in self.below], [p.rate for p in self.below]) ** 2
        plateau = min(p.rate for p in self.online if p.encoders > NEEDED) / self.memory
        return {"linear": linear, "plateau": plateau, "busy": min(p.busy for p in self.below)}


def trainer_rate() -> float:
    """Images/s that all ranks consume together."""
    return NEEDED * SPEEDS.encoder


@contextmanager
def start_cluster(encoders: int) -> Iterator[None]:
    """A Ray cluster with one nominal GPU for each encoder."""
    ray.init(
        # A cluster of its own, even if another one runs on this machine.
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


def read_windows(windows: Iterator[int], ask_stats: Callable[[], ray.ObjectRef]) -> Iterator[Reading]:
    """Readings after each window.

    The stats of a window are fetched a window later, so that nothing waits.
    """
    rows, before, asked = 0, 0.0, None
    for more in windows:
        if asked is not None:
            yield Reading(before, rows, **ray.get(asked))
        rows, before, asked = rows + more, time.monotonic(), ask_stats()


def steady_readings(readings: Iterator[Reading], encoders: int, seconds: float) -> list[Reading]:
    """Readings over some seconds, which begin a while after all encoders have started."""
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
    """Slope of the regression line.

    This rate depends little on where in a burst the measurement begins.
    """
    return linear_regression(xs, ys).slope


def train_rate(readings: Sequence[Reading]) -> float:
    return slope([reading.at for reading in readings], [reading.rows for reading in readings])


def measure_memory(seconds: float) -> float:
    """Images/s of trainers whose rows are in memory already."""
    no_encoders = ray.put({"encoders": 0, "seconds": 0.0, "busy": 0.0})
    with closing_ranks([Rank(MemorySource(SPEEDS.rows), WINDOW, 1) for _ in range(RANKS)]) as ranks:
        readings = read_windows(train(ranks, trainer_rate()), lambda: no_encoders)
        return train_rate(steady_readings(readings, 0, seconds))


@contextmanager
def closing_ranks(ranks: list[Rank]) -> Iterator[list[Rank]]:
    """Stops the threads of the ranks at the end."""
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


@contextmanager
def train_with_pool(workers: int | str, speeds: Speeds) -> Iterator[Iterator[Reading]]:
    """Trainers with an encoder pool of this size or range.

    They prefetch enough to keep its maximum busy.
    """
    max_encoders = int(str(workers).rpartition("..")[2])
    pool_settings = {"workers": workers, "cpus": 0, "gpus": 1}
    run = {
        "engine": {"device": "auto", "prepare": {"workers": 0, "cpus": 1}, "encode": pool_settings},
        "speeds": speeds,
    }
    pool = EncoderPool.remote(run, sleeping_stages.prepare_unit, sleeping_stages.EncoderActor)
    ahead = max(2, math.ceil((UNITS_PER_ENCODER + 2) * max_encoders / (RANKS * WINDOW)))
    try:
        ranks = [Rank(EncoderPoolClient(pool), WINDOW, ahead) for _ in range(RANKS)]
        with closing_ranks(ranks):
            yield read_windows(train(ranks, trainer_rate()), pool.get_stats.remote)
    finally:
        ray.kill(pool)


def measure_online(count: int, speeds: Speeds, seconds: float) -> Online:
    """Trainers fed by a fixed number of encoders."""
    with train_with_pool(count, speeds) as readings:
        steady = steady_readings(readings, count, seconds)
    busy = slope([reading.seconds for reading in steady], [reading.busy for reading in steady])
    return Online(count, train_rate(steady), busy)


def measure_growth(max_encoders: int, seconds: float) -> list[Reading]:
    """Trainers fed by an autoscaling pool that begins with one encoder."""
    with train_with_pool(f"1..{max_encoders}", replace(SPEEDS, load_s=LOAD_S)) as readings:
        first = next(readings)
        return [first, *takewhile(lambda reading: reading.at < first.at + seconds, readings)]


def preprocess(fewest: int, most: int, units: int, speeds: Speeds) -> list[tuple[float, int]]:
    """Commit times of units and their rows, with the pipeline of tidemill.ray.preprocess.driver."""
    source = sleeping_stages.UnitDatasource(units, speeds)
    read = ray.data.read_datasource(source, override_num_blocks=units, num_cpus=1)
    read.context.target_max_block_size = None
    arrow = {"batch_size": None, "batch_format": "pyarrow"}
    prepared = read.map_batches(partial(sleeping_stages.prepare, speeds), num_cpus=1, **arrow)
    compute = ActorPoolStrategy(min_size=fewest, max_size=most)
    encoded = map_blocks_in_actors(
        prepared, sleeping_stages.Encode, speeds, compute=compute, num_cpus=0, num_gpus=1
    )
    done = encoded.map_batches(sleeping_stages.commit, num_cpus=COMMIT_CPUS, **arrow)
    return sorted((row["at"], row["rows"]) for row in done.iter_rows())


def measure_offline(count: int, seconds: float) -> float:
    """Rows/s of a fixed number of encoders."""
    units = count * math.ceil((seconds + WARM_S) / OFFLINE.encode_s)
    commits = preprocess(count, count, units, OFFLINE)
    # The start is left out, and the end, where encoders run out of units.
    steady = commits[len(commits) // 4 : -max(1, len(commits) // 10)]
    return slope([at for at, _ in steady], list(accumulate(rows for _, rows in steady)))


def measure_offline_growth(most: int, seconds: float) -> dict[float, float]:
    """Seconds until a pool that grows from one encoder reaches shares of the full rate."""
    units = math.ceil(most * seconds / OFFLINE.encode_s / 2)
    commits = preprocess(1, most, units, replace(OFFLINE, load_s=LOAD_S))
    reached: dict[float, float] = {}
    recent: deque[tuple[float, int]] = deque()
    for at, count in commits:
        recent.append((at, count))
        while recent[0][0] < at - WARM_S:
            recent.popleft()
        rate_share = sum(count for _, count in recent) / WARM_S / (most * OFFLINE.encoder)
        for share in (0.5, 0.9):
            if rate_share >= share:
                reached.setdefault(share, at - commits[0][0])
    return reached


def measure(plan: Plan) -> Results:
    def show(value: Any) -> Any:
        print(f"  {value}", flush=True)
        return value

    with start_cluster(plan.max_encoders):
        memory = show(measure_memory(plan.seconds))
        online_runs = [
            [show(measure_online(count, SPEEDS, plan.seconds)) for count in plan.online]
            for _ in range(plan.rounds)
        ]
        offline_runs = [
            [show(measure_offline(count, plan.seconds)) for count in plan.offline] for _ in range(plan.rounds)
        ]
        large = [show(measure_online(count, LARGE, plan.seconds)) for count in plan.large]
        growth = measure_growth(plan.max_encoders, plan.growth_s)
        offline_growth = show(measure_offline_growth(plan.max_encoders, plan.growth_s))
    points = [
        Online(runs[0].encoders, median(run.rate for run in runs), median(run.busy for run in runs))
        for runs in zip(*online_runs, strict=True)
    ]
    rates = [median(runs) for runs in zip(*offline_runs, strict=True)]
    return Results(memory, points, dict(zip(plan.offline, rates, strict=True)), large, growth, offline_growth)
