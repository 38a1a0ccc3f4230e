"""Preprocessing as in Anyscale's template for Ray Data.

read_parquet, map (Pillow, tokenizer), map_batches (diffusers encoders), write_parquet.

python -m benches.peers.ray_template <folder of pairs> <image column> <blocks> <output folder>
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset
import ray
import torch
from PIL import Image

from benches.peers.pixels import CONTEXT, center_square, clip_tokenizer
from benches.runner import ROOT, cores

SIDE, BATCH = 64, 64
MODELS = ROOT / "assets"


def prepare(row: dict, column: str) -> dict:
    try:
        image = Image.open(io.BytesIO(row[column])).convert("RGB")
    except OSError:
        image = Image.new("RGB", (SIDE, SIDE))
    left, top, side = center_square(*image.size)
    square = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    pixels = np.asarray(square, np.float32).transpose(2, 0, 1) / 127.5 - 1
    options = {"padding": "max_length", "truncation": True, "max_length": CONTEXT}
    ids = clip_tokenizer(MODELS / "tokenizer")(row["caption"] or "", **options)["input_ids"]
    return {"caption": row["caption"], "pixels": pixels, "ids": np.array(ids)}


class Encode:
    def __init__(self):
        from diffusers import AutoencoderKL
        from transformers import CLIPTextModel

        torch.set_num_threads(1)
        self.vae = AutoencoderKL.from_pretrained(MODELS / "vae").eval()
        self.text = CLIPTextModel.from_pretrained(MODELS / "text_encoder").eval()

    @torch.inference_mode()
    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        latents = self.vae.encode(torch.from_numpy(batch["pixels"])).latent_dist.parameters
        text = self.text(torch.from_numpy(batch["ids"])).last_hidden_state
        return {
            "caption": batch["caption"],
            "latents": latents.half().numpy(),
            "text": text.half().numpy(),
        }


def main() -> None:
    folder, column, blocks, output = sys.argv[1:]
    folder, output = Path(folder).resolve(), Path(output).resolve()
    ray.init(num_cpus=cores(), include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    pairs = ray.data.read_parquet(str(folder), columns=["caption", column])
    # By default Ray Data reads so little data into one block, and only one encoder would work.
    pairs = pairs.repartition(int(blocks))
    prepared = pairs.map(prepare, fn_kwargs={"column": column}, num_cpus=0.5)
    encoded = prepared.map_batches(Encode, batch_size=BATCH, concurrency=cores(), num_cpus=0.5)
    encoded.write_parquet(str(output))
    print(json.dumps({"rows": pyarrow.dataset.dataset(output).count_rows()}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
