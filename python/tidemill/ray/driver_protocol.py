"""The protocol between a verb and the process that drives Ray for it.

The Rust side is crates/tidemill/src/engine/ray. The verb writes a plan, one line of JSON, to the
driver's standard input; more lines may follow. The driver writes results to its standard output,
one line of JSON each.
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
from tidemill.ray.cluster import start_ray
from tidemill.ray.failure_causes import find_root_cause

InputLines: TypeAlias = "queue.Queue[str | None]"
"""The lines after the plan, followed by None."""

# Seconds that a driver has to end after its parent has died.
ORPHAN_GRACE_S = 120


def run_driver(
    execute_plan: Callable[[dict[str, Any], InputLines], Iterable[Any]], max_buffered_lines: int = 0
) -> None:
    """Starts Ray, calls `execute_plan`, and reports each of its results and how it ended.

    At most `max_buffered_lines` input lines are read ahead; 0 means no limit.
    """
    output = _ProtocolOutput()
    plan = json.loads(sys.stdin.readline())
    lines = _read_input_lines(plan["lines"], max_buffered_lines)
    _forward_log(output)
    try:
        _connect(plan["cluster"])
        for result in execute_plan(plan, lines):
            output.write_message({"done": result})
        output.write_message("finished")
    except (tidemill.InputError, tidemill.TidemillError, RayError) as error:
        cause = find_root_cause(error)
        is_refused = any(isinstance(e, tidemill.InputError) for e in (error, cause))
        output.write_message({"error": {"message": str(cause).strip(), "refused": is_refused}})
    ray.shutdown()


def _connect(cluster: dict[str, Any]) -> None:
    env = {"runtime_env": {"env_vars": cluster["env"]}} if cluster["env"] else {}
    start_ray(cluster["address"], log_to_driver=False, logging_level="warning", **env)


def _read_input_lines(count: int, max_buffered_lines: int) -> InputLines:
    """Reads `count` lines of standard input in a thread.

    End of file after them means the parent has died.
    """
    lines: InputLines = queue.Queue(maxsize=max_buffered_lines)

    def read() -> None:
        for _ in range(count):
            lines.put(sys.stdin.readline())
        lines.put(None)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_GRACE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    return lines


class _ProtocolOutput:
    """Standard output, reserved for the protocol.

    Whatever Ray and others print goes to standard error.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def write_message(self, message: Any) -> None:
        """Writes a message of the protocol as JSON."""
        self.write_line(json.dumps(message))

    def write_line(self, line: str) -> None:
        """Writes a line as it is.

        The verb shows lines that are no messages below its progress bar.
        """
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()


def _forward_log(output: _ProtocolOutput) -> None:
    """Shows this package's log to the user: below the verb's progress bar if there is a terminal."""
    log = logging.getLogger("tidemill")
    log.setLevel(logging.INFO)
    log.addHandler(_ProtocolHandler(output) if sys.stderr.isatty() else logging.StreamHandler(sys.stderr))
    log.propagate = False


class _ProtocolHandler(logging.Handler):
    def __init__(self, output: _ProtocolOutput) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a log record as a line."""
        self._output.write_line(self.format(record))
