"""The encoder pool for trainers that store nothing.

Tasks read and prepare units, and actors encode them, on any node. An `EncoderPool` assigns units to
encoders and gives trainers references to the rows, so that rows go directly from the encoder's node
to the trainer's. Ray Data's `streaming_split` would not do: trainers ask for rows in a fixed order,
which they resume after a stop. And splits wait for each other at the end of each epoch: ranks that
also wait for each other's gradients, and whose units have unequal numbers of rows, would deadlock
there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

import tidemill
from tidemill.ray.failure_causes import LOST_ERRORS, find_root_cause
from tidemill.ray.online.autoscaling import UNITS_PER_ENCODER, Backlog, StageTimes, Utilisation
from tidemill.ray.online.encoder_actor import EncoderActor, prepare_unit
from tidemill.ray.resource_wait import ResourceDemand, WorkerResources, demand_actors, demand_task
from tidemill.run_file import ResolvedRun


@ray.remote(num_cpus=0)
class EncoderPool:
    """Prepares and encodes units on request, with autoscaling within a range of encoders.

    The prepare task and the encoder actor are arguments, so that benches/scaling.py can measure
    this class with stages of a known speed.
    """

    def __init__(
        self, run: ResolvedRun, prepare_task: Any = prepare_unit, encoder_class: Any = EncoderActor
    ) -> None:
        engine = run["engine"]
        self._run = ray.put(run)
        self._prepare_task = prepare_task.options(num_cpus=engine["prepare"]["cpus"])
        self._max_preparing = _parse_range(engine["prepare"]["workers"])[1] or math.inf
        resources = _encoder_resources(engine)
        self._encoder_class = encoder_class.options(
            num_cpus=resources.cpus, num_gpus=resources.gpus, accelerator_type=resources.accelerator
        )
        self._min_encoders, self._max_encoders = _parse_range(engine["encode"]["workers"])
        self._encoders: dict[Any, _EncoderLoad] = {}
        self._starting_encoders = self._preparing_units = self._ready_units = 0
        self._times, self._backlog, self._utilisation = StageTimes(), Backlog(), Utilisation()
        self._failure: Exception | None = None
        self._was_any_encoder_ready = False
        # Units are prepared in the order of the requests, and encoded as they become ready.
        self._prepare_lock, self._encode_lock = asyncio.Lock(), asyncio.Lock()
        self._state_changed = asyncio.Event()
        self._background_tasks: set[asyncio.Task[None]] = set()

    async def encode_unit(self, unit: str, epoch: int, resolution: int) -> list[ray.ObjectRef]:
        """Returns a reference to the unit's encoded rows, in a list.

        Ray would resolve a bare reference to the rows themselves.
        """
        self._autoscale()
        async with self._prepare_lock:
            await self._wait_until(self._can_prepare_more)
            self._preparing_units += 1
        prepared, seconds = self._prepare_task.remote(self._run, unit, epoch, resolution)
        try:
            self._times.add_prepare_time(await seconds)
        except RayError:
            # The reference raises the error where the rows are used.
            return [prepared]
        finally:
            self._preparing_units -= 1
            self._state_changed.set()
        encoder, load = await self._assign_encoder()
        rows, seconds = encoder.encode.remote(prepared)
        self._run_in_background(self._watch_unit(encoder, load, seconds))
        return [rows]

    async def get_stats(self) -> dict[str, float]:
        """The number of encoders, and the sums of their lifetimes and of their time encoding."""
        loads, now = self._encoders.values(), time.monotonic()
        return {
            "encoders": len(loads),
            "seconds": sum(now - load.started_at for load in loads),
            "busy": sum(load.busy_s for load in loads),
        }

    def _can_prepare_more(self) -> bool:
        prefetch = self._times.compute_prefetch(len(self._encoders))
        preparing = self._preparing_units
        return preparing < self._max_preparing and preparing + self._ready_units < prefetch

    async def _assign_encoder(self) -> tuple[Any, _EncoderLoad]:
        """Adds a unit to the encoder with the fewest: none should idle while another has two."""
        self._ready_units += 1
        try:
            self._autoscale()
            async with self._encode_lock:
                await self._wait_until(
                    lambda: any(load.units < UNITS_PER_ENCODER for load in self._encoders.values())
                )
                encoder, load = min(self._encoders.items(), key=lambda item: item[1].units)
                self._change_units(load, 1)
        finally:
            self._ready_units -= 1
            self._state_changed.set()
        return encoder, load

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        """Waits until a condition on this pool's state holds; raises if the pool has failed."""
        while True:
            if self._failure is not None:
                raise self._failure
            if is_true():
                return
            self._state_changed.clear()
            await self._state_changed.wait()

    def _autoscale(self) -> None:
        """Starts an encoder if there are too few.

        Stops one if fewer have been enough for a while.
        """
        count = len(self._encoders) + self._starting_encoders
        units = [load.units for load in self._encoders.values()]
        # Units that were prepared at the same time become ready together: that alone is no lasting
        # backlog.
        has_backlog = self._backlog.is_lasting(self._ready_units, units, self._times.prepare_s or 0.0)
        if count < self._min_encoders or (
            has_backlog and not self._starting_encoders and count < self._max_encoders
        ):
            self._starting_encoders += 1
            self._run_in_background(self._start_encoder())
        elif len(self._encoders) > self._min_encoders and self._utilisation.would_suffice(
            len(self._encoders) - 1
        ):
            idle = next((encoder for encoder, load in self._encoders.items() if not load.units), None)
            if idle is not None:
                self._remove_encoder(idle)
                ray.kill(idle)

    async def _start_encoder(self) -> None:
        encoder = self._encoder_class.remote(self._run)
        try:
            await encoder.wait_until_ready.remote()
        except RayTaskError as error:
            self._failure = error.cause if isinstance(error.cause, Exception) else error
        except RayActorError as error:
            # Without `actor_init_failed` the actor was killed or its node was lost: another one is
            # started.
            if error.actor_init_failed:
                cause = find_root_cause(error)
                # If encoders run on other nodes, a refusal may pass: a folder that this node has
                # not mounted yet.
                self._failure = tidemill.TidemillError(str(cause)) if self._was_any_encoder_ready else cause
        except RayError as error:
            # For example a runtime environment that cannot be made: trainers would wait forever.
            if not isinstance(error, LOST_ERRORS):
                self._failure = tidemill.TidemillError(f"an encoder cannot be started: {error}")
        else:
            self._encoders[encoder], self._was_any_encoder_ready = _EncoderLoad(time.monotonic()), True
            self._utilisation.restart()
            self._backlog = Backlog()
        finally:
            self._starting_encoders -= 1
            self._state_changed.set()
        if self._failure is None:
            self._autoscale()

    async def _watch_unit(self, encoder: Any, load: _EncoderLoad, seconds: ray.ObjectRef) -> None:
        """Waits until a unit is encoded.

        Errors reach the trainer through its reference to the rows.
        """
        try:
            # Awaited before the addition: `load.busy_s += await seconds` would read the sum too
            # early and drop what other units add meanwhile.
            encode_s = await seconds
            # An encoder's first unit takes longer than all others, so it does not count.
            if load.busy_s:
                self._times.add_encode_time(encode_s)
            load.busy_s += encode_s
        except LOST_ERRORS:
            self._remove_encoder(encoder)
        except RayTaskError:
            pass
        finally:
            self._change_units(load, -1)
            self._state_changed.set()
        self._autoscale()

    def _change_units(self, load: _EncoderLoad, change: int) -> None:
        load.units += change
        self._utilisation.set_busy(sum(load.units > 0 for load in self._encoders.values()))

    def _remove_encoder(self, encoder: Any) -> None:
        self._encoders.pop(encoder, None)
        self._utilisation.restart()

    def _run_in_background(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        # The event loop keeps only weak references to tasks.
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)


@dataclass
class _EncoderLoad:
    """An encoder's start (monotonic seconds), its time spent encoding, and its current units."""

    started_at: float
    busy_s: float = 0.0
    units: int = 0


def list_pool_demands(engine: dict[str, Any]) -> list[ResourceDemand]:
    """Workers that a pool with these engine settings needs."""
    min_encoders = _parse_range(engine["encode"]["workers"])[0]
    return [
        demand_task("prepare task", WorkerResources(engine["prepare"]["cpus"])),
        demand_actors("encoder", _encoder_resources(engine), min_encoders, "EncoderActor"),
    ]


def _parse_range(workers: int | str) -> tuple[int, int]:
    """The minimum and maximum of a run file's number or range ("1..4")."""
    fewest, _, most = str(workers).partition("..")
    return int(fewest), int(most or fewest)


def _encoder_resources(engine: dict[str, Any]) -> WorkerResources:
    pool = engine["encode"]
    gpus = pool.get("gpus")
    if gpus is None:
        gpus = 0 if engine["device"] == "cpu" else 1
    return WorkerResources(pool["cpus"], gpus, pool.get("accelerator"))
