"""Encoders for trainers that store nothing: tasks read and prepare units, actors encode them, on any node.

A `Feeder` hands units out to encoders and gives trainers references, so that rows go from the encoder's node
to the trainer's and nowhere else. It is ours, and not `streaming_split`, because trainers ask for the rows
that come next in an order that they can go on with after a stop; and because splits wait for each other at
the end of each epoch, which ranks that also wait for gradients, with units of unequal rows, never
reach together.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

import tidemill
from tidemill import _native
from tidemill.run_file import ResolvedRun, arguments_of

# Units that each encoder has: one that it encodes, others that are prepared meanwhile.
IN_FLIGHT = 3

# Seconds after which an encoder that nobody needed is given back, and the share of their time for which the
# others may then have units.
IDLE_S = 30
FULL = 0.95

# What a reference ends in if the process or the node that made it is lost, or was killed for memory.
LOST = (RayActorError, ObjectLostError, OutOfMemoryError, NodeDiedError, WorkerCrashedError)


class Encoders:
    """Asks a `Feeder`; what `tidemill.train(encoders=...)` takes."""

    def __init__(self, feeder: Any) -> None:
        self._feeder = feeder
        self._numbers = itertools.count()
        self._wanted: dict[int, _Wanted] = {}

    def want(self, unit: str, epoch: int, resolution: int) -> int:
        """Asks for a unit's rows."""
        number = next(self._numbers)
        self._ask(number, (unit, epoch, resolution))
        return number

    def take(self, number: int) -> pa.Table | None:
        """The rows, once they are there."""
        wanted = self._wanted[number]
        try:
            if wanted.rows is None:
                wanted.rows = _promised(wanted.promise)
            if wanted.rows is None or not ray.wait([wanted.rows], timeout=1)[0]:
                return None
            rows = ray.get(wanted.rows)
        except RayTaskError as error:
            ours = isinstance(error.cause, (tidemill.InputError, tidemill.TidemillError))
            raise error.cause if ours else error from None
        except LOST:
            self._ask(number, wanted.what)
            return None
        del self._wanted[number]
        return rows

    def _ask(self, number: int, what: tuple[str, int, int]) -> None:
        self._wanted[number] = _Wanted(what, self._feeder.encoded.remote(*what))


def _promised(promise: ray.ObjectRef) -> ray.ObjectRef | None:
    if not ray.wait([promise], timeout=1)[0]:
        return None
    try:
        [rows] = ray.get(promise)
    except LOST as error:
        raise tidemill.TidemillError(f"the feeder of the encoders is gone: {error}") from error
    return rows


@dataclass
class _Wanted:
    what: tuple[str, int, int]
    promise: ray.ObjectRef
    rows: ray.ObjectRef | None = None


@ray.remote(max_retries=-1)
def _prepared(run: ResolvedRun, unit: str, epoch: int, resolution: int) -> pa.Table:
    return _preparer(run).prepare(unit, epoch, resolution)


@ray.remote
class _Encoder:
    def __init__(self, run: ResolvedRun) -> None:
        self._encode = tidemill.Encode(run)

    def ready(self) -> None:
        """There is one."""

    @ray.method(num_returns=2)
    def encode(self, prepared: pa.Table) -> tuple[pa.Table, float]:
        """The rows, and the seconds that it took."""
        start = time.perf_counter()
        rows = self._encode(prepared) if prepared.num_rows else prepared
        return rows, time.perf_counter() - start


@ray.remote(num_cpus=0)
class Feeder:
    """Prepares and encodes what it is asked for, with as many encoders as that takes, within their range.

    The task that prepares a unit and the actor that encodes it are arguments, so that benches/scaling.py can
    measure this class with stages of a known speed.
    """

    def __init__(self, run: ResolvedRun, prepared: Any = _prepared, encoder: Any = _Encoder) -> None:
        engine = run["engine"]
        pool = engine["encode"]
        self._run = ray.put(run)
        self._prepared = prepared.options(num_cpus=engine["prepare"]["cpus"])
        self._encoder = encoder.options(
            num_cpus=pool["cpus"], num_gpus=_gpus(engine), accelerator_type=pool.get("accelerator")
        )
        self._fewest, self._most = _range(pool["workers"])
        self._encoders: dict[Any, _Work] = {}
        self._starting = 0
        self._load = _Load()
        self._broken: Exception | None = None
        # Units are handed out in the order in which they were asked for.
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def encoded(self, unit: str, epoch: int, resolution: int) -> list[ray.ObjectRef]:
        """A reference to the unit's rows, in a list because Ray would else send the rows themselves."""
        self._fit()
        async with self._line:
            encoder = await self._next_free()
            work = self._encoders[encoder]
            self._count(work, 1)
        prepared = self._prepared.remote(self._run, unit, epoch, resolution)
        rows, seconds = encoder.encode.remote(prepared)
        self._begin(self._watch(encoder, work, seconds))
        return [rows]

    async def encoders(self) -> dict[str, float]:
        """How many there are, and for how many seconds they have been there and encoded, together."""
        works, now = self._encoders.values(), time.monotonic()
        return {
            "encoders": len(works),
            "seconds": sum(now - work.since for work in works),
            "busy": sum(work.busy for work in works),
        }

    async def _next_free(self) -> Any:
        """The encoder with the fewest units, for none should wait while others have several."""
        while True:
            if self._broken is not None:
                raise self._broken
            encoder = min(self._encoders, key=lambda encoder: self._encoders[encoder].units, default=None)
            if encoder is not None and self._encoders[encoder].units < IN_FLIGHT:
                return encoder
            self._fit(more=True)
            self._freed.clear()
            await self._freed.wait()

    def _fit(self, more: bool = False) -> None:
        """Starts an encoder if there are too few; gives one back if fewer were enough for a while."""
        there = len(self._encoders) + self._starting
        if there < self._fewest or (more and not self._starting and there < self._most):
            self._starting += 1
            self._begin(self._start())
        elif len(self._encoders) > self._fewest and self._load.fits(len(self._encoders) - 1):
            idle = next((encoder for encoder, work in self._encoders.items() if not work.units), None)
            if idle is not None:
                self._lose(idle)
                ray.kill(idle)

    async def _start(self) -> None:
        encoder = self._encoder.remote(self._run)
        try:
            await encoder.ready.remote()
        except RayTaskError as error:
            self._broken = error.cause if isinstance(error.cause, Exception) else error
        except RayActorError as error:
            # Its node was lost, or it cannot load what it needs.
            if "__init__" in str(error) or "creation task" in str(error):
                self._broken = tidemill.TidemillError(f"an encoder cannot be started: {error}")
        except RayError as error:
            # Such as an environment that cannot be made: trainers would wait for ever.
            if not isinstance(error, LOST):
                self._broken = tidemill.TidemillError(f"an encoder cannot be started: {error}")
        else:
            self._encoders[encoder] = _Work(time.monotonic())
            self._load.begin()
        finally:
            self._starting -= 1
            self._freed.set()
        if self._broken is None:
            self._fit()

    async def _watch(self, encoder: Any, work: _Work, seconds: ray.ObjectRef) -> None:
        """Waits until a unit is encoded. Whoever wanted it hears of what went wrong by its reference."""
        try:
            # Not added in one statement, which would add to what was there before the others' units.
            busy = await seconds
            work.busy += busy
        except LOST:
            self._lose(encoder)
        except RayTaskError:
            pass
        finally:
            self._count(work, -1)
            self._freed.set()
        self._fit()

    def _count(self, work: _Work, change: int) -> None:
        work.units += change
        self._load.count(sum(work.units > 0 for work in self._encoders.values()))

    def _lose(self, encoder: Any) -> None:
        self._encoders.pop(encoder, None)
        self._load.begin()

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        # A task that nobody holds may be collected.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass
class _Work:
    """What an encoder does."""

    since: float
    busy: float = 0.0
    units: int = 0


class _Load:
    """How many encoders have had units, on average since the pool changed or was judged."""

    def __init__(self) -> None:
        self._busy = 0
        self.begin()

    def begin(self) -> None:
        """Forgets what was."""
        self._since = self._at = time.monotonic()
        self._seconds = 0.0

    def count(self, busy: int) -> None:
        """So many have units now."""
        now = time.monotonic()
        self._seconds += self._busy * (now - self._at)
        self._busy, self._at = busy, now

    def fits(self, encoders: int) -> bool:
        """Whether so many would have been enough, if there was time enough to say."""
        if time.monotonic() - self._since < IDLE_S:
            return False
        self.count(self._busy)
        mean = self._seconds / (self._at - self._since)
        self.begin()
        return mean < FULL * encoders


@lru_cache(maxsize=4)
def _preparer(run: ResolvedRun) -> _native.Preparer:
    """One for all tasks of a process."""
    return _native.Preparer(*arguments_of(run, {}))


def _range(workers: int | str) -> tuple[int, int]:
    """From a run file's number or range."""
    fewest, _, most = str(workers).partition("..")
    return int(fewest), int(most or fewest)


def _gpus(engine: dict[str, Any]) -> float:
    gpus = engine["encode"].get("gpus")
    return (0 if engine["device"] == "cpu" else 1) if gpus is None else gpus
