"""`make bench-families`: steps of SDXL's U-Net and Stable Diffusion 3's transformer, beside diffusers.

As `make bench-train`, with small networks of both forms; redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from benches import runner, train
from benches.runner import ROOT
from benches.train import SIZE, WARM

TEXT, POOLED, SIZE_WIDTH = 128, 128, 64
UNET = {
    "block_out_channels": [64, 128, 256],
    "attention_head_dim": [1, 2, 4],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "cross_attention_dim": 2 * TEXT,
    "layers_per_block": 2,
    "sample_size": SIZE,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": SIZE_WIDTH,
    "projection_class_embeddings_input_dim": POOLED + 6 * SIZE_WIDTH,
}
TRANSFORMER = {
    "sample_size": SIZE,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 8,
    "attention_head_dim": 64,
    "num_attention_heads": 6,
    "caption_projection_dim": 384,
    "joint_attention_dim": 2 * TEXT,
    "pooled_projection_dim": 2 * POOLED,
    "pos_embed_max_size": SIZE,
    "qk_norm": "rms_norm",
}
TITLES = {"sdxl": "SDXL's form", "sd3": "Stable Diffusion 3.5's form"}


def make_models(name: str) -> tuple[float, str]:
    """Makes a model folder; returns the millions of parameters and a title."""
    folder = train.FOLDER / name
    shutil.copytree(ROOT / "assets", folder)
    shutil.copytree(folder / "tokenizer", folder / "tokenizer_2")
    config = CLIPTextConfig.from_pretrained(folder / "text_encoder")
    config.hidden_size, config.projection_dim, config.num_hidden_layers = TEXT, POOLED, 2
    # Of SDXL's encoders only the second has a pooled output.
    first = CLIPTextModelWithProjection if name == "sd3" else CLIPTextModel
    for encoder, model in (("text_encoder", first), ("text_encoder_2", CLIPTextModelWithProjection)):
        shutil.rmtree(folder / encoder, ignore_errors=True)
        model(config).half().save_pretrained(folder / encoder)
    network = make_network(name, folder)
    millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    return millions, f"{TITLES[name]}, {millions:.0f} million parameters"


def make_network(name: str, folder: Path) -> torch.nn.Module:
    """Writes the network's configuration and scheduler; returns the network without memory."""
    unet = {**UNet2DConditionModel.load_config(folder / "unet"), **UNET}
    if name == "sdxl":
        (folder / "unet/config.json").write_text(json.dumps(unet, indent=2))
        with torch.device("meta"):
            return UNet2DConditionModel.from_config(unet)
    shutil.rmtree(folder / "unet")
    (folder / "transformer").mkdir()
    (folder / "transformer/config.json").write_text(json.dumps(TRANSFORMER, indent=2))
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    with torch.device("meta"):
        return SD3Transformer2DModel(**TRANSFORMER)


def bench(args: argparse.Namespace) -> None:
    args.compile = False
    train.bench_models(args, make_models, "families")


def main() -> None:
    parser = train.make_parser(__doc__, list(TITLES))
    quick = {"rounds": 1, "steps": WARM + 2, "precisions": ["f32"]}
    runner.main("bench-families", bench, parser, quick)


if __name__ == "__main__":
    main()
