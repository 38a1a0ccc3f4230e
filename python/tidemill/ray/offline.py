"""The driver of `tidemill preprocess` with `engine.kind = "ray"`: `python -m tidemill.ray.offline`.

The process that starts it (crates/tidemill/src/engine/ray.rs) writes the plan and the units to its standard
input, a line of JSON each, and reads from its standard output what is committed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayTaskError

import tidemill
from tidemill.ray.data import committed, read_units
from tidemill.ray.stages import Prepare, encode
from tidemill.run_file import ResolvedRun

# Units in one execution of Ray Data, which plans a task for each. Between executions the cluster runs empty.
MOST_UNITS = 20_000

# Blocks of committed rows are small and wait for storage: several share a CPU.
COMMIT_CPUS = 0.25


def main() -> None:
    """Does all units of the plan."""
    say = _own_stdout()
    plan = json.loads(sys.stdin.readline())
    units = _units(plan["units"])
    address = plan["address"]
    try:
        ray.init(**({"address": address} if address else {}), log_to_driver=False, logging_level="warning")
        DataContext.get_current().enable_progress_bars = False
        for some in _rounds(units):
            for done in preprocess(plan, some):
                _tell(say, {"done": done})
        _tell(say, "finished")
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        refused = isinstance(error, tidemill.InputError) or isinstance(cause, tidemill.InputError)
        _tell(say, {"error": {"message": str(cause).strip(), "refused": refused}})
    except (ConnectionError, ValueError) as error:
        where = f"engine.ray.address = {json.dumps(address)}" if address else "a Ray cluster"
        _tell(say, {"error": {"message": f"{where}: {error}", "refused": True}})
    ray.shutdown()


def preprocess(plan: dict[str, Any], units: list[str]) -> Iterator[dict[str, Any]]:
    """Reads, prepares, encodes and commits units; says what became of each."""
    ticket, prepare, pool = plan["ticket"], plan["prepare"], plan["encode"]
    run = ResolvedRun(json.dumps(json.loads(ticket)["run"]))
    tasks = {"concurrency": prepare["most"] or None, "num_cpus": prepare["cpus"]}
    rows = read_units(ticket, units, **tasks)
    prepared = rows.map_batches(Prepare(run), batch_size=None, batch_format="pyarrow", **tasks)
    encoded = encode(
        prepared,
        run,
        compute=ActorPoolStrategy(min_size=pool["fewest"], max_size=pool["most"]),
        num_cpus=pool["cpus"],
        num_gpus=pool["gpus"],
        accelerator_type=pool["accelerator"],
    )
    return committed(encoded, ticket, num_cpus=COMMIT_CPUS)


def _units(count: int) -> queue.Queue[str | None]:
    """The units on standard input, followed by None. After that its end says that the parent has died."""
    units: queue.Queue[str | None] = queue.Queue(maxsize=2 * MOST_UNITS)

    def listen() -> None:
        for _ in range(count):
            units.put(sys.stdin.readline())
        units.put(None)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    return units


def _rounds(units: queue.Queue[str | None]) -> Iterator[list[str]]:
    some: list[str] = []
    while (unit := units.get()) is not None:
        some.append(unit)
        if len(some) == MOST_UNITS:
            yield some
            some = []
    if some:
        yield some


def _own_stdout() -> TextIO:
    """Standard output for us alone; what Ray and others print goes to standard error."""
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return say


def _tell(say: TextIO, what: Any) -> None:
    say.write(json.dumps(what) + "\n")
    say.flush()


if __name__ == "__main__":
    main()
