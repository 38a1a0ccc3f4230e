"""The native worker that reads and commits units, one for each process of Ray."""

from __future__ import annotations

from functools import lru_cache

from tidemill import _native


@lru_cache(maxsize=4)
def cached_unit_worker(ticket: str) -> _native.UnitWorker:
    """The worker for a ticket, shared by all tasks of a process."""
    return _native.UnitWorker(ticket)
