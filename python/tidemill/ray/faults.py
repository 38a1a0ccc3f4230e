"""What workers of Ray Train fail with: what is their own fault, and when new ones would only fail again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)
from ray.train import UserCallback
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError

import tidemill

# What a reference ends in if the process or the node that made it is lost, or was killed for memory.
LOST = (RayActorError, ObjectLostError, OutOfMemoryError, NodeDiedError, WorkerCrashedError)

# Times that training may fail with the same error before it is given up.
ATTEMPTS = 3

# What differs between two accounts of one error: addresses in memory, ids, and numbers such as those of
# processes, ports, steps and lines.
PASSING = re.compile(r"0x[0-9a-f]+|\b(?=\w*\d)[0-9a-f]{8,}\b|\d+")


class ToldToStop(Exception):
    """A worker was, and has saved what it did."""


class Hopeless(UserCallback):
    """Ends training when workers refuse what they get, or fail again and again: new ones do not mend that."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._saved = 0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """It gets on if there is a new checkpoint; workers that were started again tell of the last one."""
        saved = max((line.get("checkpoint", 0) for line in metrics), default=0)
        if saved > self._saved:
            self._saved = saved
            self._seen.clear()

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Counts what workers fail with, once each time, however many of them do."""
        faults = own_faults(worker_exceptions.values())
        for fault in faults:
            # What has made sense until now may do so again, as a file on a disk that is gone for a while.
            if isinstance(fault, tidemill.InputError) and not self._saved:
                raise fault
        # By what two accounts of one have in common.
        for kind, said in {PASSING.sub("#", said): said for said in map(_said, faults)}.items():
            self._seen[kind] += 1
            if self._seen[kind] == ATTEMPTS:
                raise tidemill.TidemillError(f"failed {ATTEMPTS} times without a checkpoint: {said}")


def own_faults(errors: Iterable[Exception]) -> list[Exception]:
    """What workers that fail together say of themselves.

    That they or others are lost is no reason to give up; and where a process has died, whatever the others
    say may come of that.
    """
    causes = [_cause(error) for error in errors]
    if any(isinstance(cause, (*LOST, WorkerHealthCheckTimeoutError)) for cause in causes):
        return []
    return [cause for cause in causes if not isinstance(cause, (tidemill.LostPeersError, ToldToStop))]


def _cause(error: Exception) -> Exception:
    """What has happened, within what Ray makes of it."""
    if isinstance(error, WorkerHealthCheckFailedError):
        error = error.health_check_failure
    return getattr(error, "cause", None) or error


def _said(error: Exception) -> str:
    """Its message, which of other libraries' errors means little without the type."""
    ours = isinstance(error, tidemill.TidemillError)
    return str(error) if ours else f"{type(error).__name__}: {error}"
