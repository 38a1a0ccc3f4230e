"""The stage `Encode` in actors of Ray Data: each actor loads the models once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from ray.data import Dataset

import tidemill
from tidemill.ray.cluster import add_remote_env_vars
from tidemill.ray.preprocess.arrow_batch import require_arrow_table
from tidemill.run_file import RunFile, resolve


class Encode:
    """Runs the frozen VAE and text encoder. The class is for actors, which load the models once."""

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = tidemill.Encode(run, **overrides)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Turns the output of `Prepare` into latent moments and text embeddings."""
        return self._stage(require_arrow_table(table))


def encode(prepared: Dataset, run: RunFile, **remote_args: Any) -> Dataset:
    """Applies `Encode` to whole blocks, each of which is a unit.

    `remote_args` are Ray's: num_gpus, concurrency and so on.
    """
    resolved = resolve(run)
    return map_blocks_in_actors(prepared, Encode, resolved, **add_remote_env_vars(resolved, remote_args))


def map_blocks_in_actors(
    dataset: Dataset, stage: type, *constructor_args: Any, **remote_args: Any
) -> Dataset:
    """Applies `stage(*constructor_args)`, made once in each actor, to whole blocks."""
    # `map_batches` requires a number of rows per batch if there are GPUs, and would cut units.
    return dataset.map_batches_internal(
        stage,
        fn_constructor_args=constructor_args,
        batch_size=None,
        batch_format="pyarrow",
        # Ray's default, given explicitly: two stages with equal arguments would be fused into one.
        max_restarts=-1,
        **remote_args,
    )
