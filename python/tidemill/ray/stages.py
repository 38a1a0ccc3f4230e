"""`Prepare` and `Encode` for `Dataset.map_batches`, with `batch_format="pyarrow"`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
from ray.data import Dataset

import tidemill
from tidemill.ray.cluster import remote_with_env
from tidemill.run_file import ResolvedRun, RunFile, resolve


class Prepare:
    """Decodes, filters, crops, resizes, tokenises. An instance is a function for tasks, and cheap to send."""

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._run = resolve(run, **overrides)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Image files and captions in, pixels and token ids out."""
        return _prepare(self._run)(_arrow(table))


class Encode:
    """Runs the frozen VAE and text encoder. The class is for actors, which load the models once."""

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._encode = tidemill.Encode(run, **overrides)

    def __call__(self, table: pa.Table) -> pa.Table:
        """What `Prepare` gave in, latent moments and text embeddings out."""
        return self._encode(_arrow(table))


def encode(prepared: Dataset, run: RunFile, **remote: Any) -> Dataset:
    """`Encode` over whole blocks, each a unit. `remote` is for Ray: num_gpus, concurrency and the like."""
    resolved = resolve(run)
    return in_actors(prepared, Encode, resolved, **remote_with_env(resolved, remote))


def in_actors(prepared: Dataset, stage: type, *arguments: Any, **remote: Any) -> Dataset:
    """A stage made of `arguments` in each actor, over whole blocks."""
    # `map_batches` would want rows per batch where there are GPUs; but batches are cut inside units.
    return prepared.map_batches_internal(
        stage,
        fn_constructor_args=arguments,
        batch_size=None,
        batch_format="pyarrow",
        # As by default; but where two stages differ in nothing, Ray would run them as one.
        max_restarts=-1,
        **remote,
    )


@lru_cache(maxsize=4)
def _prepare(run: ResolvedRun) -> tidemill.Prepare:
    """One for all tasks of a process."""
    return tidemill.Prepare(run)


def _arrow(table: Any) -> pa.Table:
    if not isinstance(table, pa.Table):
        raise tidemill.InputError(
            f'a batch came as {type(table).__name__}; give batch_format="pyarrow" to map_batches'
        )
    return table
