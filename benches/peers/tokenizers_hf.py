"""The `tokenizers` library on one core: captions of a text file to ids.

python -m benches.peers.tokenizers_hf <captions.txt> <tokenizer folder> <ids file>
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benches.peers.pixels import fast_clip_tokenizer

BATCH = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("captions", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("ids", type=Path)
    args = parser.parse_args()
    captions = args.captions.read_text(encoding="utf-8").splitlines()
    tokenizer = fast_clip_tokenizer(args.tokenizer)
    batches = [captions[i : i + BATCH] for i in range(0, len(captions), BATCH)]
    seconds, ids = 0.0, []
    for batch in batches:
        start = time.perf_counter()
        encoded = tokenizer.encode_batch_fast(batch)
        seconds += time.perf_counter() - start
        # Converting the ids to Python lists does not count.
        ids += [one.ids for one in encoded]
    np.array(ids, "<i4").tofile(args.ids)
    print(json.dumps({"captions": len(captions), "captions_per_second": len(captions) / seconds}))


if __name__ == "__main__":
    main()
