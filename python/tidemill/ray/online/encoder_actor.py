"""The prepare task and the encoder actor of the encoder pool."""

from __future__ import annotations

import time
from functools import lru_cache

import pyarrow as pa
import ray

import tidemill
from tidemill import _native
from tidemill.run_file import ResolvedRun, to_arguments


@ray.remote(max_retries=-1, num_returns=2)
def prepare_unit(run: ResolvedRun, unit: str, epoch: int, resolution: int) -> tuple[pa.Table, float]:
    """Reads and prepares a unit; returns its rows and the seconds that preparing took."""
    preparer = _cached_preparer(run)
    start = time.perf_counter()
    return preparer.prepare(unit, epoch, resolution), time.perf_counter() - start


@ray.remote
class EncoderActor:
    """Encodes prepared units, one at a time, with models that it loads once."""

    def __init__(self, run: ResolvedRun) -> None:
        self._stage = tidemill.Encode(run)

    def wait_until_ready(self) -> None:
        """Returns once the actor has started."""

    @ray.method(num_returns=2)
    def encode(self, prepared: pa.Table) -> tuple[pa.Table, float]:
        """Returns the encoded rows and the seconds that encoding took."""
        start = time.perf_counter()
        rows = self._stage(prepared) if prepared.num_rows else prepared
        return rows, time.perf_counter() - start


@lru_cache(maxsize=4)
def _cached_preparer(run: ResolvedRun) -> _native.Preparer:
    """The native preparer, shared by all tasks of a process."""
    return _native.Preparer(*to_arguments(run, {}))
