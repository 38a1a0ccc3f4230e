"""The driver of `tidemill preprocess` with `engine.kind = "ray"`: `python -m tidemill.ray.offline`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ray.data import ActorPoolStrategy, DataContext

from tidemill.ray.data import committed, read_units
from tidemill.ray.driver import Lines, drive
from tidemill.ray.stages import Prepare, encode
from tidemill.ray.waits import Room, Want, actors, tasks, told
from tidemill.run_file import ResolvedRun

# Units in one execution of Ray Data, which plans a task for each. Between executions the cluster runs empty.
MOST_UNITS = 20_000

# Blocks of committed rows are small and wait for storage: several share a CPU.
COMMIT_CPUS = 0.25


def preprocess_all(plan: dict[str, Any], units: Lines) -> Iterator[dict[str, Any]]:
    """Does all units of the plan."""
    DataContext.get_current().enable_progress_bars = False
    with told(*_wants(plan)):
        for some in _rounds(units):
            yield from preprocess(plan, some)


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


def _wants(plan: dict[str, Any]) -> list[Want]:
    prepare, pool = plan["prepare"], plan["encode"]
    room = Room(pool["cpus"], pool["gpus"], pool["accelerator"])
    return [
        tasks("prepare task", Room(prepare["cpus"])),
        # As Ray Data calls what `encode` starts.
        actors("encoder", room, pool["fewest"], "MapBatches(Encode)"),
    ]


def _rounds(units: Lines) -> Iterator[list[str]]:
    some: list[str] = []
    while (unit := units.get()) is not None:
        some.append(unit)
        if len(some) == MOST_UNITS:
            yield some
            some = []
    if some:
        yield some


if __name__ == "__main__":
    drive(preprocess_all, most=2 * MOST_UNITS)
