"""What the processes that drive Ray for a verb have in common (crates/tidemill/src/engine/ray/driver.rs).

The verb writes a plan to a driver's standard input, which may be followed by more lines, and reads from its
standard output what is done, a line of JSON each.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayError

import tidemill
from tidemill.ray.causes import cause_of
from tidemill.ray.cluster import start

Lines: TypeAlias = "queue.Queue[str | None]"
"""The lines after the plan, followed by None."""

GRACE = 120
"""Seconds in which a driver ends whose parent has died."""


def drive(work: Callable[[dict[str, Any], Lines], Iterable[Any]], most: int = 0) -> None:
    """Starts Ray for `work`; says what that has done, and how it ended. Reads `most` lines ahead of it."""
    pipe = _Pipe()
    say = pipe.say
    plan = json.loads(sys.stdin.readline())
    lines = _listen(plan["lines"], most)
    _tell(pipe)
    try:
        _start(plan["cluster"])
        for done in work(plan, lines):
            say({"done": done})
        say("finished")
    except (tidemill.InputError, tidemill.TidemillError, RayError) as error:
        cause = cause_of(error)
        refused = any(isinstance(e, tidemill.InputError) for e in (error, cause))
        say({"error": {"message": str(cause).strip(), "refused": refused}})
    ray.shutdown()


def _start(cluster: dict[str, Any]) -> None:
    env = {"runtime_env": {"env_vars": cluster["env"]}} if cluster["env"] else {}
    start(cluster["address"], log_to_driver=False, logging_level="warning", **env)


def _listen(count: int, most: int) -> Lines:
    """The lines on standard input. After them its end says that the parent has died."""
    lines: Lines = queue.Queue(maxsize=most)

    def listen() -> None:
        for _ in range(count):
            lines.put(sys.stdin.readline())
        lines.put(None)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    return lines


class _Pipe:
    """Standard output for us alone; what Ray and others print goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def say(self, what: Any) -> None:
        """What the verb understands."""
        self.note(json.dumps(what))

    def note(self, line: str) -> None:
        """A line, which the verb shows below its bar if it does not understand it."""
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()


def _tell(pipe: _Pipe) -> None:
    """Shows people what this package logs: below the verb's bar, which there is on a terminal only."""
    log = logging.getLogger("tidemill")
    log.setLevel(logging.INFO)
    log.addHandler(_Notes(pipe) if sys.stderr.isatty() else logging.StreamHandler(sys.stderr))
    log.propagate = False


class _Notes(logging.Handler):
    def __init__(self, pipe: _Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Says it as a note."""
        self._pipe.note(self.format(record))
