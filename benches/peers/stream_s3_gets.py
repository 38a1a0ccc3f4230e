"""A limit: row groups of a dataset in a bucket, each fetched by one ranged GET and dropped.

python -m benches.peers.stream_s3_gets <folder with a copy of the dataset> <threads> <obstore or
http>
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import local
from urllib.parse import urlsplit

import obstore
import pyarrow.parquet as pq

from benches.peers.stream_rows import EPOCHS

Block = tuple[str, int, int]


def row_groups(folder: Path) -> tuple[list[Block], int]:
    """Path, offset and bytes of each row group of latents and text, and the number of rows."""
    (manifest,) = (folder / "manifest").iterdir()
    files = [f for unit in pq.read_table(manifest).to_pylist() for f in unit["files"] if f["group"] != "rows"]
    blocks = {f["path"]: json.loads(pq.read_metadata(folder / f["path"]).metadata[b"blocks"]) for f in files}
    numbered = [(b["number"], path, b["offset"], b["bytes"]) for path, of in blocks.items() for b in of]
    return [block for _, *block in sorted(numbered)], sum(f["rows"] for f in files if f["group"] == "text")


def make_obstore_client() -> Callable[[Block], int]:
    store = obstore.store.S3Store("public", client_options={"allow_http": True})
    return lambda block: len(obstore.get_range(store, block[0], start=block[1], length=block[2]))


def make_http_client(largest: int) -> Callable[[Block], int]:
    """Each thread has its own connection, and memory that it reuses."""
    own, address = local(), urlsplit(os.environ["AWS_ENDPOINT_URL"])

    def fetch(block: Block) -> int:
        if not hasattr(own, "connection"):
            own.connection, own.memory = HTTPConnection(address.netloc), memoryview(bytearray(largest))
        path, start, length = block
        own.connection.request(
            "GET", f"/public/{path}", headers={"Range": f"bytes={start}-{start + length - 1}"}
        )
        response, filled = own.connection.getresponse(), 0
        while read := response.readinto(own.memory[filled:length]):
            filled += read
        return filled

    return fetch


def main() -> None:
    blocks, count = row_groups(Path(sys.argv[1]))
    fetch = (
        make_obstore_client()
        if sys.argv[3] == "obstore"
        else make_http_client(max(block[2] for block in blocks))
    )
    expected = sum(block[2] for block in blocks)
    with ThreadPoolExecutor(int(sys.argv[2])) as pool:
        # The first epoch opens connections and allocates memory, so it does not count.
        assert sum(pool.map(fetch, blocks)) == expected
        start = time.perf_counter()
        found = sum(pool.map(fetch, EPOCHS * blocks))
        seconds = time.perf_counter() - start
    assert found == EPOCHS * expected
    print(json.dumps({"samples_per_second": EPOCHS * count / seconds}))


main()
