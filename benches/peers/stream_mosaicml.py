"""mosaicml-streaming: StreamingDataset with py1e.

python -m benches.peers.stream_mosaicml <folder> <rows> <workers>
"""

import sys
from pathlib import Path

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benches.peers.stream_rows import BATCH, LATENTS, TEXT, measure, rows

folder, count, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
local = folder / "mds"


def write():
    shape = {name: ",".join(map(str, form)) for name, form in (("latents", LATENTS), ("text", TEXT))}
    columns = {name: f"ndarray:float16:{form}" for name, form in shape.items()}
    with MDSWriter(out=str(local), columns=columns) as writer:
        for row in rows(folder):
            writer.write(row)


def loader(state=None):
    dataset = StreamingDataset(local=str(local), shuffle=True, shuffle_algo="py1e", batch_size=BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def state():
    """The state after 60 % of an epoch, as `state_dict` returns it."""
    dataset = StreamingDataset(local=str(local), shuffle=True, shuffle_algo="py1e", batch_size=BATCH)
    return dataset.state_dict(int(0.6 * count), from_beginning=True)


if not local.exists():
    write()
clean_stale_shared_memory()
at = state()
clean_stale_shared_memory()
measure(loader, lambda: (clean_stale_shared_memory(), loader(at))[1])
