"""Stops all workers of Ray Train together when the caller of `fit` asks for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import UserCallback


@ray.remote(num_cpus=0)
class StopSignal:
    """Knows whether training is to stop, and whether there are workers that would notice."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._has_workers = False

    async def request(self) -> bool:
        """Asks the workers to stop; returns whether there are any."""
        self._requested.set()
        return self._has_workers

    async def is_requested(self) -> bool:
        """Whether a stop has been requested."""
        return self._requested.is_set()

    async def wait(self) -> None:
        """Returns once a stop is requested."""
        await self._requested.wait()

    async def worker_started(self) -> None:
        """A worker reports that it has started."""
        self._has_workers = True

    async def workers_lost(self) -> None:
        """Workers have been lost; Ray Train then ends the others, too."""
        self._has_workers = False

    async def has_workers(self) -> bool:
        """Whether there are workers."""
        return self._has_workers


class WorkerLossCallback(UserCallback):
    """Tells a `StopSignal` that workers were lost.

    Until new ones have started, none would notice a request to stop.
    """

    def __init__(self, actor_name: str) -> None:
        self._actor_name = actor_name

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Ray Train calls this before it starts new workers."""
        # The actor may have died itself, with the node of the process that called `fit`.
        with suppress(RayError, ValueError):
            ray.get(ray.get_actor(self._actor_name).workers_lost.remote())


@contextmanager
def watch_stop_signal(stop_signal: Any) -> Iterator[threading.Event]:
    """In a worker: yields an event that is set once a stop is requested."""
    event, request = threading.Event(), stop_signal.wait.remote()

    def wait() -> None:
        # The actor is gone if training has ended without a request.
        with suppress(RayError):
            ray.get(request)
            event.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield event
    finally:
        # After SIGTERM Ray lets a worker finish its pending calls before it ends. The pending
        # `wait` gave this worker the time to save its state; now it would keep the worker alive
        # forever.
        ray.cancel(request)
