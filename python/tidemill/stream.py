"""The training stream: batches of latent datasets for a notebook or your own training loop."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tidemill._native import Batch
from tidemill._native import Stream as NativeStream
from tidemill.display import escape, to_table

Datasets = "str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]"
Mix = Mapping[str, Mapping[str, float]]

# The name of a stream's dataset if there is only one.
DEFAULT_NAME = "dataset"


class Stream:
    """An endless iterator over batches.

    The content of global batch k is a pure function of the datasets and of the arguments up to
    `mix`.

    `datasets` is the path or URI of a dataset, or several by name; `mix` then gives the share of
    each, as in `{"laion": {"proportion": 0.9}, "own": {"proportion": 0.1}}`, or with `repeat`
    (times per epoch) or `count` (rows per epoch). Without it each dataset is read once per epoch.

    `rank` is this process's number among the `ranks` processes that train together; each gets its
    part of every global batch. `prefetch` batches are made ahead of need, by `readers` threads that
    read. With `unreadable="skip"` rows that cannot be read are left out and counted in `skipped`.
    `cache` is a folder for data of remote datasets, which several processes may share;
    `cache_bytes` is its limit. `state` resumes from a `state_dict()`, with any number of ranks.
    """

    def __init__(
        self,
        datasets: Datasets,
        *,
        resolution: int,
        global_batch: int,
        seed: int = 0,
        shuffle_window: int = 16,
        split: Literal["train", "validation"] = "train",
        mix: Mix | None = None,
        ranks: int = 1,
        rank: int = 0,
        prefetch: int = 4,
        readers: int = 0,
        unreadable: Literal["stop", "skip"] = "stop",
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = 256 << 30,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(datasets, Mapping):
            datasets = {DEFAULT_NAME: datasets}
        self._phase = {
            "resolution": resolution,
            "global_batch": global_batch,
            "mix": {name: {"repeat": 1.0} for name in datasets} if mix is None else mix,
        }
        self._settings = {
            "datasets": {name: os.fspath(uri) for name, uri in datasets.items()},
            "phase": self._phase,
            "seed": seed,
            "shuffle_window": shuffle_window,
            "split": split,
            "ranks": ranks,
            "rank": rank,
            "prefetch": prefetch,
            "readers": readers,
            "unreadable": unreadable,
            "cache": None if cache is None else (os.fspath(cache), cache_bytes),
        }
        self._open(state)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Its memory is passed on without a copy, and reused once nobody refers to it.
        """
        return self._stream.next()

    def __repr__(self) -> str:
        """What it reads, in which batches."""
        return f"Stream({', '.join(f'{key}={value!r}' for key, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        return to_table("stream", [(key, escape(value)) for key, value in self._summary().items()])

    def _summary(self) -> dict[str, Any]:
        settings = self._settings
        named = {key: settings[key] for key in ("datasets", "split", "seed", "rank", "ranks")}
        batches = {key: self._phase[key] for key in ("resolution", "global_batch")}
        return {**named, "rows": self.rows, **batches}

    def state_dict(self) -> dict[str, Any]:
        """The stream's position after the last batch that it returned."""
        return json.loads(self._stream.state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from the position of a `state_dict()`."""
        self._open(state)

    def next_phase(
        self, *, resolution: int | None = None, global_batch: int | None = None, mix: Mix | None = None
    ) -> None:
        """Begins a phase with other batches; each dataset continues from its current position."""
        changes = {"resolution": resolution, "global_batch": global_batch, "mix": mix}
        phase = self._phase | {key: value for key, value in changes.items() if value is not None}
        state = json.loads(self._stream.next_phase(json.dumps(phase)))
        self._phase = self._settings["phase"] = phase
        self._open(state)

    @property
    def rows(self) -> int:
        """The number of rows of the datasets that the stream uses."""
        return self._stream.rows

    @property
    def skipped(self) -> dict[str, int]:
        """The number of rows left out because they could not be read, by reason."""
        return self._stream.skipped

    def _open(self, state: Mapping[str, Any] | None) -> None:
        state_json = None if state is None else json.dumps(state)
        self._stream = NativeStream(json.dumps(self._settings), state_json)
