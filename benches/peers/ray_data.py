"""Ray Data from Parquet to Parquet.

read_parquet -> map_batches (Pillow, CLIPTokenizer) -> write_parquet.

python -m benches.peers.ray_data <folder of pairs> <tokenizer folder> <output folder> --pixels
tensor|bytes
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyarrow.dataset
import ray

from benches.peers.pixels import CONTEXT, clip_tokenizer, decode_with_pillow

BATCH = 128
BLOCK_BYTES = 8 << 20


def prepare(batch: dict[str, np.ndarray], folder: Path, pixels: str) -> dict[str, np.ndarray]:
    planes = [decode_with_pillow(jpeg) for jpeg in batch["image"]]
    options = {"padding": "max_length", "truncation": True, "max_length": CONTEXT}
    ids = clip_tokenizer(folder)(batch["caption"].tolist(), **options)["input_ids"]
    if pixels == "tensor":
        column = np.stack(planes)
    else:
        column = np.array([image.tobytes() for image in planes], dtype=object)
    return {"caption": batch["caption"], "pixels": column, "token_ids": np.array(ids, np.int32)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--pixels", choices=["tensor", "bytes"], required=True)
    parser.add_argument("--cpus", type=int, default=2)
    args = parser.parse_args()
    ray.init(num_cpus=args.cpus, include_dashboard=False, log_to_driver=False, configure_logging=True)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # By default Ray makes one block of so few rows, and all but one core are idle.
    context.target_max_block_size = BLOCK_BYTES
    folder = args.folder.resolve()
    # Worker processes start and import before the measurement.
    arguments = {"folder": args.tokenizer.resolve(), "pixels": args.pixels}
    few = ray.data.read_parquet(str(folder)).limit(2 * BATCH)
    few.map_batches(prepare, batch_size=BATCH, fn_kwargs=arguments).materialize()
    # Plain bytes are written without compression; tensors with Ray's defaults.
    written = {} if args.pixels == "tensor" else {"compression": "none", "use_dictionary": False}
    start = time.perf_counter()
    pairs = ray.data.read_parquet(str(folder))
    prepared = pairs.map_batches(prepare, batch_size=BATCH, fn_kwargs=arguments)
    prepared.write_parquet(str(args.output.resolve()), **written)
    seconds = time.perf_counter() - start
    rows = pyarrow.dataset.dataset(args.output).count_rows()
    ray.shutdown()
    print(json.dumps({"rows": rows, "rows_per_second": rows / seconds}))


if __name__ == "__main__":
    main()
