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
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

import tidemill
from tidemill import _native
from tidemill.ray.causes import cause_of
from tidemill.ray.faults import LOST
from tidemill.ray.pace import UNITS_EACH, Backlog, Load, Pace
from tidemill.ray.waits import Room, Want, actors, tasks
from tidemill.run_file import ResolvedRun, arguments_of


class Encoders:
    """Asks a `Feeder`; what `tidemill.train(encoders=...)` takes."""

    def __init__(self, feeder: Any) -> None:
        self._feeder = feeder
        self._numbers = itertools.count()
        self._wanted: dict[int, _Wanted] = {}
        self.gone = False
        """Whether the feeder has died, which is no fault of who asks it."""

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
                wanted.rows = self._promised(wanted.promise)
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

    def _promised(self, promise: ray.ObjectRef) -> ray.ObjectRef | None:
        if not ray.wait([promise], timeout=1)[0]:
            return None
        try:
            [rows] = ray.get(promise)
        except LOST as error:
            self.gone = True
            raise tidemill.TidemillError(f"the feeder of the encoders is gone: {error}") from error
        return rows

    def _ask(self, number: int, what: tuple[str, int, int]) -> None:
        self._wanted[number] = _Wanted(what, self._feeder.encoded.remote(*what))


@dataclass
class _Wanted:
    what: tuple[str, int, int]
    promise: ray.ObjectRef
    rows: ray.ObjectRef | None = None


@ray.remote(max_retries=-1, num_returns=2)
def _prepared(run: ResolvedRun, unit: str, epoch: int, resolution: int) -> tuple[pa.Table, float]:
    """The prepared rows, and the seconds that it took."""
    preparer = _preparer(run)
    start = time.perf_counter()
    return preparer.prepare(unit, epoch, resolution), time.perf_counter() - start


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
        self._most_preparing = _range(engine["prepare"]["workers"])[1] or math.inf
        room = _room(engine)
        self._encoder = encoder.options(
            num_cpus=room.cpus, num_gpus=room.gpus, accelerator_type=room.accelerator
        )
        self._fewest, self._most = _range(pool["workers"])
        self._encoders: dict[Any, _Work] = {}
        self._starting = self._preparing = self._ready = 0
        self._pace, self._backlog, self._load = Pace(), Backlog(), Load()
        self._broken: Exception | None = None
        # Whether any encoder has been ready so far.
        self._one_was_ready = False
        # Units are prepared in the order in which they were asked for, and encoded as they become ready.
        self._to_prepare, self._to_encode = asyncio.Lock(), asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def encoded(self, unit: str, epoch: int, resolution: int) -> list[ray.ObjectRef]:
        """A reference to the unit's rows, in a list because Ray would else send the rows themselves."""
        self._fit()
        async with self._to_prepare:
            await self._until(self._may_prepare)
            self._preparing += 1
        prepared, seconds = self._prepared.remote(self._run, unit, epoch, resolution)
        try:
            self._pace.prepared(await seconds)
        except RayError:
            # Whoever wants the rows hears of it by their reference.
            return [prepared]
        finally:
            self._preparing -= 1
            self._changed.set()
        encoder, work = await self._free_encoder()
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

    def _may_prepare(self) -> bool:
        ahead = self._pace.ahead(len(self._encoders))
        return self._preparing < self._most_preparing and self._preparing + self._ready < ahead

    async def _free_encoder(self) -> tuple[Any, _Work]:
        """The encoder with the fewest units, since none should wait while others have two, given one more."""
        self._ready += 1
        try:
            self._fit()
            async with self._to_encode:
                await self._until(lambda: any(work.units < UNITS_EACH for work in self._encoders.values()))
                encoder, work = min(self._encoders.items(), key=lambda item: item[1].units)
                self._count(work, 1)
        finally:
            self._ready -= 1
            self._changed.set()
        return encoder, work

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Waits for what this class counts."""
        while True:
            if self._broken is not None:
                raise self._broken
            if holds():
                return
            self._changed.clear()
            await self._changed.wait()

    def _fit(self) -> None:
        """Starts an encoder if there are too few; gives one back if fewer were enough for a while."""
        there = len(self._encoders) + self._starting
        units = [work.units for work in self._encoders.values()]
        # Units that were prepared at the same time are no sign that more encoders are needed.
        lasts = self._backlog.lasts(self._ready, units, self._pace.prepare_s or 0.0)
        if there < self._fewest or (lasts and not self._starting and there < self._most):
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
            # It cannot load what it needs; else it was killed, or its node lost.
            if error.actor_init_failed:
                cause = cause_of(error)
                # Where others encode, what a node refuses may pass, such as a folder that is not mounted yet.
                self._broken = tidemill.TidemillError(str(cause)) if self._one_was_ready else cause
        except RayError as error:
            # Such as an environment that cannot be made: trainers would wait for ever.
            if not isinstance(error, LOST):
                self._broken = tidemill.TidemillError(f"an encoder cannot be started: {error}")
        else:
            self._encoders[encoder], self._one_was_ready = _Work(time.monotonic()), True
            self._load.begin()
            self._backlog = Backlog()
        finally:
            self._starting -= 1
            self._changed.set()
        if self._broken is None:
            self._fit()

    async def _watch(self, encoder: Any, work: _Work, seconds: ray.ObjectRef) -> None:
        """Waits until a unit is encoded. Whoever wanted it hears of what went wrong by its reference."""
        try:
            # Not added in one statement, which would add to what was there before the others' units.
            busy = await seconds
            # An encoder's first unit takes longer than all others.
            if work.busy:
                self._pace.encoded(busy)
            work.busy += busy
        except LOST:
            self._lose(encoder)
        except RayTaskError:
            pass
        finally:
            self._count(work, -1)
            self._changed.set()
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


def wants(engine: dict[str, Any]) -> list[Want]:
    """What trainers wait for, who are fed."""
    fewest = _range(engine["encode"]["workers"])[0]
    return [
        tasks("prepare task", Room(engine["prepare"]["cpus"])),
        actors("encoder", _room(engine), fewest, "_Encoder"),
    ]


@lru_cache(maxsize=4)
def _preparer(run: ResolvedRun) -> _native.Preparer:
    """One for all tasks of a process."""
    return _native.Preparer(*arguments_of(run, {}))


def _range(workers: int | str) -> tuple[int, int]:
    """From a run file's number or range."""
    fewest, _, most = str(workers).partition("..")
    return int(fewest), int(most or fewest)


def _room(engine: dict[str, Any]) -> Room:
    """What an encoder must have."""
    pool = engine["encode"]
    gpus = pool.get("gpus")
    if gpus is None:
        gpus = 0 if engine["device"] == "cpu" else 1
    return Room(pool["cpus"], gpus, pool.get("accelerator"))
