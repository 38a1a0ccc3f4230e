"""Commits encoded blocks of Ray Data to the run's latent dataset: a block is one unit of work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import Dataset

from tidemill import _native
from tidemill.ray.cluster import add_remote_env_vars
from tidemill.ray.preprocess.unit_worker import cached_unit_worker
from tidemill.run_file import RunFile, resolve, to_arguments


def write_latents(dataset: Dataset, run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Writes the output of `Encode` to the run's latent dataset, and makes a snapshot.

    Each block is a unit. Blocks that the dataset already has are not written again. Returns the
    number of units and the row counts.
    """
    resolved = resolve(run, **overrides)
    ticket = _native.ticket(*to_arguments(resolved, {}))
    commits = commit_blocks(dataset, ticket, **add_remote_env_vars(resolved, {}))
    units = [commit["unit"] for commit in commits]
    return {"units": len(units), "rows": json.loads(_native.UnitWorker(ticket).snapshot(units))}


def commit_blocks(encoded: Dataset, ticket: str, **remote_args: Any) -> Iterator[dict[str, Any]]:
    """Commits each block of encoded rows; yields for each its unit and row counts."""
    commits = encoded.map_batches(
        partial(_commit_block, ray.put(ticket)), batch_size=None, batch_format="pyarrow", **remote_args
    )
    for row in commits.iter_rows():
        yield json.loads(row["done"])


def _commit_block(ticket: ray.ObjectRef, table: pa.Table) -> pa.Table:
    commits = [cached_unit_worker(ray.get(ticket)).commit(table)] if table.num_rows else []
    return pa.table({"done": pa.array(commits, pa.string())})
