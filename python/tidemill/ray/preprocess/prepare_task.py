"""The stage `Prepare` as a function for the tasks of Ray Data."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

import tidemill
from tidemill.ray.preprocess.arrow_batch import require_arrow_table
from tidemill.run_file import ResolvedRun, RunFile, resolve


class Prepare:
    """Decodes, filters, crops, resizes and tokenises.

    An instance holds only the run file: cheap to send.
    """

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._run = resolve(run, **overrides)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Turns encoded images and captions into pixels and token ids."""
        return _cached_stage(self._run)(require_arrow_table(table))


@lru_cache(maxsize=4)
def _cached_stage(run: ResolvedRun) -> tidemill.Prepare:
    """The native stage, shared by all tasks of a process."""
    return tidemill.Prepare(run)
