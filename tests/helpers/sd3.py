"""A small model folder of Stable Diffusion 3's form, with T5 or without."""

import json
import shutil

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from transformers import T5Config, T5EncoderModel, T5Tokenizer

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


PIECES = ["▁picture", "▁small", "▁large", "▁red", "▁blue", "▁circle", "▁star", "▁in", "▁the", "▁a", "▁of"]


def make_t5(folder):
    """T5 with random weights, and a vocabulary of a few words, digits and letters."""
    letters = [(letter, -6.0) for letter in "▁abcdefghijklmnopqrstuvwxyz0123456789"]
    special = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>")]
    vocabulary = [*special, *((piece, -3.0) for piece in PIECES), *letters]
    T5Tokenizer(vocab=vocabulary, extra_ids=0).save_pretrained(folder / "tokenizer_3")
    sizes = {
        "d_model": TRANSFORMER["joint_attention_dim"],
        "d_kv": 5,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 3,
    }
    config = T5Config(vocab_size=len(vocabulary), feed_forward_proj="gated-gelu", **sizes)
    T5EncoderModel(config).save_pretrained(folder / "text_encoder_3")


def make_models(folder, seed, has_t5=False):
    """Writes the folder. Both of CLIP's encoders have a projection; the VAE has a shift."""
    sdxl.make_models(folder, seed, projections=POOLED)
    shutil.rmtree(folder / "unet")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    SD3Transformer2DModel(**TRANSFORMER).save_pretrained(folder / "transformer")
    if has_t5:
        make_t5(folder)
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
