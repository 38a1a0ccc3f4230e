"""Ray Data: iter_batches with a local shuffle buffer.

python -m benches.peers.stream_ray <folder> <rows> <cpus>
"""

import os
import sys
from pathlib import Path

import numpy as np
import ray

from benches.peers.stream_rows import BATCH, LATENTS, TEXT, Epochs, measure

folder, count, cpus = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
BUFFER = 1024

ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, configure_logging=False)
ray.data.DataContext.get_current().enable_progress_bars = False


def batches(skipped=0):
    data = ray.data.read_parquet(str(folder / "parquet"))
    shuffled = data.iter_batches(
        batch_size=BATCH, batch_format="pyarrow", local_shuffle_buffer_size=BUFFER, local_shuffle_seed=0
    )
    for number, batch in enumerate(shuffled):
        # Ray Data has no state to resume from, so earlier batches are read and skipped.
        if number < skipped:
            continue
        column = {name: b"".join(batch[name].to_pylist()) for name in ("latents", "text")}
        yield {
            "latents": np.frombuffer(column["latents"], np.float16).reshape(-1, *LATENTS),
            "text": np.frombuffer(column["text"], np.float16).reshape(-1, *TEXT),
        }


measure(lambda: Epochs(batches), lambda: batches(int(0.6 * count) // BATCH))
# Ray's threads may outlive its shutdown, and then end the process with an error.
os._exit(0)
