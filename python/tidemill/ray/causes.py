"""What has happened on a node, within what Ray makes of it."""

from __future__ import annotations

import re

from ray.exceptions import RayActorError

import tidemill

# How a traceback ends in a refusal, and how Ray begins it: with the actor's class and its node.
REFUSED = "\ntidemill.InputError: "
ACTOR = re.compile(r"ray::(.*?)\.__init__\(\).*?\bip=([^,)]+)")


def cause_of(error: Exception) -> Exception:
    """What a task failed with, or an actor when it started."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return _not_started(str(error))
    return getattr(error, "cause", None) or error


def _not_started(said: str) -> Exception:
    """Why an actor could not start, of which Ray has kept the text alone.

    A refusal names the node, for others may have other models or GPUs, and the run ends with it. What may be
    tried again names nothing that the next actor would say otherwise.
    """
    found = ACTOR.search(said)
    name, node = found.groups() if found else ("", "some node")
    who = "an encoder" if "Encode" in name else "a worker"
    _, refused, message = said.rpartition(REFUSED)
    if refused:
        return tidemill.InputError(f"{who} on {node} refuses to start: {message.strip()}")
    return tidemill.TidemillError(f"{who} cannot be started: {_last_said(said)}")


def _last_said(said: str) -> str:
    """The error at the end of a traceback, without the ids of processes before it."""
    lines = said.rstrip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    return "\n".join(lines[max(frames, default=-1) + 1 :]) or said
