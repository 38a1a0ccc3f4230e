"""Tidemill's stream over S3. python -m benches.peers.stream_s3_tidemill <rows> <readers>"""

import json
import sys
import time

import tidemill
import torch

from benches.peers.stream_rows import BATCH, EPOCHS, touch

count, readers = int(sys.argv[1]), int(sys.argv[2])
stream = tidemill.Stream("s3://public", resolution=256, global_batch=BATCH, shuffle_window=8, readers=readers)


def take(rows: int) -> float:
    check = 0.0
    for _ in range(rows // BATCH):
        check += touch({"text": torch.from_dlpack(next(stream).text)})
    return check


take(count)
start = time.perf_counter()
check = take(EPOCHS * count)
seconds = time.perf_counter() - start
print(json.dumps({"samples_per_second": EPOCHS * count // BATCH * BATCH / seconds, "check": check}))
