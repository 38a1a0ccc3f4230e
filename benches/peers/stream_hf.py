"""Hugging Face datasets, streaming with a shuffle buffer.

python -m benches.peers.stream_hf <folder> <rows>
"""

import sys
from pathlib import Path

import numpy as np
from datasets import load_dataset

from benches.peers.stream_rows import BATCH, LATENTS, TEXT, Epochs, measure

folder, count = Path(sys.argv[1]), int(sys.argv[2])
BUFFER = 1024


def dataset():
    files = str(folder / "parquet" / "*.parquet")
    data = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return data.shuffle(seed=0, buffer_size=BUFFER)


def batches(state=None):
    data = dataset()
    if state is not None:
        data.load_state_dict(state)
    for batch in data.iter(BATCH):
        yield {
            "latents": np.frombuffer(b"".join(batch["latents"]), np.float16).reshape(-1, *LATENTS),
            "text": np.frombuffer(b"".join(batch["text"]), np.float16).reshape(-1, *TEXT),
        }


def state():
    data = dataset()
    for number, _ in enumerate(data.iter(BATCH)):
        if number + 1 == int(0.6 * count) // BATCH:
            return data.state_dict()


at = state()
measure(lambda: Epochs(batches), lambda: batches(at))
