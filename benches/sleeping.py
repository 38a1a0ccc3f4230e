"""Stages and trainers that sleep, so that any number of them has the speed it should have, on two cores, too.

Actors and tasks come from here, so it imports neither torch nor tidemill.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

# Of each rank; with two units in a window, four steps take one.
BATCH = 32


@dataclass(frozen=True)
class Speeds:
    """What the stages take for a unit, and how large they make it."""

    rows: int
    prepare_s: float
    encode_s: float
    # An encoder's start: what loading models would take.
    load_s: float = 0.0
    prepared_bytes: int = 2048
    encoded_bytes: int = 4096

    @property
    def encoder(self) -> float:
        """Rows/s of one."""
        return self.rows / self.encode_s


@lru_cache(maxsize=2)
def table(rows: int, row_bytes: int) -> pa.Table:
    """Made once in each process; that it is sent costs what it costs."""
    return pa.table({"rows": pa.array([bytes(row_bytes)] * rows, pa.binary(row_bytes))})


# What a `Feeder` takes in place of its own. `run` is a mapping with the engine's section and these speeds.


@ray.remote(max_retries=-1, num_returns=2)
def prepared(run: dict[str, Any], unit: str, epoch: int, resolution: int) -> tuple[pa.Table, float]:
    """A unit, read and prepared, and the seconds that it took."""
    speeds = run["speeds"]
    time.sleep(speeds.prepare_s)
    return table(speeds.rows, speeds.prepared_bytes), speeds.prepare_s


@ray.remote
class Encoder:
    """Encodes a unit at a time."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._encode = Encode(run["speeds"])

    def ready(self) -> None:
        """There is one."""

    @ray.method(num_returns=2)
    def encode(self, prepared: pa.Table) -> tuple[pa.Table, float]:
        """The rows, and the seconds that it took."""
        start = time.perf_counter()
        rows = self._encode(prepared)
        return rows, time.perf_counter() - start


# What Ray Data takes in place of the stages of `tidemill preprocess`.


class Units(Datasource):
    """Each unit is read by a task of its own."""

    def __init__(self, count: int, speeds: Speeds) -> None:
        self._count, self._speeds = count, speeds

    def get_name(self) -> str:
        return "Units"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_args: Any, **_options: Any) -> list[ReadTask]:
        nothing_known = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        read = partial(_read, self._speeds)
        return [ReadTask(read, nothing_known) for _ in range(self._count)]


def _read(speeds: Speeds) -> Iterator[pa.Table]:
    yield table(speeds.rows, speeds.prepared_bytes)


def prepare(speeds: Speeds, read: pa.Table) -> pa.Table:
    """For tasks."""
    time.sleep(speeds.prepare_s)
    return read


class Encode:
    """For actors."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        time.sleep(speeds.load_s)

    def __call__(self, prepared: pa.Table) -> pa.Table:
        time.sleep(self._speeds.encode_s)
        return table(self._speeds.rows, self._speeds.encoded_bytes)


def commit(encoded: pa.Table) -> pa.Table:
    """When how many rows were there."""
    return pa.table({"at": [time.time()], "rows": [encoded.num_rows]})


# Trainers.


class Encoders(Protocol):
    """What a rank asks for rows; `tidemill.ray.feeder.Encoders` is one."""

    def want(self, unit: str, epoch: int, resolution: int) -> int: ...
    def take(self, number: int) -> pa.Table | None: ...


class Memory:
    """Rows that are there already, as offline."""

    def __init__(self, rows: int) -> None:
        self._table = table(rows, 1)

    def want(self, unit: str, epoch: int, resolution: int) -> int:
        return 0

    def take(self, number: int) -> pa.Table:
        return self._table


class Rank:
    """A trainer's thread keeps windows asked for and takes them in order, as online/elsewhere.rs does."""

    def __init__(self, encoders: Encoders, window: int, ahead: int) -> None:
        self._thread = ThreadPoolExecutor(1)
        windows = self._windows(encoders, window, ahead)
        self._make = partial(self._thread.submit, next, windows)
        # One waits for the trainer, another is in the making: online/feed.rs.
        self._made: deque[Future[int]] = deque([self._make(), self._make()])

    def ready(self) -> bool:
        """Whether there is a window."""
        return self._made[0].done()

    def take(self) -> int:
        """A window's rows, once they are there."""
        rows = self._made.popleft().result()
        self._made.append(self._make())
        return rows

    def end(self) -> None:
        """Makes no more of them."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _windows(encoders: Encoders, window: int, ahead: int) -> Iterator[int]:
        asked: deque[list[int]] = deque()
        while True:
            while len(asked) < ahead:
                asked.append([encoders.want("unit", 0, 256) for _ in range(window)])
            yield sum(_taken(encoders, number).num_rows for number in asked.popleft())


def _taken(encoders: Encoders, number: int) -> pa.Table:
    while (rows := encoders.take(number)) is None:
        pass
    return rows


def trained(ranks: Sequence[Rank], rate: float) -> Iterator[int]:
    """Steps at `rate` images/s, of all ranks at once, as gradients want it; gives rows by the window."""
    due = time.monotonic()
    while True:
        late = not all(rank.ready() for rank in ranks)
        rows = [rank.take() for rank in ranks]
        # Sleeps end a little late. Only who waited for rows begins anew; the others lose nothing by it.
        due = time.monotonic() if late else due
        for _ in range(min(rows) // BATCH):
            due += len(ranks) * BATCH / rate
            time.sleep(max(0.0, due - time.monotonic()))
        yield sum(rows)
