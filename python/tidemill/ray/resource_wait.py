"""Logs which workers wait for resources.

Ray waits silently, even for resources that the cluster will never have.
"""

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

# Seconds between two checks, until the first warning about missing resources, and between two
# warnings.
CHECK_INTERVAL_S = 5.0
FIRST_WARNING_S = 30.0
REPEAT_WARNING_S = 300.0

# Prefix of the resource by which Ray marks a node's kind of GPU.
ACCELERATOR_PREFIX = "accelerator_type:"

log = logging.getLogger("tidemill.ray")


@dataclass(frozen=True)
class WorkerResources:
    """Resources that a worker needs on one node."""

    cpus: float
    gpus: float = 0
    accelerator: str | None = None

    def __str__(self) -> str:
        parts = [f"CPU {self.cpus:g}"]
        parts += [f"GPU {self.gpus:g}"] * (self.gpus > 0)
        parts += [f"accelerator {self.accelerator}"] * (self.accelerator is not None)
        return ", ".join(parts)

    def fits_into(self, node_resources: Mapping[str, float]) -> bool:
        """Whether a node with these resources is large enough, if nothing else runs on it."""
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        has_accelerator = self.accelerator is None or ACCELERATOR_PREFIX + self.accelerator in node_resources
        return has_accelerator and all(
            node_resources.get(name, 0) >= amount for name, amount in needed.items()
        )


@dataclass(frozen=True)
class ResourceDemand:
    """Workers that a run needs in order to continue."""

    worker_name: str
    resources: WorkerResources
    count_waiting: Callable[[], int]
    """How many of the needed workers wait for resources."""


def demand_actors(
    worker_name: str, resources: WorkerResources, min_count: int, class_name: str
) -> ResourceDemand:
    """At least `min_count` actors of this job, by the class name that Ray shows."""

    def count_waiting() -> int:
        # The public API asks the dashboard, which need not run.
        found = [
            actor
            for actor_state in ("PENDING_CREATION", "RESTARTING")
            for actor in _list_actors(class_name, actor_state)
        ]
        waiting = [actor for actor in found if not actor["Address"]["IPAddress"]]
        if not waiting:
            return 0
        placed = len(found) - len(waiting) + len(_list_actors(class_name, "ALIVE"))
        # An autoscaling pool may always have waiting actors beyond its minimum.
        return min(len(waiting), max(min_count, 1) - placed)

    return ResourceDemand(worker_name, resources, count_waiting)


def demand_task(worker_name: str, resources: WorkerResources) -> ResourceDemand:
    """Tasks, at least one of which must find a node that is large enough."""

    def count_waiting() -> int:
        nodes = (node["Resources"] for node in ray.nodes() if node["Alive"])
        return 0 if any(resources.fits_into(node) for node in nodes) else 1

    return ResourceDemand(worker_name, resources, count_waiting)


@contextmanager
def log_resource_waits(*demands: ResourceDemand) -> Iterator[None]:
    """Logs in a thread which demands are not met, while the `with` block runs."""
    is_done = threading.Event()

    def check_until_done() -> None:
        monitors = [DemandMonitor(demand) for demand in demands]
        while not is_done.wait(CHECK_INTERVAL_S):
            for monitor in monitors:
                # The cluster may not answer, or may be gone before this thread ends.
                with suppress(RayError):
                    monitor.check(time.monotonic())

    thread = threading.Thread(target=check_until_done, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join(timeout=CHECK_INTERVAL_S)


class DemandMonitor:
    """Tracks for how long a demand has not been met, and when the next warning is due."""

    def __init__(self, demand: ResourceDemand) -> None:
        self._demand = demand
        self._unmet_since: float | None = None
        self._next_warning = 0.0
        self._has_warned = False

    def check(self, now: float) -> None:
        """Logs a warning if one is due at `now` (monotonic seconds), or that the wait is over."""
        waiting, demand = self._demand.count_waiting(), self._demand
        if waiting <= 0:
            if self._has_warned:
                log.info("the cluster has room for the %ss now", demand.worker_name)
            self._unmet_since, self._has_warned = None, False
            return
        if self._unmet_since is None:
            self._unmet_since, self._next_warning = now, now + FIRST_WARNING_S
        if now >= self._next_warning:
            workers = f"{waiting} {demand.worker_name}{'s' * (waiting > 1)}"
            log.warning(
                "waiting for %s with %s; the cluster has %s", workers, demand.resources, _describe_cluster()
            )
            self._next_warning, self._has_warned = now + REPEAT_WARNING_S, True


def _describe_cluster() -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    amounts = [
        f"{name} {total[name]:g} ({free.get(name, 0):g} free)" if name in total else f"no {name}"
        for name in ("CPU", "GPU")
    ]
    accelerators = sorted(
        name.removeprefix(ACCELERATOR_PREFIX) for name in total if name.startswith(ACCELERATOR_PREFIX)
    )
    return ", ".join([*amounts, *(f"accelerator {name}" for name in accelerators)])


def _list_actors(class_name: str, actor_state: str) -> list[dict[str, Any]]:
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    found = state.actors(job_id=job, actor_state_name=actor_state).values()
    return [actor for actor in found if class_name in actor["ActorClassName"]]
