"""Ours: `tidemill.Stream`, handed to torch. python -m benches.peers.stream_tidemill <folder> <rows>"""

import sys
from pathlib import Path

import tidemill
import torch

from benches.peers.stream_rows import BATCH, measure

folder, count = Path(sys.argv[1]), int(sys.argv[2])


def batches(state=None):
    arguments = {"resolution": 256, "global_batch": BATCH, "shuffle_window": 8}
    for batch in tidemill.Stream(folder / "tidemill", **arguments, state=state):
        yield {"latents": torch.from_dlpack(batch.latents), "text": torch.from_dlpack(batch.text)}


def at(share: float):
    stream = tidemill.Stream(folder / "tidemill", resolution=256, global_batch=BATCH, shuffle_window=8)
    return stream.state_dict() | {"batches": int(share * count / BATCH)}


state = at(0.6)
measure(batches, lambda: batches(state), count)
