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
from ray.exceptions import ObjectLostError, OwnerDiedError, RayActorError, RayTaskError

import tidemill
from tidemill import _native
from tidemill.run_file import ResolvedRun, arguments_of

# Units that each encoder has: one that it encodes, others that are prepared meanwhile.
IN_FLIGHT = 3

# Seconds after which encoders that nobody needed are given back.
IDLE_S = 30

# What a reference ends in if the node that made it is lost.
LOST = (RayActorError, ObjectLostError, OwnerDiedError)


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


@ray.remote(num_cpus=0)
class Feeder:
    """Prepares and encodes what it is asked for, with as many encoders as that takes, within their range."""

    def __init__(self, run: ResolvedRun) -> None:
        engine = run["engine"]
        pool = engine["encode"]
        self._run = ray.put(run)
        self._prepared = _prepared.options(num_cpus=engine["prepare"]["cpus"])
        self._encoder = _Encoder.options(
            num_cpus=pool["cpus"], num_gpus=_gpus(engine), accelerator_type=pool.get("accelerator")
        )
        self._fewest, self._most = _range(pool["workers"])
        self._encoders: dict[Any, _Work] = {}
        self._starting = 0
        self._waiting = 0
        self._idle_since = time.monotonic()
        self._broken: Exception | None = None
        self._free: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def encoded(self, unit: str, epoch: int, resolution: int) -> list[ray.ObjectRef]:
        """A reference to the unit's rows, in a list because Ray would else send the rows themselves."""
        encoder = await self._next_free()
        prepared = self._prepared.remote(self._run, unit, epoch, resolution)
        rows, seconds = encoder.encode.remote(prepared)
        self._begin(self._watch(encoder, seconds))
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
        self._waiting += 1
        try:
            self._fit()
            while True:
                # Looks up now and then: one that could not be started must not be waited for.
                try:
                    encoder = await asyncio.wait_for(self._free.get(), timeout=1)
                except asyncio.TimeoutError:
                    encoder = None
                if self._broken is not None:
                    raise self._broken
                if encoder in self._encoders:
                    return encoder
        finally:
            self._waiting -= 1

    def _fit(self) -> None:
        """Starts an encoder if there are too few, or ends one that nobody has needed for long."""
        there = len(self._encoders) + self._starting
        if there < self._fewest or (self._waiting and not self._starting and there < self._most):
            self._starting += 1
            self._begin(self._start())
        # As many as one encoder can have are free.
        if self._free.qsize() < IN_FLIGHT or self._waiting > 1:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > IDLE_S and len(self._encoders) > self._fewest:
            self._idle_since = time.monotonic()
            idle = min(self._encoders, key=lambda encoder: self._encoders[encoder].last)
            if self._encoders[idle].units == 0:
                del self._encoders[idle]
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
        else:
            self._encoders[encoder] = _Work(time.monotonic())
            for _ in range(IN_FLIGHT):
                self._free.put_nowait(encoder)
        finally:
            self._starting -= 1
        if self._broken is None:
            self._fit()

    async def _watch(self, encoder: Any, seconds: ray.ObjectRef) -> None:
        """Waits until a unit is encoded. Whoever wanted it hears of what went wrong by its reference."""
        work = self._encoders[encoder]
        work.units += 1
        try:
            work.busy += await seconds
        except LOST:
            self._encoders.pop(encoder, None)
        except RayTaskError:
            pass
        finally:
            work.units -= 1
            work.last = time.monotonic()
        if encoder in self._encoders:
            self._free.put_nowait(encoder)
        self._fit()

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
    last: float = 0.0


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
