"""Drives `tidemill preprocess` with `engine.kind = "ray"`.

The verb starts it as `python -m tidemill.ray.preprocess.driver`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ray.data import ActorPoolStrategy, DataContext

from tidemill.ray.driver_protocol import InputLines, run_driver
from tidemill.ray.preprocess.commit_units import commit_blocks
from tidemill.ray.preprocess.encoder_actor import encode
from tidemill.ray.preprocess.prepare_task import Prepare
from tidemill.ray.preprocess.unit_datasource import read_units
from tidemill.ray.resource_wait import (
    ResourceDemand,
    WorkerResources,
    demand_actors,
    demand_task,
    log_resource_waits,
)
from tidemill.run_file import ResolvedRun

# Units in one execution of Ray Data, which plans a task for each. The cluster idles between
# executions.
MAX_UNITS_PER_EXECUTION = 20_000

# CPUs of a commit task. Blocks of encoded rows are small and wait for storage, so several share a
# CPU.
COMMIT_CPUS = 0.25


def preprocess_all(plan: dict[str, Any], units: InputLines) -> Iterator[dict[str, Any]]:
    """Preprocesses all units of the plan; yields a result for each."""
    DataContext.get_current().enable_progress_bars = False
    with log_resource_waits(*_list_demands(plan)):
        for batch in _batch_units(units):
            yield from preprocess(plan, batch)


def preprocess(plan: dict[str, Any], units: list[str]) -> Iterator[dict[str, Any]]:
    """Reads, prepares, encodes and commits units in one execution of Ray Data.

    Yields a result for each.
    """
    ticket, prepare, pool = plan["ticket"], plan["prepare"], plan["encode"]
    run = ResolvedRun(json.dumps(json.loads(ticket)["run"]))
    task_args = {"concurrency": prepare["most"] or None, "num_cpus": prepare["cpus"]}
    rows = read_units(ticket, units, **task_args)
    prepared = rows.map_batches(Prepare(run), batch_size=None, batch_format="pyarrow", **task_args)
    encoded = encode(
        prepared,
        run,
        compute=ActorPoolStrategy(min_size=pool["fewest"], max_size=pool["most"]),
        num_cpus=pool["cpus"],
        num_gpus=pool["gpus"],
        accelerator_type=pool["accelerator"],
    )
    return commit_blocks(encoded, ticket, num_cpus=COMMIT_CPUS)


def _list_demands(plan: dict[str, Any]) -> list[ResourceDemand]:
    prepare, pool = plan["prepare"], plan["encode"]
    resources = WorkerResources(pool["cpus"], pool["gpus"], pool["accelerator"])
    return [
        demand_task("prepare task", WorkerResources(prepare["cpus"])),
        # The name that Ray Data gives the actors of `encode`.
        demand_actors("encoder", resources, pool["fewest"], "MapBatches(Encode)"),
    ]


def _batch_units(units: InputLines) -> Iterator[list[str]]:
    batch: list[str] = []
    while (unit := units.get()) is not None:
        batch.append(unit)
        if len(batch) == MAX_UNITS_PER_EXECUTION:
            yield batch
            batch = []
    if batch:
        yield batch


if __name__ == "__main__":
    run_driver(preprocess_all, max_buffered_lines=2 * MAX_UNITS_PER_EXECUTION)
