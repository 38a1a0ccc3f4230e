"""Stops the workers of Ray Train together, when whoever called `fit` wishes it."""

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
class Stop:
    """Whether training is to stop, for all workers; and whether there are workers who would hear of it."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._workers = False

    async def ask(self) -> bool:
        """Has them stop; says whether there are any."""
        self._asked.set()
        return self._workers

    async def asked(self) -> bool:
        """Whether they are to."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Until they are to."""
        await self._asked.wait()

    async def began(self) -> None:
        """A worker has."""
        self._workers = True

    async def lost(self) -> None:
        """Workers are, and Ray Train ends the others, too."""
        self._workers = False

    async def workers(self) -> bool:
        """Whether there are any."""
        return self._workers


class Losses(UserCallback):
    """Tells a `Stop` of lost workers, for until others have started nobody hears what it is asked."""

    def __init__(self, name: str) -> None:
        self._name = name

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Before others are started."""
        # It may have died itself, with the node of whoever called `fit`.
        with suppress(RayError, ValueError):
            ray.get(ray.get_actor(self._name).lost.remote())


@contextmanager
def heard(stop: Any) -> Iterator[threading.Event]:
    """For a worker: what is set once training is to stop."""
    event, asked = threading.Event(), stop.wait.remote()

    def wait() -> None:
        # The actor has died if training ended elsewhere without being asked to.
        with suppress(RayError):
            ray.get(asked)
            event.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield event
    finally:
        # After SIGTERM Ray lets a worker finish what it has asked for, and no more: this kept it there to
        # save its state, and would now keep it for ever.
        ray.cancel(asked)
