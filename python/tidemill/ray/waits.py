"""Says what a run waits for: what a cluster has no room for, Ray waits for without a word, be it for ever."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state
from ray.exceptions import RayError

# Seconds between two looks, until it is first said that something is missing, and until it is said again.
LOOK_S = 5.0
FIRST_S = 30.0
AGAIN_S = 300.0

# How Ray calls the resource that says which GPU a node has.
KIND = "accelerator_type:"

log = logging.getLogger("tidemill.ray")


@dataclass(frozen=True)
class Room:
    """What a worker of some kind must have, on one node."""

    cpus: float
    gpus: float = 0
    accelerator: str | None = None

    def __str__(self) -> str:
        parts = [f"CPU {self.cpus:g}"]
        parts += [f"GPU {self.gpus:g}"] * (self.gpus > 0)
        parts += [f"accelerator {self.accelerator}"] * (self.accelerator is not None)
        return ", ".join(parts)

    def within(self, resources: Mapping[str, float]) -> bool:
        """Whether a node with these resources is large enough, if nothing else runs on it."""
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        there = self.accelerator is None or KIND + self.accelerator in resources
        return there and all(resources.get(name, 0) >= amount for name, amount in needed.items())


@dataclass(frozen=True)
class Want:
    """Workers without which a run does not go on."""

    name: str
    room: Room
    missing: Callable[[], int]
    """How many of them wait for room."""


def actors(name: str, room: Room, fewest: int, class_name: str) -> Want:
    """Actors of this job, as Ray calls their class, of which there are to be `fewest`."""

    def missing() -> int:
        # The public way to ask is by the dashboard, which need not be there.
        found = [actor for kind in ("PENDING_CREATION", "RESTARTING") for actor in _actors(class_name, kind)]
        waiting = [actor for actor in found if not actor["Address"]["IPAddress"]]
        if not waiting:
            return 0
        there = len(found) - len(waiting) + len(_actors(class_name, "ALIVE"))
        # Beyond the fewest there may always be some that wait.
        return min(len(waiting), max(fewest, 1) - there)

    return Want(name, room, missing)


def tasks(name: str, room: Room) -> Want:
    """Tasks, of which at least one must find a node that is large enough."""

    def missing() -> int:
        return 0 if any(room.within(node["Resources"]) for node in ray.nodes() if node["Alive"]) else 1

    return Want(name, room, missing)


@contextmanager
def told(*wants: Want) -> Iterator[None]:
    """Says meanwhile what of this is waited for, and how long it took to come."""
    over = threading.Event()

    def look() -> None:
        waits = [_Wait(want) for want in wants]
        while not over.wait(LOOK_S):
            for wait in waits:
                # The cluster may not answer, or may be gone before we are.
                with suppress(RayError):
                    wait.look(time.monotonic())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join(timeout=LOOK_S)


class _Wait:
    """For how long one want has not been met, and when that is to be said."""

    def __init__(self, want: Want) -> None:
        self._want = want
        self._since: float | None = None
        self._again = 0.0
        self._said = False

    def look(self, now: float) -> None:
        missing, want = self._want.missing(), self._want
        if missing <= 0:
            if self._said:
                log.info("the %ss that were waited for are there", want.name)
            self._since, self._said = None, False
            return
        if self._since is None:
            self._since, self._again = now, now + FIRST_S
        if now >= self._again:
            count = f"{missing} {want.name}{'s' * (missing > 1)}"
            log.warning("waits for %s of %s; the cluster has %s", count, want.room, _cluster())
            self._again, self._said = now + AGAIN_S, True


def _cluster() -> str:
    there, free = ray.cluster_resources(), ray.available_resources()
    amounts = [
        f"{name} {there[name]:g} ({free.get(name, 0):g} free)" if name in there else f"no {name}"
        for name in ("CPU", "GPU")
    ]
    kinds = sorted(name.removeprefix(KIND) for name in there if name.startswith(KIND))
    return ", ".join([*amounts, *(f"accelerator {kind}" for kind in kinds)])


def _actors(class_name: str, kind: str) -> list[dict[str, Any]]:
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    found = state.actors(job_id=job, actor_state_name=kind).values()
    return [actor for actor in found if class_name in actor["ActorClassName"]]
