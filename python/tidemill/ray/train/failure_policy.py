"""Decides after a failure of Ray Train's workers whether starting new ones can help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ray.train import UserCallback
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError

import tidemill
from tidemill.ray.failure_causes import LOST_ERRORS

# How often training may fail with the same error before it ends.
MAX_SAME_FAILURES = 3

# What differs between two messages of one error: memory addresses, ids, and numbers such as those
# of processes, ports, steps and lines.
VARYING_PARTS = re.compile(r"0x[0-9a-f]+|\b(?=\w*\d)[0-9a-f]{8,}\b|\d+")


class WorkerStoppedError(Exception):
    """A worker was asked to stop by its node and has saved its state."""


class FailurePolicy(UserCallback):
    """Ends training when workers refuse their input or fail repeatedly in the same way."""

    def __init__(self) -> None:
        self._failure_counts: Counter[str] = Counter()
        self._last_checkpoint = 0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Resets the counts after a new checkpoint.

        Restarted workers report the previous one again.
        """
        step = max((worker.get("checkpoint", 0) for worker in metrics), default=0)
        if step > self._last_checkpoint:
            self._last_checkpoint = step
            self._failure_counts.clear()

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Counts each kind of failure once, however many workers have it."""
        failures = select_own_failures(worker_exceptions.values())
        for failure in failures:
            # After a checkpoint a refusal may pass, for example if a disk is unavailable for a
            # while.
            if isinstance(failure, tidemill.InputError) and not self._last_checkpoint:
                raise failure
        messages = {VARYING_PARTS.sub("#", message): message for message in map(_format_failure, failures)}
        for kind, message in messages.items():
            self._failure_counts[kind] += 1
            if self._failure_counts[kind] == MAX_SAME_FAILURES:
                raise tidemill.TidemillError(
                    f"failed {MAX_SAME_FAILURES} times without a checkpoint: {message}"
                )


def select_own_failures(errors: Iterable[Exception]) -> list[Exception]:
    """The failures that workers caused themselves.

    Lost workers are no reason to end training. If a process has died, the errors of the others may
    only be its consequence, so none of them counts.
    """
    causes = [_find_worker_cause(error) for error in errors]
    if any(isinstance(cause, (*LOST_ERRORS, WorkerHealthCheckTimeoutError)) for cause in causes):
        return []
    return [cause for cause in causes if not isinstance(cause, (tidemill.LostPeersError, WorkerStoppedError))]


def _find_worker_cause(error: Exception) -> Exception:
    """The exception of a worker inside those that Ray Train wraps around it."""
    if isinstance(error, WorkerHealthCheckFailedError):
        error = error.health_check_failure
    return getattr(error, "cause", None) or error


def _format_failure(error: Exception) -> str:
    """The message, with the type in front if the error comes from another library."""
    is_own = isinstance(error, tidemill.TidemillError)
    return str(error) if is_own else f"{type(error).__name__}: {error}"
