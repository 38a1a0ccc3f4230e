"""Reads a run's source into Ray Data: a block is one unit of work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from tidemill import _native
from tidemill.ray.cluster import add_remote_env_vars, connect
from tidemill.ray.preprocess.unit_worker import cached_unit_worker
from tidemill.run_file import RunFile, resolve, to_arguments


def read(run: RunFile, **overrides: Any) -> Dataset:
    """The rows of the run's source as `Prepare` takes them, one unit of work in each block.

    Sample ids are the same as those of `tidemill preprocess`.
    """
    resolved = resolve(run, **overrides)
    connect(resolved)
    ticket = json.dumps({"run": json.loads(resolved.text), "dataset": None})
    units = _native.units(*to_arguments(resolved, {}))
    return read_units(ticket, units, **add_remote_env_vars(resolved, {}))


def read_units(ticket: str, units: Sequence[str], **remote_args: Any) -> Dataset:
    """The rows of these units, each unit in its own block. `remote_args` go to Ray's read tasks."""
    dataset = ray.data.read_datasource(
        UnitDatasource(ticket, units), override_num_blocks=len(units), **remote_args
    )
    # Stages must see whole units: Ray must not split blocks by size.
    dataset.context.target_max_block_size = None
    return dataset


class UnitDatasource(Datasource):
    """A datasource with one read task for each unit."""

    def __init__(self, ticket: str, units: Sequence[str]) -> None:
        self._ticket, self._units = ticket, units

    def get_name(self) -> str:
        """The name that Ray shows."""
        return "Units"

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown before the units are read."""
        return None

    def get_read_tasks(self, parallelism: int, *_args: Any, **_options: Any) -> list[ReadTask]:
        """One task for each unit, whatever parallelism Ray asks for."""
        ticket = ray.put(self._ticket)
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(partial(_read_unit, ticket, unit), unknown) for unit in self._units]


def _read_unit(ticket: ray.ObjectRef, unit: str) -> Iterator[pa.Table]:
    table = cached_unit_worker(ray.get(ticket)).read(unit)
    if table.num_rows:
        yield table
