"""Pillow: AVIF to pixels, on one thread.

python -m benches.peers.pillow_avif <Parquet file> [--over-white]
"""

import argparse
import io
import json
import time

import pyarrow.parquet as pq
from PIL import AvifImagePlugin, Image

AvifImagePlugin.DEFAULT_MAX_THREADS = 1


def load(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def load_over_white(data: bytes) -> Image.Image:
    """RGB, with white where the image is transparent."""
    image = load(data)
    background = Image.new("RGB", image.size, "white")
    background.paste(image, mask=image.getchannel("A"))
    return background


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--over-white", action="store_true")
    args = parser.parse_args()
    images = pq.read_table(args.file).column("image").to_pylist()
    decode = load_over_white if args.over_white else load
    decode(images[0])
    start = time.perf_counter()
    for image in images:
        decode(image)
    seconds = time.perf_counter() - start
    print(json.dumps({"rows": len(images), "rows_per_second": len(images) / seconds}))


if __name__ == "__main__":
    main()
