"""A limit: two threads gather rows in random order from a memory map into new buffers.

python -m benches.peers.stream_mmap <folder> <rows>
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benches.peers.stream_rows import BATCH, LATENTS, ROW_BYTES, TEXT, Epochs, measure

folder, count = Path(sys.argv[1]), int(sys.argv[2])
THREADS = 2

flat = np.memmap(folder / "rows.f16", np.float16, "r").reshape(-1, ROW_BYTES // 2)


def batches(first=0):
    split = int(np.prod(LATENTS))
    order = np.random.default_rng(0).permutation(len(flat))

    def gather(start):
        rows = flat[order[start : start + BATCH]]
        return {"latents": rows[:, :split].reshape(-1, *LATENTS), "text": rows[:, split:].reshape(-1, *TEXT)}

    with ThreadPoolExecutor(THREADS) as pool:
        pending = [pool.submit(gather, first + i * BATCH) for i in range(THREADS)]
        for start in range(first + THREADS * BATCH, len(flat), BATCH):
            yield pending.pop(0).result()
            pending.append(pool.submit(gather, start))
        yield from (batch.result() for batch in pending)


measure(lambda: Epochs(batches), lambda: batches(int(0.6 * count)))
