"""The training stream for PyTorch's `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tidemill.stream import Datasets, Stream


class StreamDataset(torch.utils.data.IterableDataset):
    """A stream for PyTorch's `DataLoader(dataset, batch_size=None)`.

    It takes the arguments of `Stream`. Items are whole batches: `sample_ids` and `epochs` [n] i64,
    unscaled `latents` [n, C, h, w] f16 and `text` [n, L, D] f16, or [n, L] i32 for datasets that
    store token ids. A dataset for SDXL has `text_2`, `pooled_2` [n, P] and `time_ids_R` [n, 6] i32, too.
    Tensors are not copied.

    Workers of the DataLoader are refused: the stream has its own threads, each worker would return
    the same batches, and the state of a worker's stream would not be that of the process that saves
    it.

    torchdata's StatefulDataLoader and Lightning find `state_dict`, the position of the stream.
    Lightning fetches a batch ahead of the step, and a resumed run would miss that batch unless the
    step itself fetches its batches (docs/stream.md).
    """

    def __init__(self, datasets: Datasets, **arguments: Any) -> None:
        self._arguments = (datasets, arguments)
        self._stream: Stream | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            raise ValueError(
                f"num_workers is {worker.num_workers}: set it to 0, because the stream "
                "reads ahead in its own threads"
            )
        for batch in self._open_stream():
            yield {
                # A view as i64, because torch supports few operations on u64.
                "sample_ids": torch.tensor(batch.sample_ids, dtype=torch.uint64).view(torch.int64),
                "epochs": torch.tensor(batch.epochs),
                "latents": torch.from_dlpack(batch.latents),
                **{name: torch.from_dlpack(tensor) for name, tensor in batch.conditions.items()},
            }

    def state_dict(self) -> dict[str, Any]:
        """The stream's position after the last batch that it returned."""
        return self._open_stream().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from the position of a `state_dict()`."""
        self._open_stream().load_state_dict(state)

    def _open_stream(self) -> Stream:
        """The stream, opened on first use: its threads do not survive a fork."""
        if self._stream is None:
            datasets, arguments = self._arguments
            self._stream = Stream(datasets, **arguments)
        return self._stream
