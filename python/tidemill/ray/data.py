"""From a run's source into Ray Data, and from there into a latent dataset. A block is a unit of work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from tidemill import _native
from tidemill.ray.cluster import connect, remote_with_env
from tidemill.run_file import RunFile, arguments_of, resolve


def read(run: RunFile, **overrides: Any) -> Dataset:
    """The rows of the run's source as `Prepare` takes them, a unit of work in each block.

    Sample ids are those that `tidemill preprocess` gives.
    """
    resolved = resolve(run, **overrides)
    connect(resolved)
    ticket = json.dumps({"run": json.loads(resolved.text), "dataset": None})
    units = _native.units(*arguments_of(resolved, {}))
    return read_units(ticket, units, **remote_with_env(resolved, {}))


def read_units(ticket: str, units: Sequence[str], **remote: Any) -> Dataset:
    """The rows of some units, each in a block of its own; `remote` goes to Ray's tasks."""
    dataset = ray.data.read_datasource(Units(ticket, units), override_num_blocks=len(units), **remote)
    # Stages must see whole units.
    dataset.context.target_max_block_size = None
    return dataset


def write_latents(dataset: Dataset, run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Writes what `Encode` gave into the run's latent dataset, each block as a unit, as its newest snapshot.

    Blocks that are in the dataset already are not written again. Says what became of the rows.
    """
    resolved = resolve(run, **overrides)
    ticket = _native.ticket(*arguments_of(resolved, {}))
    units = [done["unit"] for done in committed(dataset, ticket, **remote_with_env(resolved, {}))]
    return {"units": len(units), "rows": json.loads(_native.UnitWorker(ticket).snapshot(units))}


def committed(encoded: Dataset, ticket: str, **remote: Any) -> Iterator[dict[str, Any]]:
    """Commits each block of encoded rows, and says for each what became of it."""
    done = encoded.map_batches(
        partial(_commit, ray.put(ticket)), batch_size=None, batch_format="pyarrow", **remote
    )
    for row in done.iter_rows():
        yield json.loads(row["done"])


class Units(Datasource):
    """Each unit is read by a task of its own."""

    def __init__(self, ticket: str, units: Sequence[str]) -> None:
        self._ticket, self._units = ticket, units

    def get_name(self) -> str:
        """What Ray calls it."""
        return "Units"

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known."""
        return None

    def get_read_tasks(self, parallelism: int, *_args: Any, **_options: Any) -> list[ReadTask]:
        """A task for each unit, whatever parallelism Ray would like."""
        ticket = ray.put(self._ticket)
        nothing_known = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(partial(_read, ticket, unit), nothing_known) for unit in self._units]


def _read(ticket: ray.ObjectRef, unit: str) -> Iterator[pa.Table]:
    table = _worker(ray.get(ticket)).read(unit)
    if table.num_rows:
        yield table


def _commit(ticket: ray.ObjectRef, table: pa.Table) -> pa.Table:
    done = [_worker(ray.get(ticket)).commit(table)] if table.num_rows else []
    return pa.table({"done": pa.array(done, pa.string())})


@lru_cache(maxsize=4)
def _worker(ticket: str) -> _native.UnitWorker:
    """One for all tasks of a process."""
    return _native.UnitWorker(ticket)
