"""Model folders with the networks of published models in their real size, without their weights.

The VAE is the small one of `assets/`. Text encoders have the published widths, and one layer.
"""

import json
import shutil
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from benches.runner import ROOT

XL_UNET = {
    "block_out_channels": [320, 640, 1280],
    "attention_head_dim": [5, 10, 20],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "cross_attention_dim": 2048,
    "layers_per_block": 2,
    "sample_size": 128,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
# Stable Diffusion 3 medium, with the latents of the small VAE.
TRANSFORMER = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 24,
    "attention_head_dim": 64,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
}
# What differs in Stable Diffusion 3.5 medium.
DUAL = {"pos_embed_max_size": 384, "qk_norm": "rms_norm", "dual_attention_layers": list(range(13))}
CONFIGS = {"sdxl": XL_UNET, "sd3": TRANSFORMER, "sd3.5": TRANSFORMER | DUAL}
TITLES = {"sdxl": "SDXL", "sd3": "Stable Diffusion 3", "sd3.5": "Stable Diffusion 3.5"}
ENCODERS = {"text_encoder": 768, "text_encoder_2": 1280}


def make_published_model(name: str, folder: Path) -> None:
    """Makes the folder of a model in `CONFIGS`."""
    shutil.copytree(ROOT / "assets", folder)
    shutil.copytree(folder / "tokenizer", folder / "tokenizer_2")
    text = CLIPTextConfig.from_pretrained(folder / "text_encoder")
    for encoder, width in ENCODERS.items():
        text.hidden_size, text.projection_dim, text.num_hidden_layers = width, width, 1
        text.num_attention_heads = width // 64
        shutil.rmtree(folder / encoder, ignore_errors=True)
        # Of SDXL's encoders only the second has a pooled output.
        has_pooled = name != "sdxl" or encoder == "text_encoder_2"
        model = CLIPTextModelWithProjection if has_pooled else CLIPTextModel
        model(text).half().save_pretrained(folder / encoder)
    if name == "sdxl":
        config = {**UNet2DConditionModel.load_config(folder / "unet"), **XL_UNET}
        (folder / "unet/config.json").write_text(json.dumps(config))
        return
    shutil.rmtree(folder / "unet")
    (folder / "transformer").mkdir()
    (folder / "transformer/config.json").write_text(json.dumps(CONFIGS[name]))
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")


def count_parameters(folder: Path) -> float:
    """The network's parameters in millions."""
    is_transformer = (folder / "transformer").exists()
    model, part = (SD3Transformer2DModel, "transformer") if is_transformer else (UNet2DConditionModel, "unet")
    with torch.device("meta"):
        network = model.from_config(model.load_config(folder / part))
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6
