"""litdata: StreamingDataset with shuffle.

python -m benches.peers.stream_litdata <folder> <rows> <workers>
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter

from benches.peers.stream_rows import BATCH, LATENTS, TEXT, measure, rows

folder, count, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
local = folder / "litdata"
CHUNK_BYTES = 64 << 20


def write():
    local.mkdir()
    writer = BinaryWriter(cache_dir=str(local), chunk_bytes=CHUNK_BYTES)
    for i, row in enumerate(rows(folder)):
        # Bytes, because litdata's arrays take far longer to read back.
        writer[i] = {name: values.tobytes() for name, values in row.items()}
    writer.done()
    writer.merge()


def collate(items):
    column = {name: b"".join(item[name] for item in items) for name in ("latents", "text")}
    return {
        "latents": np.frombuffer(column["latents"], np.float16).reshape(-1, *LATENTS),
        "text": np.frombuffer(column["text"], np.float16).reshape(-1, *TEXT),
    }


def loader(state=None):
    loader = StreamingDataLoader(
        StreamingDataset(str(local), shuffle=True), batch_size=BATCH, num_workers=workers, collate_fn=collate
    )
    if state is not None:
        loader.load_state_dict(state)
    return loader


def state():
    batches = loader()
    for number, _ in enumerate(batches):
        if number + 1 == int(0.6 * count) // BATCH:
            return batches.state_dict()


if not local.exists():
    try:
        write()
    except BaseException:
        shutil.rmtree(local, ignore_errors=True)
        raise
at = state()
measure(loader, lambda: loader(at))
