"""Checks that Ray Data passes batches as Arrow tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidemill


def require_arrow_table(batch: Any) -> pa.Table:
    """Refuses batches of another format: they would lose Arrow's types."""
    if not isinstance(batch, pa.Table):
        raise tidemill.InputError(
            f'a batch came as {type(batch).__name__}; pass batch_format="pyarrow" to map_batches'
        )
    return batch
