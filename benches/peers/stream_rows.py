"""What the peers of `make bench-stream` share: rows of latents and text, and how a loader is timed."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

BATCH = 128
# Measured epochs: the fastest loaders take only a fraction of a second for one.
EPOCHS = 3
LATENTS, TEXT = (8, 32, 32), (77, 1024)
ROW_BYTES = 2 * (8 * 32 * 32 + 77 * 1024)


def rows(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """The latents and text of every row that `benches.stream` has written."""
    flat = np.memmap(folder / "rows.f16", np.float16, "r").reshape(-1, ROW_BYTES // 2)
    split = int(np.prod(LATENTS))
    for row in flat:
        yield {"latents": np.array(row[:split]).reshape(LATENTS), "text": np.array(row[split:]).reshape(TEXT)}


class Epochs:
    """Restarts a generator function each time that it is iterated."""

    def __init__(self, batches: Callable[[], Iterator]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator:
        return self._batches()


def measure(fresh: Callable[[], Iterable], resumed: Callable[[], Iterable]) -> None:
    """Prints the times to the first batch of a fresh and of a resumed loader, and the rate.

    The first batch of each epoch does not count, so a loader may start each epoch anew. One value
    of each row is summed, so that batches must really be there.
    """
    start = time.perf_counter()
    loader = fresh()
    first_s, seen, seconds, check = None, 0, 0.0, 0.0
    for _ in range(EPOCHS):
        batches = iter(loader)
        check += touch(next(batches))
        batch_start = end = time.perf_counter()
        first_s = batch_start - start if first_s is None else first_s
        for batch in batches:
            seen += len(batch["text"])
            check += touch(batch)
            end = time.perf_counter()
        seconds += end - batch_start
    del loader, batches, batch
    start = time.perf_counter()
    next(iter(resumed()))
    resume_s = time.perf_counter() - start
    result = {
        "samples_per_second": seen / seconds,
        "first_batch_s": first_s,
        "resume_s": resume_s,
        "check": check,
    }
    print(json.dumps(result))
    sys.stdout.flush()


def touch(batch) -> float:
    ends = batch["text"][:, -1, -1]
    return float((ends.astype(np.float32) if isinstance(ends, np.ndarray) else ends.float()).sum())
