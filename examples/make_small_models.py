"""Makes small model folders of SDXL's or Stable Diffusion 3's form from the quickstart's models.

    .venv/bin/python examples/make_small_models.py sdxl runs/sdxl-small/models
    .venv/bin/python examples/make_small_models.py sd3 runs/flow-dit-small/models

Both text encoders are the quickstart's one, with a projection where there has to be one. A folder has no
weights for the U-Net or the transformer: they are what a run trains. A real one has the published VAE, text
encoders and tokenizers.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TEXT_WIDTH = 64
SIZE_WIDTH = 32

# What differs from the quickstart's U-Net.
SDXL = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    # Both encoders' states side by side.
    "cross_attention_dim": 2 * TEXT_WIDTH,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": SIZE_WIDTH,
    # Pooled text beside six sizes.
    "projection_class_embeddings_input_dim": TEXT_WIDTH + 6 * SIZE_WIDTH,
}
SD3 = {
    "sample_size": 8,
    "patch_size": 1,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 4,
    "attention_head_dim": 32,
    "num_attention_heads": 4,
    "caption_projection_dim": 128,
    "joint_attention_dim": 2 * TEXT_WIDTH,
    "pooled_projection_dim": 2 * TEXT_WIDTH,
    "pos_embed_max_size": 16,
    "qk_norm": "rms_norm",
}


def copy_text_encoder(to: Path, has_projection: bool) -> None:
    """The quickstart's text encoder; its pooled output is the state at the end of the caption."""
    if not has_projection:
        shutil.copytree(ASSETS / "text_encoder", to)
        return
    encoder = CLIPTextModelWithProjection(CLIPTextConfig.from_pretrained(ASSETS / "text_encoder"))
    encoder.text_model.load_state_dict(CLIPTextModel.from_pretrained(ASSETS / "text_encoder").state_dict())
    with torch.no_grad():
        encoder.text_projection.weight.copy_(torch.eye(TEXT_WIDTH))
    encoder.half().save_pretrained(to)


def make_models(form: str, to: Path) -> None:
    """Writes the folder, in place of an older one."""
    shutil.rmtree(to, ignore_errors=True)
    for tokenizer in ("tokenizer", "tokenizer_2"):
        shutil.copytree(ASSETS / "tokenizer", to / tokenizer)
    shutil.copytree(ASSETS / "vae", to / "vae")
    copy_text_encoder(to / "text_encoder", has_projection=form == "sd3")
    copy_text_encoder(to / "text_encoder_2", has_projection=True)
    if form == "sd3":
        FlowMatchEulerDiscreteScheduler().save_pretrained(to / "scheduler")
        write_config(to / "transformer", {"_class_name": SD3Transformer2DModel.__name__, **SD3})
    else:
        shutil.copytree(ASSETS / "scheduler", to / "scheduler")
        write_config(to / "unet", {**UNet2DConditionModel.load_config(ASSETS / "unet"), **SDXL})


def write_config(folder: Path, config: dict) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    make_models(sys.argv[1], Path(sys.argv[2]))
