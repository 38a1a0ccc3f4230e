"""Tidemill's stream, passed to torch.

python -m benches.peers.stream_tidemill <folder> <rows>
"""

import sys
from itertools import islice
from pathlib import Path

import tidemill
import torch

from benches.peers.stream_rows import BATCH, measure

folder, count = Path(sys.argv[1]), int(sys.argv[2])


def stream(state=None):
    arguments = {"resolution": 256, "global_batch": BATCH, "shuffle_window": 8}
    return tidemill.Stream(folder / "tidemill", **arguments, state=state)


class Epochs:
    """Epochs of the endless stream: each continues where the previous one stopped."""

    def __init__(self, state=None):
        self._batches = stream(state)

    def __iter__(self):
        for batch in islice(self._batches, count // BATCH):
            yield {"latents": torch.from_dlpack(batch.latents), "text": torch.from_dlpack(batch.text)}


state = stream().state_dict() | {"batches": int(0.6 * count / BATCH)}
measure(Epochs, lambda: Epochs(state))
