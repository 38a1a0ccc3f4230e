"""A small model folder of SDXL's form: the quickstart's VAE with two random text encoders."""

import json
import shutil

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from helpers import training

TEXT = {
    "vocab_size": 49408,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    # As in SDXL's own files, which were written before transformers 4.31.
    "eos_token_id": 2,
}
WIDTHS, POOLED, SIZE_WIDTH = (8, 10), 12, 8
UNET = {
    "block_out_channels": [16, 32],
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    "attention_head_dim": [2, 4],
    "cross_attention_dim": sum(WIDTHS),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": SIZE_WIDTH,
    "projection_class_embeddings_input_dim": 6 * SIZE_WIDTH + POOLED,
}


def make_models(folder, seed, projections=(None, POOLED)):
    """Writes the folder; `projections` are widths of the encoders' pooled output.

    As in SDXL, the first tokenizer pads with the end of text, the second with "!".
    """
    torch.manual_seed(seed)
    for part in ("vae", "scheduler", "tokenizer"):
        shutil.copytree(training.ASSETS / part, folder / part)
    shutil.copytree(folder / "tokenizer", folder / "tokenizer_2")
    for tokenizer, pad in (("tokenizer", "<|endoftext|>"), ("tokenizer_2", "!")):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            path = folder / tokenizer / name
            path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": pad}))
    vocabulary = len(json.loads((folder / "tokenizer/vocab.json").read_text()))
    for name, width, projection, activation in (
        ("text_encoder", WIDTHS[0], projections[0], "quick_gelu"),
        ("text_encoder_2", WIDTHS[1], projections[1], "gelu"),
    ):
        options = {**TEXT, "vocab_size": vocabulary, "hidden_size": width, "hidden_act": activation}
        model = CLIPTextModelWithProjection if projection else CLIPTextModel
        encoder = model(CLIPTextConfig(**options, projection_dim=projection or width))
        with torch.no_grad():
            # As drawn, weights are so small that all captions have the same embedding.
            for parameter in encoder.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        encoder.save_pretrained(folder / name)
    config = {**UNet2DConditionModel.load_config(training.ASSETS / "unet"), **UNET}
    UNet2DConditionModel.from_config(config).save_pretrained(folder / "unet")
    return folder
