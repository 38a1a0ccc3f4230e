"""The VAE and text encoder of a model folder in plain PyTorch, bf16, batch after batch.

Pixels lie in page-locked memory, so there is no data pipeline: encoders only.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from transformers import CLIPTextModel

WARM, BATCHES = 4, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--pixels", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    vae = AutoencoderKL.from_pretrained(args.models / "vae").to(args.device, torch.bfloat16).eval()
    vae.to(memory_format=torch.channels_last)
    text = CLIPTextModel.from_pretrained(args.models / "text_encoder").to(args.device, torch.bfloat16).eval()
    encode, encode_text = (lambda images: vae.encode(images).latent_dist.parameters), lambda ids: text(ids)[0]
    if args.compile:
        encode, encode_text = torch.compile(encode), torch.compile(encode_text)
    pixels = torch.randint(0, 256, (args.batch, 3, args.pixels, args.pixels), dtype=torch.uint8).pin_memory()
    ids = torch.randint(0, 1000, (args.batch, 77)).pin_memory()

    @torch.no_grad()
    def run_batch() -> None:
        images = pixels.to(args.device, non_blocking=True).to(torch.bfloat16).div(127.5).sub(1)
        encode(images.contiguous(memory_format=torch.channels_last)).half().cpu()
        encode_text(ids.to(args.device, non_blocking=True)).half().cpu()

    for _ in range(WARM):
        run_batch()
    started = time.monotonic()
    for _ in range(BATCHES):
        run_batch()
    print(json.dumps({"rows_per_second": BATCHES * args.batch / (time.monotonic() - started)}))


if __name__ == "__main__":
    main()
