"""Writes the files that need no training, in SD2's layout.

These are tokenizer, scheduler, U-Net config and model_index.json.
"""

import gzip
import json
from pathlib import Path

import open_clip
from diffusers import DDPMScheduler, UNet2DConditionModel
from open_clip.tokenizer import bytes_to_unicode

from . import text

UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "block_out_channels": [64, 128],
    "layers_per_block": 1,
    # As in SD2's config, this is the number of heads.
    "attention_head_dim": [1, 2],
    "cross_attention_dim": text.HIDDEN,
    "use_linear_projection": True,
}


def write_layout(out: Path) -> None:
    write_tokenizer(out / "tokenizer")
    DDPMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        num_train_timesteps=1000,
        prediction_type="epsilon",
        clip_sample=False,
        steps_offset=1,
    ).save_pretrained(out / "scheduler")
    # No weights: the U-Net is what a run trains.
    UNet2DConditionModel(**UNET).save_config(out / "unet")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.42.0",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    save_json(out / "model_index.json", index)


def write_tokenizer(out: Path) -> None:
    """CLIP's vocabulary from open_clip's wheel.

    The other files have the content of stable-diffusion-2-base's.
    """
    out.mkdir(parents=True, exist_ok=True)
    wheel = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    with gzip.open(wheel, "rt", encoding="utf-8") as lines:
        merges = lines.read().split("\n")[1 : 49152 - 256 - 2 + 1]
    bytes_ = list(bytes_to_unicode().values())
    words = [*bytes_, *(b + "</w>" for b in bytes_), *("".join(m.split()) for m in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocab = {word: i for i, word in enumerate(words)}
    assert len(vocab) == 49408
    assert vocab["!"] == 0
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (out / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")

    def special(content: str) -> dict:
        return {
            "content": content,
            "lstrip": False,
            "normalized": True,
            "rstrip": False,
            "single_word": False,
        }

    start, end = special("<|startoftext|>"), special("<|endoftext|>")
    config = {
        "add_prefix_space": False,
        "bos_token": {"__type": "AddedToken", **start},
        "do_lower_case": True,
        "eos_token": {"__type": "AddedToken", **end},
        "errors": "replace",
        "model_max_length": 77,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "CLIPTokenizer",
        "unk_token": {"__type": "AddedToken", **end},
    }
    save_json(out / "tokenizer_config.json", config)
    # This file determines the padding token: "!", id 0.
    save_json(
        out / "special_tokens_map.json",
        {"bos_token": start, "eos_token": end, "pad_token": "!", "unk_token": end},
    )


def save_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
