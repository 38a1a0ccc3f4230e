"""The training stream for PyTorch's `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tidemill.stream import Datasets, Stream


class StreamDataset(torch.utils.data.IterableDataset):
    """A stream for `torch.utils.data.DataLoader(dataset, batch_size=None)`, with the arguments of `Stream`.

    Items are whole batches: `sample_ids` and `epochs` [n] i64, unscaled `latents` [n, C, h, w] f16 and `text`
    [n, L, D] f16, or [n, L] i32 where token ids are stored; the latter two without a copy. The stream has
    threads of its own, so that workers would gain nothing; they are refused, for several would each give the
    same batches, and the state of one would not be that of the process that saves it. `state_dict` is that of
    the stream, which torchdata's StatefulDataLoader and Lightning look for. Lightning takes a batch ahead of
    the step, which a resumed run would miss, unless the step takes its batches itself (docs/stream.md).
    """

    def __init__(self, datasets: Datasets, **arguments: Any) -> None:
        self._arguments = (datasets, arguments)
        self._stream: Stream | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            raise ValueError(f"num_workers is {worker.num_workers}: take 0, the stream reads ahead by itself")
        for batch in self._opened():
            yield {
                # A view: torch has no u64 to speak of.
                "sample_ids": torch.tensor(batch.sample_ids, dtype=torch.uint64).view(torch.int64),
                "epochs": torch.tensor(batch.epochs),
                "latents": torch.from_dlpack(batch.latents),
                "text": torch.from_dlpack(batch.text),
            }

    def state_dict(self) -> dict[str, Any]:
        return self._opened().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._opened().load_state_dict(state)

    def _opened(self) -> Stream:
        """The stream, opened where it is used: threads do not survive a fork."""
        if self._stream is None:
            datasets, arguments = self._arguments
            self._stream = Stream(datasets, **arguments)
        return self._stream
