"""Makes a small model folder of SDXL's form from the quickstart's models.

    .venv/bin/python examples/make_sdxl_models.py runs/sdxl-small/models

The second text encoder is the first one with a projection, because the quickstart has only one. The
folder has no weights for the U-Net: it is what a run trains. A real one has SDXL's `vae/`, text encoders and
tokenizers.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

ASSETS = Path(__file__).resolve().parent.parent / "assets"

SIZE_WIDTH = 32
UNET = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": SIZE_WIDTH,
}


def make_models(to: Path) -> None:
    """Writes the folder, in place of an older one."""
    shutil.rmtree(to, ignore_errors=True)
    for part in ("vae", "scheduler", "tokenizer", "text_encoder"):
        shutil.copytree(ASSETS / part, to / part)
    shutil.copytree(ASSETS / "tokenizer", to / "tokenizer_2")
    config = CLIPTextConfig.from_pretrained(ASSETS / "text_encoder")
    encoder = CLIPTextModelWithProjection(config)
    encoder.text_model.load_state_dict(CLIPTextModel.from_pretrained(ASSETS / "text_encoder").state_dict())
    with torch.no_grad():
        encoder.text_projection.weight.copy_(torch.eye(config.hidden_size))
    encoder.half().save_pretrained(to / "text_encoder_2")
    unet = {
        **UNet2DConditionModel.load_config(ASSETS / "unet"),
        **UNET,
        # Both encoders' states side by side; and the pooled text beside six sizes.
        "cross_attention_dim": 2 * config.hidden_size,
        "projection_class_embeddings_input_dim": config.projection_dim + 6 * SIZE_WIDTH,
    }
    (to / "unet").mkdir()
    (to / "unet/config.json").write_text(json.dumps(unet, indent=2) + "\n")


if __name__ == "__main__":
    make_models(Path(sys.argv[1]))
