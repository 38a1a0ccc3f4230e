"""Finds the root cause of a failure inside the exceptions that Ray wraps around it."""

from __future__ import annotations

import re

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

import tidemill

# Errors of a reference whose process or node was lost, or killed because memory ran out.
LOST_ERRORS = (RayActorError, ObjectLostError, OutOfMemoryError, NodeDiedError, WorkerCrashedError)

# The last line of a traceback that ends in refused input, and the line with which Ray begins the
# traceback of an actor's constructor: it names the actor's class and its node.
REFUSED_INPUT = "\ntidemill.InputError: "
ACTOR_CONSTRUCTOR = re.compile(r"ray::(.*?)\.__init__\(\).*?\bip=([^,)]+)")


def find_root_cause(error: Exception) -> Exception:
    """The exception that a task, or the constructor of an actor, failed with."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return _parse_start_failure(str(error))
    return getattr(error, "cause", None) or error


def _parse_start_failure(traceback: str) -> Exception:
    """The reason why an actor could not start. Ray keeps only its text.

    Refused input names the node, because other nodes may have other models or GPUs, and ends the
    run. Any other failure may be tried again, so its message has no ids that would differ for the
    next actor.
    """
    match = ACTOR_CONSTRUCTOR.search(traceback)
    class_name, node = match.groups() if match else ("", "some node")
    actor = "an encoder" if "Encode" in class_name else "a worker"
    _, refused, message = traceback.rpartition(REFUSED_INPUT)
    if refused:
        return tidemill.InputError(f"{actor} on {node} refuses to start: {message.strip()}")
    return tidemill.TidemillError(f"{actor} cannot be started: {_last_error(traceback)}")


def _last_error(traceback: str) -> str:
    """The error at the end of a traceback, without the process ids in front of it."""
    lines = traceback.rstrip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    return "\n".join(lines[max(frames, default=-1) + 1 :]) or traceback
