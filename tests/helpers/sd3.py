"""A small model folder of Stable Diffusion 3's form, without T5."""

import json
import shutil

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel

from helpers import sdxl

POOLED = (12, 10)
TRANSFORMER = {
    "sample_size": 8,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "attention_head_dim": 12,
    "num_attention_heads": 2,
    "caption_projection_dim": 24,
    # Wider than CLIP's states together: the rest is zeros.
    "joint_attention_dim": 20,
    "pooled_projection_dim": sum(POOLED),
    "pos_embed_max_size": 12,
    "dual_attention_layers": [1],
    "qk_norm": "rms_norm",
}


def make_models(folder, seed):
    """Writes the folder. Both text encoders have a projection; the VAE has a shift."""
    sdxl.make_models(folder, seed, projections=POOLED)
    shutil.rmtree(folder / "unet")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    SD3Transformer2DModel(**TRANSFORMER).save_pretrained(folder / "transformer")
    config = json.loads((folder / "vae/config.json").read_text())
    (folder / "vae/config.json").write_text(json.dumps({**config, "shift_factor": 0.06}))
    return folder


class Denoiser(torch.nn.Module):
    """diffusers' transformer, called as Tidemill calls a denoiser."""

    def __init__(self, folder):
        super().__init__()
        self.transformer = SD3Transformer2DModel.from_pretrained(folder)
        # Checkpoints hold parameters only, so a constant must not be in the state.
        positions = self.transformer.pos_embed
        positions.register_buffer("pos_embed", positions.pos_embed, persistent=False)

    def forward(self, sample, timesteps, text, added_cond_kwargs=None):
        return self.transformer(sample, text, added_cond_kwargs["text_embeds"], timesteps).sample
