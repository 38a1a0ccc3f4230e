"""Stages and trainers that sleep: any number of them runs at its speed on two cores.

Ray's actors and tasks import this module, so it imports neither torch nor tidemill.
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

# Rows of a rank's batch. With 64 rows in a unit and two units in a window, four steps use up a
# window.
BATCH = 32


@dataclass(frozen=True)
class Speeds:
    """How long the stages take for a unit, and how large its rows are."""

    rows: int
    prepare_s: float
    encode_s: float
    # Start of an encoder, in place of loading models.
    load_s: float = 0.0
    prepared_bytes: int = 2048
    encoded_bytes: int = 4096

    @property
    def encoder(self) -> float:
        """Rows/s of one encoder."""
        return self.rows / self.encode_s


@lru_cache(maxsize=2)
def make_table(rows: int, row_bytes: int) -> pa.Table:
    """A table, made once in each process: making it takes no time, but sending it does."""
    return pa.table({"rows": pa.array([bytes(row_bytes)] * rows, pa.binary(row_bytes))})


# The stages that an `EncoderPool` takes instead of its own. `run` has the section `engine`, and the
# speeds.


@ray.remote(max_retries=-1, num_returns=2)
def prepare_unit(run: dict[str, Any], unit: str, epoch: int, resolution: int) -> tuple[pa.Table, float]:
    """The rows of a unit, and the seconds that preparing them took."""
    speeds = run["speeds"]
    time.sleep(speeds.prepare_s)
    return make_table(speeds.rows, speeds.prepared_bytes), speeds.prepare_s


@ray.remote
class EncoderActor:
    """Encodes one unit at a time."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._stage = Encode(run["speeds"])

    def wait_until_ready(self) -> None:
        """Returns once the actor has started."""

    @ray.method(num_returns=2)
    def encode(self, prepared: pa.Table) -> tuple[pa.Table, float]:
        """The encoded rows, and the seconds that encoding took."""
        start = time.perf_counter()
        rows = self._stage(prepared)
        return rows, time.perf_counter() - start


# The stages that Ray Data takes instead of those of `tidemill preprocess`.


class UnitDatasource(Datasource):
    """A datasource with one read task for each unit."""

    def __init__(self, count: int, speeds: Speeds) -> None:
        self._count, self._speeds = count, speeds

    def get_name(self) -> str:
        return "Units"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_args: Any, **_options: Any) -> list[ReadTask]:
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        read = partial(_read_unit, self._speeds)
        return [ReadTask(read, unknown) for _ in range(self._count)]


def _read_unit(speeds: Speeds) -> Iterator[pa.Table]:
    yield make_table(speeds.rows, speeds.prepared_bytes)


def prepare(speeds: Speeds, rows: pa.Table) -> pa.Table:
    """The stage for tasks."""
    time.sleep(speeds.prepare_s)
    return rows


class Encode:
    """The stage for actors."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        time.sleep(speeds.load_s)

    def __call__(self, prepared: pa.Table) -> pa.Table:
        time.sleep(self._speeds.encode_s)
        return make_table(self._speeds.rows, self._speeds.encoded_bytes)


def commit(encoded: pa.Table) -> pa.Table:
    """The time of the commit, and its number of rows."""
    return pa.table({"at": [time.time()], "rows": [encoded.num_rows]})


# Trainers.


class RowSource(Protocol):
    """Where a rank gets its rows: `EncoderPoolClient` of `tidemill.ray.online` is one."""

    def want(self, unit: str, epoch: int, resolution: int) -> int: ...
    def take(self, number: int) -> pa.Table | None: ...


class MemorySource:
    """Rows that are in memory already, as offline."""

    def __init__(self, rows: int) -> None:
        self._table = make_table(rows, 1)

    def want(self, unit: str, epoch: int, resolution: int) -> int:
        return 0

    def take(self, number: int) -> pa.Table:
        return self._table


class Rank:
    """A trainer's data thread: it prefetches windows and takes them in order."""

    def __init__(self, source: RowSource, window: int, ahead: int) -> None:
        self._thread = ThreadPoolExecutor(1)
        windows = self._windows(source, window, ahead)
        self._make_window = partial(self._thread.submit, next, windows)
        # One window waits for the trainer while another is being made.
        self._made: deque[Future[int]] = deque([self._make_window(), self._make_window()])

    def is_ready(self) -> bool:
        """Whether a window is ready."""
        return self._made[0].done()

    def take_window(self) -> int:
        """Waits for the next window; returns its number of rows."""
        rows = self._made.popleft().result()
        self._made.append(self._make_window())
        return rows

    def close(self) -> None:
        """Stops making windows."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _windows(source: RowSource, window: int, ahead: int) -> Iterator[int]:
        requests: deque[list[int]] = deque()
        while True:
            while len(requests) < ahead:
                requests.append([source.want("unit", 0, 256) for _ in range(window)])
            yield sum(_take(source, number).num_rows for number in requests.popleft())


def _take(source: RowSource, number: int) -> pa.Table:
    while (rows := source.take(number)) is None:
        pass
    return rows


def train(ranks: Sequence[Rank], rate: float) -> Iterator[int]:
    """Takes steps at `rate` images/s, all ranks in lockstep; yields the rows of each window."""
    due = time.monotonic()
    while True:
        is_late = not all(rank.is_ready() for rank in ranks)
        rows = [rank.take_window() for rank in ranks]
        # Sleeps end a little late, and a fixed schedule makes up for it. Waiting for rows restarts
        # the schedule.
        due = time.monotonic() if is_late else due
        for _ in range(min(rows) // BATCH):
            due += len(ranks) * BATCH / rate
            time.sleep(max(0.0, due - time.monotonic()))
        yield sum(rows)
