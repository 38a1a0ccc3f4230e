"""torch's DataLoader over Parquet: workers decode, crop, resize and tokenise every sample.

python -m benches.peers.torch_loader <folder of pairs> <tokenizer folder> --decoder
torchvision|pillow
"""

import argparse
import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from benches.peers import pixels
from benches.peers.pixels import CONTEXT, SIDE

BATCH = 128


def decode_with_torchvision(jpeg) -> torch.Tensor:
    """The center crop as u8 [3, 256, 256], antialiased bicubic, in the fastest way to write it."""
    image = decode_jpeg(torch.frombuffer(jpeg, dtype=torch.uint8), mode=ImageReadMode.RGB)
    left, top, side = pixels.center_square(image.shape[2], image.shape[1])
    square = F.crop(image, top, left, side, side)[None].contiguous(memory_format=torch.channels_last)
    return F.resize(square, [SIDE, SIDE], InterpolationMode.BICUBIC, antialias=True)[0]


class Pairs(Dataset):
    """The rows of Parquet files as Arrow columns, which workers share without a copy."""

    def __init__(self, folder: Path, tokenizer: Path, decoder: str) -> None:
        table = pq.read_table(folder).combine_chunks()
        self.images, self.captions = table["image"].chunk(0), table["caption"].chunk(0)
        self.decoder = decoder
        if decoder == "torchvision":
            self.tokenizer = pixels.fast_clip_tokenizer(tokenizer)
        else:
            self.tokenizer = pixels.clip_tokenizer(tokenizer)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        jpeg, caption = self.images[row].as_buffer(), self.captions[row].as_py()
        if self.decoder == "torchvision":
            image, ids = decode_with_torchvision(jpeg), self.tokenizer.encode(caption).ids
        else:
            image = torch.from_numpy(pixels.decode_with_pillow(jpeg))
            options = {"padding": "max_length", "truncation": True, "max_length": CONTEXT}
            ids = self.tokenizer(caption, **options)["input_ids"]
        return image, torch.tensor(ids, dtype=torch.int32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--decoder", choices=["torchvision", "pillow"], required=True)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    pairs = Pairs(args.folder, args.tokenizer, args.decoder)
    start = time.perf_counter()
    rows = 0
    for images, ids in DataLoader(pairs, batch_size=BATCH, num_workers=args.workers):
        assert images.shape[1:] == (3, SIDE, SIDE)
        assert ids.shape[1:] == (CONTEXT,)
        rows += len(images)
    print(json.dumps({"rows": rows, "rows_per_second": rows / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main()
